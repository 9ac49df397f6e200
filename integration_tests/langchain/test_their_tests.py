"""langchain-core's tests of its in-memory history pass with our history in its place."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from integration_tests import their_tests

FILES = ["tests/unit_tests/chat_history/test_chat_history.py", "tests/unit_tests/runnables/test_history.py"]


@pytest.mark.django_db(transaction=True)
def test_their_tests_pass(tmp_path: pathlib.Path, record_property: Any) -> None:
    folder = their_tests.sources("langchain-core", tmp_path, package="langchain_core")

    passed, output = their_tests.run(
        folder,
        "integration_tests.langchain.history_plugin",
        *("--noconftest", "-c", os.devnull, "--rootdir", str(folder), "-o", "asyncio_mode=auto", *FILES),
        # Their asynchronous tests call methods that are not.
        DJANGO_ALLOW_ASYNC_UNSAFE="1",
    )

    record_property("tests of langchain-core that passed with our history", passed)
    assert passed >= 20, output
