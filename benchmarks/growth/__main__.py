"""Measures append and load at growing sizes: ``python -m benchmarks.growth``.

The sizes are the length of a conversation, the number of rows in the tables, and the number of concurrent
conversations. Each is compared with psycopg on the same tables, in turns. Creates databases on the local PostgreSQL and
drops them at the end. With ``--keep`` the large ones stay and are used again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
SERVER = "postgresql://postgres@127.0.0.1:5432/postgres"
KINDS = ("ours", "driver")
MESSAGES, OWNERS, LIMIT = 100, 1000, 2000
# The limit of the conversations of different lengths: a load returns ten messages, and the summary of a longer one.
LENGTHS_LIMIT = 1100
# Operations in a turn.
TURN = 10

Named = tuple[str | None, str]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[10, 1000, 10_000, 100_000], help="of a conversation")
    parser.add_argument(
        "--sessions", type=int, nargs="+", default=[100, 10_000, 100_000], help=f"of {MESSAGES} messages each"
    )
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 16, 64], help="concurrent conversations")
    parser.add_argument("--turns", type=int, default=30, help=f"of {TURN} operations each")
    parser.add_argument("--keep", action="store_true", help="keep the tables, or use those kept before")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench/growth.json")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        # Never kept, because the benchmark appends to it.
        lengths = stack.enter_context(database("bench_growth_lengths", False, "lengths", *arguments.lengths))
        tables = {
            count: stack.enter_context(database(f"bench_growth_{count}", arguments.keep, "sessions", count))
            for count in arguments.sessions
        }
        results = {
            "lengths": of_lengths(lengths, arguments),
            "memory": of_memory(lengths, arguments),
            "tables": of_tables(tables, arguments),
            "at_once": at_once(tables[sorted(tables)[len(tables) // 2]], arguments),
        }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


def of_lengths(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    times: dict[Any, list[int]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        processes = {kind: stack.enter_context(running(kind, name)) for kind in KINDS}
        for operation in ("load", "append"):
            for turn in range(-1, arguments.turns):
                for length in arguments.lengths:
                    for kind, process in processes.items():
                        durations = order(process, operation, [(None, f"length {length}")] * TURN)["ns"]
                        if turn >= 0:  # The first turn is the warm-up.
                            times[operation, length, kind] += durations
    return table("messages in the conversation", arguments.lengths, times)


def of_memory(name: str, arguments: argparse.Namespace) -> dict[int, int]:
    """Return the peak memory of a new process for each length, in kilobytes."""
    peaks = {}
    for length in arguments.lengths:
        with running("ours", name) as process:
            order(process, "load", [(None, f"length {length}")] * 50)
            peaks[length] = order(process, "append", [(None, f"length {length}")] * 5)["peak"]
        print(f"{length:>11,} messages: a process that loads and appends takes {peaks[length] / 1024:.1f} MB at most")
    return peaks


def of_tables(names: dict[int, str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    times: dict[Any, list[int]] = defaultdict(list)
    chance = random.Random(0)
    with contextlib.ExitStack() as stack:
        processes = {
            (count, kind): stack.enter_context(running(kind, name)) for count, name in names.items() for kind in KINDS
        }
        for operation in ("load", "append"):
            for turn in range(-1, arguments.turns):
                for (count, kind), process in processes.items():
                    durations = order(process, operation, chosen(chance, count, TURN))["ns"]
                    if turn >= 0:
                        times[operation, count * MESSAGES, kind] += durations
    return table("messages in the table", [count * MESSAGES for count in names], times)


def at_once(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure concurrent conversations, in two processes with threads."""
    count = int(name.rpartition("_")[2])
    chance = random.Random(1)
    results = []
    print("\nconversations at once, in two processes (operations a second, median and p99 in ms)")
    for operation in ("load", "append"):
        for threads in arguments.at_once:
            for kind in KINDS:
                with contextlib.ExitStack() as stack:
                    # Started for each measurement. All together would exceed PostgreSQL's default of connections.
                    processes = [stack.enter_context(running(kind, name)) for _ in range(1 if threads == 1 else 2)]
                    rate, times = together(processes, operation, threads, chance, count)
                p50, p99 = times[len(times) // 2] / 1e6, times[len(times) * 99 // 100] / 1e6
                results.append(
                    {"operation": operation, "at_once": threads, "kind": kind, "rate": rate, "p50": p50, "p99": p99}
                )
                print(f"{operation:<7} {threads:>3}  {kind:<7} {rate:9.0f} {p50:9.2f} {p99:9.2f}", flush=True)
    return results


def together(
    processes: list[Any], operation: str, threads: int, chance: random.Random, count: int
) -> tuple[float, list[int]]:
    """Return the operations a second and the sorted times, in nanoseconds."""
    each = max(200, 8 * threads) // len(processes)
    rates, times = [], list[int]()
    for turn in range(6):
        for process in processes:
            send(process, operation, chosen(chance, count, each), threads=max(1, threads // len(processes)))
        began = time.perf_counter()
        durations = [duration for process in processes for duration in receive(process)["ns"]]
        if turn:  # The first turn is the warm-up.
            rates.append(len(durations) / (time.perf_counter() - began))
            times += durations
    return statistics.median(rates), sorted(times)


def table(title: str, sizes: list[int], times: dict[Any, list[int]]) -> list[dict[str, Any]]:
    results = []
    for operation in ("load", "append"):
        print(f"\n{operation}, by {title} (median and p99 in ms, and the ratio to the first size)")
        first = {kind: statistics.median(times[operation, sizes[0], kind]) for kind in KINDS}
        for size in sizes:
            line = f"{size:>11,} "
            for kind in KINDS:
                ordered = sorted(times[operation, size, kind])
                p50, p99 = statistics.median(ordered), ordered[len(ordered) * 99 // 100]
                results.append({"operation": operation, "size": size, "kind": kind, "p50": p50 / 1e6, "p99": p99 / 1e6})
                line += f"   {kind} {p50 / 1e6:7.3f} {p99 / 1e6:8.3f} {p50 / first[kind]:6.2f}"
            print(line)
    return results


def chosen(chance: random.Random, sessions: int, count: int) -> list[Named]:
    """Return ``count`` random sessions, by the names that :func:`benchmarks.tables.fill` gave them."""
    return [(f"user{number % OWNERS}", f"chat {number}") for number in chance.choices(range(1, sessions + 1), k=count)]


def order(process: Any, operation: str, sessions: list[Named]) -> dict[str, Any]:
    send(process, operation, sessions)
    return receive(process)


def send(process: Any, operation: str, sessions: list[Named], threads: int = 1) -> None:
    process.stdin.write(json.dumps({"do": operation, "sessions": sessions, "threads": threads}) + "\n")
    process.stdin.flush()


def receive(process: Any) -> dict[str, Any]:
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"The process {process.args} has ended. See its output above.")
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextlib.contextmanager
def running(kind: str, name: str) -> Iterator[Any]:
    command = [sys.executable, "-m", "benchmarks.growth.contender", kind, name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]  This ends the process.


@contextlib.contextmanager
def database(name: str, keep: bool, kind: str, *counts: int) -> Iterator[str]:
    """Create a database and let a separate process fill it, because Django's settings name a single database.

    With ``keep`` the database stays, and an existing one is used. Without ``keep`` an existing one is an error.
    """
    import psycopg

    with psycopg.connect(SERVER, autocommit=True) as server:
        exists = server.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
        if exists and not keep:
            use = ", or use it with --keep" if kind == "sessions" else ""
            sys.exit(f"The database {name} exists already. Drop it{use}.")
        done = bool(exists)
        try:
            if not exists:
                server.execute(f'CREATE DATABASE "{name}"')
                began = time.perf_counter()
                environment = os.environ | {"DJANGO_SETTINGS_MODULE": "benchmarks.admin_pages.settings"}
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.growth.filling", kind, *map(str, counts)],
                    cwd=ROOT,
                    env=environment | {"BENCH_DATABASE": name},
                    check=True,
                )
                done = True
                print(f"{name}: filled in {time.perf_counter() - began:.0f} s", flush=True)
            yield name
        finally:
            if not (keep and done):
                server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


if __name__ == "__main__":
    main()
