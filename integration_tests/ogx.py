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

from integration_tests import their_tests

URL = "CONVMEMORY_OGX_URL"


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
        options = ["-ra", "--noconftest", "-pno:django", "-pno:xdist", "-pno:cacheprovider", f"-p{__name__}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "tests/integration/conversations"],
            cwd=request.config.getoption("--ogx"),
            env=os.environ | keys | {URL: f"{live_server}/v1", "PYTHONPATH": str(their_tests.ROOT)},
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
        sys.stdout.write(f"\n{done.stdout.splitlines()[-1]}\n")
        assert re.search(r"^=+ \d+ passed(, \d+ warnings?)? in ", done.stdout, re.MULTILINE), done.stdout
