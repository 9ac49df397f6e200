"""A framework's own tests, from the source of the installed version, with our class in place of one of theirs.

This module is also a plugin of pytest in the process that runs them. ``tests`` is the framework's package there, so
nothing of our own ``tests`` is imported.
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
from collections.abc import Iterator

import django
import pytest
from django.conf import settings
from django.db import connection

ROOT = pathlib.Path(__file__).parents[1]
DATABASE = "CONVMEMORY_PLUGIN_DATABASE"


def sources(distribution: str, folder: pathlib.Path, *, package: str) -> pathlib.Path:
    """Download the source distribution of exactly the installed version. Return its folder, without the package."""
    wanted = f"{distribution}=={importlib.metadata.version(distribution)}"
    # Only the file is wanted. It needs not be built.
    options = ["--no-deps", "--no-build-isolation", "--no-binary", distribution, "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", "-qq", *options, wanted], check=True)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, [each for each in packed if f"/{package}/" not in each.name], filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def run(folder: pathlib.Path, plugin: str, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run tests in ``folder`` on the test database. Return how many passed with our class, and the output."""
    database = {name: connection.settings_dict[name] for name in ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")}
    database["OPTIONS"] = {
        name: value for name, value in connection.settings_dict["OPTIONS"].items() if name != "context"
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    plugins = ["no:django", "no:xdist", "no:cacheprovider", __name__, plugin]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"-p{each}" for each in plugins), *arguments],
        cwd=folder,
        env=inherited | {DATABASE: json.dumps(database), "PYTHONPATH": str(ROOT)} | environment,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    [passed] = re.findall(r"^passed with our class: (\d+)", done.stdout, re.MULTILINE)
    return int(passed), done.stdout


# In the process of their tests.

# How many objects of our class were made, and how many tests passed that made one.
counts = collections.Counter[str]()


def set_up_django() -> None:
    settings.configure(
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_convmemory"],
        DATABASES={"default": json.loads(os.environ[DATABASE])},
        USE_TZ=True,
        CONVMEMORY={
            "default": {
                "MEMORY": "django_convmemory.memory.ConversationSummaryBufferMemory",
                "OPTIONS": {"max_token_limit": 100_000},
                "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
                "SCHEDULER": {"BACKEND": "django_convmemory.scheduling.InlineScheduler"},
            }
        },
    )
    django.setup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    made = counts["made"]
    yield
    # A failed test has raised its error above.
    counts["passed"] += counts["made"] > made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"passed with our class: {counts['passed']}")
