"""Measures how many sessions a second a Celery worker folds: ``python -m benchmarks.worker_rate``.

A model call takes two seconds. First the sessions are made due, each with a task in Redis. Then one worker process with
threads folds them. The model is a server on this machine and uses the same cores.

Prints the folds a second in the steady part, the processor time of a fold, and the worker's peak memory.
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
# So many messages exceed the limit in the settings.
MESSAGES = 24
# The longest time to wait for the worker, in seconds.
PATIENCE = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker_rate", description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--threads", type=int, nargs="+", default=[8, 32, 64, 96])
    parser.add_argument("--latency", type=float, default=2.0, help="seconds that the model takes")
    parser.add_argument("--connection-pool", action="store_true", help="eight database connections for all threads")
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
                "BENCH_POOL": "1" if arguments.connection_pool else "",
            }
            measure(arguments)
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.contextmanager
def model(latency: float) -> Iterator[str]:
    """Run the model in a separate process, so that its work does not count as the worker's."""
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
        process.stdin.close()  # type: ignore[union-attr]  This ends the process.


def measure(arguments: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db.models import F

    import benchmarks.worker_rate.celery_app  # noqa: F401  makes it the app that sends tasks
    from django_convmemory.memory import memories
    from django_convmemory.messages import ChatMessage
    from django_convmemory.models import Attempt, Session, Summary
    from django_convmemory.sender import sender

    call_command("migrate", verbosity=0)
    messages = [ChatMessage.human(TEXT) if number % 2 == 0 else ChatMessage.ai(TEXT) for number in range(MESSAGES)]
    for threads in arguments.threads:
        Attempt.objects.all().delete()
        for number in range(arguments.sessions):
            memories["default"].session(f"{threads} {number}").append(*messages)
        sender().close()
        due = Session.objects.due()
        assert due.count() == arguments.sessions
        with worker(threads) as process:
            wait_for_first(process, Session.objects)
            started = processor_seconds(process.pid)
            deadline = time.monotonic() + PATIENCE
            while due.exists() and time.monotonic() < deadline:
                # The worker folds meanwhile. Looking more often would cost it processor time.
                time.sleep(0.5)
            used, memory = processor_seconds(process.pid) - started, peak(process.pid)
        folded_at = sorted(
            Summary.objects.filter(
                session__key__startswith=f"{threads} ", version=F("session__current_version")
            ).values_list("created_at", flat=True)
        )
        # Without the beginning and the end, when some of the threads have nothing to do.
        steady = folded_at[len(folded_at) // 10 : len(folded_at) * 9 // 10]
        rate = (len(steady) - 1) / (steady[-1] - steady[0]).total_seconds()
        calls = Attempt.objects.count()
        cost = used / calls * 1000
        print(
            f"{threads:>4} threads: {len(folded_at)} of {arguments.sessions} folded, {calls} calls, "
            f"{rate:6.1f} a second; {cost:6.1f} ms of a processor for each, {memory:5.0f} MB",
            flush=True,
        )


@contextlib.contextmanager
def worker(threads: int, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "celery", "--app", "benchmarks.worker_rate.celery_app", "worker"]
    options = ["--queues", "convmemory", "--pool", "threads", "--concurrency", str(threads), "--loglevel", "WARNING"]
    process = subprocess.Popen([*command, *options, *more], cwd=ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_for_first(process: subprocess.Popen[bytes], sessions: Any) -> None:
    """Wait until the worker holds a lease. Its earlier work, such as imports, is not a cost of folding."""
    deadline = time.monotonic() + PATIENCE
    while not sessions.exclude(lease_token="").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("The worker folds nothing. See its output above.")
        # The worker starts meanwhile.
        time.sleep(0.05)


def processor_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak(pid: int) -> float:
    """Return the peak memory of the process, in megabytes."""
    [size] = re.findall(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(size) / 1024


if __name__ == "__main__":
    main()
