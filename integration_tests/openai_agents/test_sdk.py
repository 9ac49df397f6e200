"""The SDK's own tests pass with our session instead of ``SQLiteSession``.

``CONVMEMORY_SDK_TESTS=all`` runs all of its tests that name the class, not only those of sessions.
"""

from __future__ import annotations

import collections
import importlib.metadata
import os
import pathlib
import re
from typing import Any

import pytest

from integration_tests import their_tests

ALL = os.environ.get("CONVMEMORY_SDK_TESTS") == "all"
# Each file that names the class. AdvancedSQLiteSession is the SDK's own subclass of it, so its tests are left out.
FOLDERS = ("tests",) if ALL else ("tests/memory", "tests/extensions/memory")
OURS = re.compile(r"\b(Async)?SQLiteSession\b")
NOT_OURS = frozenset({"test_advanced_sqlite_session.py"})
# With version 0.24.0, 147 tests of sessions made our session and passed, and 307 of all.
ENOUGH = 290 if ALL else 140


@pytest.mark.skipif(
    tuple(map(int, importlib.metadata.version("openai-agents").split(".")[:2])) < (0, 24),
    reason="the rules about what is skipped are made for newer versions",
)
@pytest.mark.django_db(transaction=True)
def test_the_tests_of_the_sdk_pass_with_our_session(record_property: Any, tmp_path: pathlib.Path) -> None:
    sources = their_tests.sources("openai-agents", tmp_path, package="src")
    files = [path for folder in FOLDERS for path in sorted((sources / folder).rglob("test_*.py"))]
    files = [path for path in files if path.name not in NOT_OURS and OURS.search(path.read_text(encoding="utf-8"))]

    passed, output = their_tests.run(
        sources,
        "integration_tests.openai_agents.sdk_plugin",
        *("-rfEs", "--tb=short", "-o", "faulthandler_timeout=60"),
        *(str(path.relative_to(sources)) for path in files),
        TMPDIR=str(tmp_path),
    )

    record_property("tests of the SDK that passed with our session", passed)
    skipped = collections.Counter[str]()
    for number, reason in re.findall(r"^SKIPPED \[(\d+)\] \S+: (.*)", output, re.MULTILINE):
        skipped[reason] += int(number)
    for reason, count in skipped.most_common():
        record_property(f"skipped, because {reason}", count)
    assert passed >= ENOUGH, output[-20_000:]
