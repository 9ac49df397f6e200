"""How many sessions a Celery worker folds a second while the model takes two: ``python -m benchmarks.worker_rate``.

Sessions are made due first, each with a task in Redis; then one worker process with threads works them off. The model
is a server on this machine, and its work is on the same cores. Prints folds a second in the steady part, the processor
time that one takes, and the worker's memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
TEXT = "We talked about this and that, and then about the weather in Lisbon, which was fine. " * 2
# Messages that are more than the limit of the settings.
MESSAGES = 24
# Seconds after which a worker that is not done is not waited for.
PATIENCE = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker_rate", description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--threads", type=int, nargs="+", default=[8, 32, 64, 96])
    parser.add_argument("--latency", type=float, default=2.0, help="seconds that the model takes")
    arguments = parser.parse_args()
    import psycopg

    name = f"bench_worker_{os.getpid()}"
    with (
        psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as server,
        model(arguments.latency) as url,
    ):
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            os.environ |= {
                "DJANGO_SETTINGS_MODULE": "benchmarks.worker_rate.settings",
                "BENCH_DATABASE": name,
                "OPENAI_BASE_URL": url,
            }
            measure(arguments)
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.contextmanager
def model(latency: float) -> Iterator[str]:
    """Run the model as a process of its own, for what it does is not the worker's."""
    code = (
        "import sys, threading; from tests.openai_server import Behaviour, OpenAIServer\n"
        "with OpenAIServer() as server:\n"
        f"    server.default = Behaviour(text='They spoke of Lisbon and of the weather.', latency={latency})\n"
        "    print(server.base_url, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()  # type: ignore[union-attr]  which ends it


def measure(arguments: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db.models import F

    import benchmarks.worker_rate.celery_app  # noqa: F401  tasks are sent by it
    from django_convmemory.broker import sender
    from django_convmemory.memory import memories
    from django_convmemory.messages import ChatMessage
    from django_convmemory.models import Attempt, Session, Summary

    call_command("migrate", verbosity=0)
    said = [ChatMessage.human(TEXT) if number % 2 == 0 else ChatMessage.ai(TEXT) for number in range(MESSAGES)]
    for threads in arguments.threads:
        Attempt.objects.all().delete()
        for number in range(arguments.sessions):
            memories["default"].session(f"{threads} {number}").append(*said)
        sender().close()
        due = Session.objects.due()
        assert due.count() == arguments.sessions
        with worker(threads) as process:
            wait_for_first(process, Session.objects)
            ready = processor_seconds(process.pid)
            ends = time.monotonic() + PATIENCE
            while due.exists() and time.monotonic() < ends:
                time.sleep(0.5)
            spent, memory = processor_seconds(process.pid) - ready, peak(process.pid)
        made = sorted(
            Summary.objects.filter(
                session__key__startswith=f"{threads} ", version=F("session__current_version")
            ).values_list("created_at", flat=True)
        )
        # Without the beginning and the end, when not all of its threads have something to do.
        steady = made[len(made) // 10 : len(made) * 9 // 10]
        rate = (len(steady) - 1) / (steady[-1] - steady[0]).total_seconds()
        calls = Attempt.objects.count()
        cost = spent / calls * 1000
        print(
            f"{threads:>4} threads: {len(made)} of {arguments.sessions} folded, {calls} calls, {rate:6.1f} a second; "
            f"{cost:6.1f} ms of a processor for each, {memory:5.0f} MB",
            flush=True,
        )


@contextlib.contextmanager
def worker(threads: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "celery", "--app", "benchmarks.worker_rate.celery_app", "worker"]
    options = ["--queues", "convmemory", "--pool", "threads", "--concurrency", str(threads), "--loglevel", "WARNING"]
    process = subprocess.Popen([*command, *options], cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_for_first(process: subprocess.Popen[bytes], sessions: Any) -> None:
    """Wait until the worker holds a session: what it did before, its imports above all, is no fold's cost."""
    ends = time.monotonic() + PATIENCE
    while not sessions.exclude(lease_token="").exists():
        if process.poll() is not None or time.monotonic() > ends:
            raise SystemExit("The worker folds nothing: see what it says above.")
        time.sleep(0.05)


def processor_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> float:
    """Return the most memory that the process has had, in megabytes."""
    [size] = re.findall(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(size) / 1024


if __name__ == "__main__":
    main()
