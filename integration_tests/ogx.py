"""The tests that OGX has for its own ``/v1/conversations``, against ours. By hand, with the folder of a clone::

    .venv/bin/python -m pytest --ds integration_tests.settings -s integration_tests/ogx.py --ogx CLONE

This module is also a plugin of pytest in the process that runs them: it stands for the fixtures of a server of OGX.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from integration_tests.their_tests import ROOT

URL, FOLDER = "CONVMEMORY_OGX_URL", "tests/integration/conversations"


@pytest.fixture
def require_server() -> None:
    """There is one."""


@pytest.fixture
def openai_client() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=os.environ[URL], api_key=os.environ["OGX_TOKEN"], max_retries=0) as client:
        yield client


if URL not in os.environ:
    from tests.guides.test_openai_conversations import bearer, key_of

    __all__ = ["bearer"]

    @pytest.mark.django_db(transaction=True)
    def test_the_tests_of_ogx_pass(live_server: Any, request: pytest.FixtureRequest) -> None:
        keys = {f"{name}_TOKEN": key_of(name, trusted=False) for name in ("OGX", "ALICE", "BOB")}
        plugins = ["no:django", "no:xdist", "no:cacheprovider", "integration_tests.ogx"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-ra",
                "--noconftest",
                *(f"-p{each}" for each in plugins),
                "conversations",
            ],
            cwd=f"{request.config.getoption('--ogx')}/tests/integration",
            env=os.environ | keys | {URL: f"{live_server}/v1", "PYTHONPATH": str(ROOT)},
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
        *_, last = done.stdout.splitlines()
        sys.stdout.write(f"\n{last}\n")
        assert re.fullmatch(r"=+ \d+ passed(, \d+ warnings?)? in .*", last), done.stdout
