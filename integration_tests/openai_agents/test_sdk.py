"""The SDK's own tests, from the source of the installed version, with our session instead of ``SQLiteSession``.

``CONVMEMORY_SDK_TESTS=all`` runs all of its tests that name the class, not only those of sessions.
"""

from __future__ import annotations

import collections
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
from typing import Any

import pytest
from django.db import connection

from tests.processes import ROOT

ALL = os.environ.get("CONVMEMORY_SDK_TESTS") == "all"
# Each file that names the class. AdvancedSQLiteSession is the SDK's own subclass of it, so its tests are left out.
FOLDERS = ("tests",) if ALL else ("tests/memory", "tests/extensions/memory")
OURS = re.compile(r"\b(Async)?SQLiteSession\b")
NOT_OURS = frozenset({"test_advanced_sqlite_session.py"})
# With version 0.24.0, 147 tests of sessions made our session and passed, and 307 of all.
ENOUGH = 290 if ALL else 140


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder with the source distribution of exactly the installed version, without the package itself."""
    folder = tmp_path_factory.mktemp("sdk")
    version = importlib.metadata.version("openai-agents")
    options = ["--no-deps", "--no-build-isolation", "--no-binary", "openai-agents", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", "-qq", *options, f"openai-agents=={version}"], check=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        members = [each for each in opened if "/src/" not in each.name]
        opened.extractall(folder, members, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.mark.skipif(
    tuple(map(int, importlib.metadata.version("openai-agents").split(".")[:2])) < (0, 24),
    reason="the rules about what is skipped are made for newer versions",
)
@pytest.mark.django_db(transaction=True)
def test_the_tests_of_the_sdk_pass_with_our_session(
    sources: pathlib.Path, record_property: Any, tmp_path: pathlib.Path
) -> None:
    files = [path for folder in FOLDERS for path in sorted((sources / folder).rglob("test_*.py"))]
    files = [path for path in files if path.name not in NOT_OURS and OURS.search(path.read_text(encoding="utf-8"))]
    database = {name: connection.settings_dict[name] for name in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    options = {name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "context"}
    environment = os.environ | {
        "CONVMEMORY_SDK_DATABASE": json.dumps({**database, "OPTIONS": options}),
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
    }
    for name in [name for name in environment if name.startswith(("PYTEST_", "DJANGO_"))]:
        del environment[name]
    plugins = ["no:django", "no:xdist", "no:cacheprovider", "integration_tests.openai_agents.sdk_plugin"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-rfEs", "--tb=short", "-o", "faulthandler_timeout=60"),
            *(word for plugin in plugins for word in ("-p", plugin)),
            *(str(path.relative_to(sources)) for path in files),
        ],
        cwd=sources,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    [ours] = re.findall(r"^passed with our session: (\d+);", done.stdout, re.MULTILINE)
    record_property("tests of the SDK that passed with our session", ours)
    skipped = collections.Counter[str]()
    for number, reason in re.findall(r"^SKIPPED \[(\d+)\] \S+: (.*)", done.stdout, re.MULTILINE):
        skipped[reason] += int(number)
    for reason, count in skipped.most_common():
        record_property(f"skipped, because {reason}", count)
    assert int(ours) >= ENOUGH, done.stdout[-20_000:]
