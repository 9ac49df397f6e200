"""langchain-core's tests of its in-memory history pass with our history in its place."""

from __future__ import annotations

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
from django.db import connections

ROOT = pathlib.Path(__file__).parents[2]
FILES = ["tests/unit_tests/chat_history/test_chat_history.py", "tests/unit_tests/runnables/test_history.py"]


@pytest.fixture(scope="session")
def their_source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The source distribution of exactly the installed version, without the package itself. The wheel has no tests."""
    version = importlib.metadata.version("langchain-core")
    folder = tmp_path_factory.mktemp("langchain")
    package = f"langchain-core=={version}"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "download"]
    # Only the file is wanted. It needs not be built.
    options: list[Any] = ["--no-deps", "--no-build-isolation", "--no-binary", "langchain-core", "-d", folder]
    done = subprocess.run([*pip, *options, package], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, [each for each in packed if "/langchain_core/" not in each.name], filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.mark.django_db(transaction=True)
def test_their_tests_pass(their_source: pathlib.Path, record_property: Any) -> None:
    database = {
        name: connections["default"].settings_dict[name]
        for name in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    }
    environment = {
        **os.environ,
        "CONVMEMORY_PLUGIN_DATABASE": json.dumps(database),
        # Their asynchronous tests call methods that are not.
        "DJANGO_ALLOW_ASYNC_UNSAFE": "1",
        "PYTHONPATH": f"{their_source}{os.pathsep}{ROOT}",
    }
    plugins = ["no:django", "no:xdist", "no:cacheprovider", "integration_tests.langchain.history_plugin"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull, "--rootdir", their_source),
            *("-o", "asyncio_mode=auto"),
            *(word for plugin in plugins for word in ("-p", plugin)),
            *FILES,
        ],
        cwd=their_source,
        env=environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    assert done.returncode == 0, done.stdout
    counts = re.search(r"passed with our history: (\d+); without it: (\d+)", done.stdout)
    assert counts, done.stdout
    record_property("tests of langchain-core that passed with our history", counts[1])
    assert int(counts[1]) >= 20
