"""Measures whether one person with much to fold holds up others: ``python -m benchmarks.fairness``.

One user has large sessions, four others have eight small ones each, which become due one after the other. A worker with
four threads folds them by Celery and Redis, with a model on this machine that takes a second. Each number of large
sessions is folded with the small ones, and without.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import statistics
import time
from typing import Any

from benchmarks.worker_rate.__main__ import model, worker

TEXT = "We talked about this and that, and then about the weather in Lisbon, which was fine. " * 5
SMALL = 24
THREADS = 4
# The longest time to wait for all, in seconds.
PATIENCE = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__.split("\n")[0])
    parser.add_argument("--large", type=int, nargs="+", default=[4, 8], help="how many large sessions")
    parser.add_argument("--tokens", type=int, default=900_000, help="tokens of each")
    parser.add_argument("--small", type=int, default=32, help="how many small sessions")
    parser.add_argument("--gap", type=float, default=2.0, help="seconds between two that become due")
    arguments = parser.parse_args()
    import psycopg

    name = f"bench_fairness_{os.getpid()}"
    postgresql = psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True)
    with postgresql as server, model(1.0) as url:
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


def measure(arguments: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    import benchmarks.worker_rate.celery_app  # noqa: F401  makes it the app that sends tasks
    from django_convmemory.memory import memories
    from django_convmemory.messages import ChatMessage
    from django_convmemory.models import Session, Summary
    from django_convmemory.sender import sender

    call_command("migrate", verbosity=0)
    memory = memories["default"]
    users = [User.objects.create(username=f"user {number}") for number in range(5)]
    messages = [ChatMessage.human(TEXT), ChatMessage.ai(TEXT)]
    each = sum(map(memory.counter.count, messages))

    def append(key: str, user: Any, exchanges: int) -> None:
        session = memory.session(key, owner=user)
        while exchanges > 0:
            session.append(*messages * min(exchanges, 500))
            exchanges -= 500

    for large in arguments.large:
        for small in (0, arguments.small):
            Session.objects.all().delete()
            for number in range(large):
                append(f"large {number}", users[0], arguments.tokens // each)
            sender().close()
            began, due = time.monotonic(), dict[str, dt.datetime]()
            with worker(THREADS, "--prefetch-multiplier", "1"):
                for number in range(small):
                    # After 15 s, the workers are busy with the large ones.
                    time.sleep(max(0.0, began + 15 + number * arguments.gap - time.monotonic()))
                    append(f"small {number}", users[1 + number % 4], SMALL)
                    due[f"small {number}"] = dt.datetime.now(dt.UTC)
                while Session.objects.due().exists() and time.monotonic() < began + PATIENCE:
                    # The worker folds meanwhile.
                    time.sleep(0.5)
            took = time.monotonic() - began
            line = f"{large} large sessions, {small} small: all folded in {took:.0f} s"
            if small:
                first = Summary.objects.filter(version=1).values_list("session__key", "created_at")
                waits = [(at - due[key]).total_seconds() for key, at in first if key in due]
                line += (
                    f"; {len(waits)} small waited {statistics.median(waits):.1f} s (median), {max(waits):.1f} (worst)"
                )
            print(line, flush=True)


if __name__ == "__main__":
    main()
