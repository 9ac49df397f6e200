"""The schema is current, generates no warnings, and describes the responses correctly."""

from __future__ import annotations

import io
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from pytest_django.live_server_helper import LiveServer

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage

ROOT = pathlib.Path(__file__).parent.parent.parent
# The number of examples for each endpoint. 200 examples give about 10 000 cases.
EXAMPLES = int(os.environ.get("CONVMEMORY_TEST_EXAMPLES", "10"))


def generated() -> str:
    out = io.StringIO()
    call_command("spectacular", validate=True, fail_on_warn=True, stdout=out)
    return out.getvalue()


def conversations(owner: User, count: int) -> list[uuid.UUID]:
    """Create folded conversations and return their public ids."""
    session = memories["default"].session("0", owner=owner)
    for number in range(12):
        session.append(ChatMessage.human(f"Question {number}. " + "word " * 20), ChatMessage.ai(f"Answer {number}."))
    return [session.fork(24, key=str(number)).public_id for number in range(1, count + 1)]


def test_the_schema_that_is_checked_in_is_current() -> None:
    assert (ROOT / "docs/openapi.yaml").read_text() == generated(), "Run 'make schema'."


def test_every_operation_has_a_unique_name() -> None:
    names = re.findall(r"operationId: (\S+)", generated())
    assert len(names) == len(set(names)) == 25
    assert all(name.startswith("convmemory_") for name in names)


@pytest.mark.only_on("postgresql")
def test_responses_match_the_schema(
    live_server: LiveServer,
    settings: Any,
    tmp_path: pathlib.Path,
    record_property: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "django.request")
    settings.CONVMEMORY_API = {"AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"]}
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": {"convmemory_model": None}}
    settings.CONVMEMORY = {
        "default": settings.CONVMEMORY["default"]
        | {"SCHEDULER": {"BACKEND": "django_convmemory.schedulers.InlineScheduler"}}
    }
    anna = User.objects.create_user("anna", password="pw")
    User.objects.create_user("berta", password="pw")
    schema, config = tmp_path / "openapi.yaml", tmp_path / "schemathesis.toml"
    schema.write_text(generated())
    session_ids = json.dumps([str(public_id) for public_id in conversations(anna, 200)])
    config.write_text(
        (ROOT / "tests/api/schemathesis.toml").read_text() + f"\n[dictionaries.sessions]\nvalues = {session_ids}\n"
    )
    done = subprocess.run(
        [
            pathlib.Path(sys.executable).with_name("st"),
            *("--config-file", config),
            *("run", schema, "--url", live_server.url, "--checks", "all", "--max-examples", str(EXAMPLES)),
            *("--workers", "1", "--no-color"),
            *(["--generation-deterministic"] if os.environ.get("CI") else []),
        ],
        cwd=tmp_path,
        env=os.environ | {"SCHEMATHESIS_HOOKS": str(ROOT / "tests/api/schemathesis_hooks.py")},
        capture_output=True,
        text=True,
        check=False,
    )
    cases = re.search(r"(\d+) generated", done.stdout)
    record_property("cases against the schema", cases.group(1) if cases else "?")
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    assert list(integrity.check(models.Session.objects.all())) == []
