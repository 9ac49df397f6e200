"""The example project: its settings, its broker, and its replay, run as a newcomer runs them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import kombu
import pytest

from tests import processes
from tests.openai_server import OpenAIServer

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = ROOT / "example_project"
# Enough for a process to start or end, or for a whole replay, on a busy machine.
SECONDS = 120


def load(path: pathlib.Path) -> types.ModuleType:
    """Import a file by itself. Importing its package would make the project's Celery app current here."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(folder: pathlib.Path, **variables: str) -> dict[str, str]:
    """Return this process's environment without the variables that configure the project."""
    prefixes = ("CELERY_", "CONVMEMORY_", "DATABASE_URL", "DEMO_", "DJANGO_", "EXAMPLE_", "OPENAI_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return kept | {"PYTHONPATH": os.fspath(ROOT), "EXAMPLE_DATA_DIR": os.fspath(folder / "data")} | variables


# Settings.

POOL = {"min_size": 1, "max_size": 20, "timeout": 10}
URLS: dict[str, dict[str, Any]] = {
    "sqlite:///chat.sqlite3": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(PROJECT / "chat.sqlite3")},
    "sqlite:////srv/my%20site/chat.sqlite3": {"NAME": "/srv/my site/chat.sqlite3"},
    "postgresql://ada:p%40ss%2Fword@db.example:5433/chat?sslmode=require&connect_timeout=3": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "chat",
        "HOST": "db.example",
        "PORT": "5433",
        "USER": "ada",
        "PASSWORD": "p@ss/word",
        "OPTIONS": {"pool": POOL, "sslmode": "require", "connect_timeout": 3},
    },
    "postgres:///chat?host=/run/postgresql": {"HOST": "", "OPTIONS": {"pool": POOL, "host": "/run/postgresql"}},
    "mariadb://root@[::1]/%E8%81%8A%E5%A4%A9": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "聊天",
        "HOST": "::1",
        "PASSWORD": "",
        "OPTIONS": {"charset": "utf8mb4"},
    },
}
PRODUCTION = {"CELERY_BROKER_URL": "redis://redis:6379/0", "OPENAI_MODEL": "tiny", "OPENAI_API_KEY": "none"}
WRONG_URLS = ["oracle://db/chat", "postgresql://db.example", "sqlite://", "sqlite:///:memory:", "chat.sqlite3"]


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The entry of DATABASES that the settings make from each URL, or the text of the error."""
    code = """
import json, sys
from django.core.exceptions import ImproperlyConfigured
from mysite import settings

def read(url):
    try:
        return settings.database(url)
    except ImproperlyConfigured as error:
        return str(error)

print(json.dumps({url: read(url) for url in sys.argv[1:]}))
"""
    command = [sys.executable, "-c", code, *URLS, *WRONG_URLS]
    environ = environment(tmp_path_factory.mktemp("settings"))
    answer = subprocess.run(command, cwd=PROJECT, env=environ, check=True, stdout=subprocess.PIPE).stdout
    result: dict[str, Any] = json.loads(answer)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("url", URLS)
def test_a_database_url_is_read(url: str, databases: dict[str, Any]) -> None:
    assert databases[url] | URLS[url] == databases[url]


def test_sqlite_waits_for_other_writers(databases: dict[str, Any]) -> None:
    options = databases["sqlite:///chat.sqlite3"]["OPTIONS"]

    assert options["transaction_mode"] == "IMMEDIATE"
    assert options["timeout"] >= 5
    assert "journal_mode=WAL" in options["init_command"]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_a_wrong_database_url_is_explained(url: str, databases: dict[str, Any]) -> None:
    assert "DATABASE_URL must be" in databases[url]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "variables"),
    [
        ("--database=default", {}),
        ("--database=default", PRODUCTION),
        (
            "--deploy",
            PRODUCTION
            | {
                "SECRET_KEY": "not one of ours: " + "kP3-vT9_xQ7" * 5,
                "ALLOWED_HOSTS": "chat.example",
                "DATABASE_URL": "postgresql://chat:secret@db:5432/chat",
            },
        ),
    ],
    ids=["as it is", "with a model", "for production"],
)
def test_the_checks_find_nothing(option: str, variables: dict[str, str], tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "manage.py", "check", option, "--fail-level", "WARNING"]
    subprocess.run(command, cwd=PROJECT, env=environment(tmp_path, **variables), check=True)


# The broker that is a folder.


def test_every_message_of_the_folder_is_taken_once_and_whole(tmp_path: pathlib.Path) -> None:
    broker = load(PROJECT / "mysite" / "folder_broker.py")
    options = broker.options(tmp_path / "a folder") | {"polling_interval": 0.001}
    sent = [f"{number} " * 500 for number in range(100)]
    taken: list[str] = []
    deadline = time.monotonic() + SECONDS

    def take() -> None:
        with kombu.Connection(transport=broker.Transport, transport_options=options) as connection:
            queue = connection.SimpleQueue("convmemory")
            while len(taken) < len(sent) and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    message = queue.get(timeout=0.01)
                    message.ack()
                    taken.append(message.payload)

    with kombu.Connection(transport=broker.Transport, transport_options=options) as connection:
        queue = connection.SimpleQueue("convmemory")
        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for text in sent:
            queue.put(text)
        for thread in threads:
            thread.join()

    assert sorted(taken) == sorted(sent)
    assert list((tmp_path / "a folder" / "messages").iterdir()) == []


# The replay.


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the project in a folder whose name has a space."""
    folder = tmp_path / "a copy"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    return folder


def processes_in(folder: pathlib.Path) -> list[str]:
    """Return the command lines of the processes that run something in ``folder``."""
    listed = subprocess.run(["ps", "-axww", "-o", "command="], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line for line in listed.splitlines() if os.fspath(folder) in line]


def run(copy: pathlib.Path, *arguments: str, **variables: str) -> str:
    """Replay, check that it succeeded and left no process running, and return its output."""
    command = [sys.executable, str(copy / "replay.py"), *arguments]
    output = processes.output_of(command, pathlib.Path("/"), environment(copy, **variables), timeout=SECONDS)
    assert processes_in(copy) == []
    return output


@contextlib.contextmanager
def running(copy: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """Start a replay, and wait until it appends."""
    with subprocess.Popen(
        [sys.executable, copy / "replay.py"],
        env=environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert any("71 of 284 messages" in line for line in process.stdout)
            assert len(processes_in(copy)) == 2
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_replay_runs_and_runs_again(copy: pathlib.Path) -> None:
    for _ in range(2):
        output = run(copy, "--fast")

        assert "284 stored, 0 lost" in output
        assert "calls of extractive" in output
        assert "still due" not in output
        assert "Summary of earlier conversation: " in output
        assert "Traceback" not in output


@pytest.mark.slow
def test_the_replay_uses_the_model_of_the_environment(copy: pathlib.Path) -> None:
    with OpenAIServer() as server:
        output = run(copy, "--fast", OPENAI_MODEL="tiny", OPENAI_API_KEY="none", OPENAI_BASE_URL=server.base_url)

    assert "0 lost" in output
    assert "calls of tiny" in output
    assert {entry.body["model"] for entry in server.log} == {"tiny"}


@pytest.mark.slow
def test_an_interrupted_replay_leaves_nothing_running_and_gives_the_cursor_back(copy: pathlib.Path) -> None:
    ours, its = os.openpty()
    environ = environment(copy, TERM="xterm", COLUMNS="80", LINES="40")
    output = b""
    with subprocess.Popen([sys.executable, copy / "replay.py"], env=environ, stdout=its, stderr=its) as process:
        os.close(its)
        while not re.search(rb"[1-9]\d of 284 messages", output):
            output += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the end of a terminal
            while chunk := os.read(ours, 65536):
                output += chunk
    os.close(ours)

    assert process.returncode == 130
    assert processes_in(copy) == []
    assert b"Traceback" not in output
    assert output.rindex(b"\x1b[?25h") > output.rindex(b"\x1b[?25l")


@pytest.mark.slow
def test_the_worker_of_a_killed_replay_ends(copy: pathlib.Path) -> None:
    with running(copy) as process:
        process.kill()

    processes.wait_until(lambda: not processes_in(copy), "the worker ends")


@pytest.mark.slow
def test_a_terminated_replay_leaves_nothing_running(copy: pathlib.Path) -> None:
    with running(copy) as process:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=SECONDS)

    assert (process.returncode, "Traceback" in output, processes_in(copy)) == (143, False, [])


@pytest.mark.slow
def test_a_replay_without_its_database_says_so(copy: pathlib.Path) -> None:
    command = [sys.executable, str(copy / "replay.py"), "--fast"]
    environ = environment(copy, DATABASE_URL="sqlite:////nowhere/at/all/chat.sqlite3")
    done = processes.run(command, environment=environ)

    assert done.returncode == 1
    assert "unable to open database file" in done.stdout
    assert "Traceback" not in done.stdout


def test_what_compose_gives_is_read() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((PROJECT / "compose.yaml").read_text())["services"]
    assert set(services) == {"db", "redis", "migrate", "web", "worker", "beat"}
    source = "".join(path.read_text() for path in PROJECT.rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", source)) | {"OPENAI_API_KEY", "OPENAI_BASE_URL"}
    assert set(services["web"]["environment"]) <= read
    assert services["worker"]["environment"] == services["beat"]["environment"] == services["web"]["environment"]
