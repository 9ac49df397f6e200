"""Compares append and load with the drivers and the peers: ``python -m benchmarks.operations``, or ``make bench``.

Each contender is a process. They take many turns, in a random order each time, so that other activity of the machine
affects all of them. Prints milliseconds and ratios to the driver on the same database, and writes them as JSON.
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
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
# Operations in a turn, few enough for many turns. The first ones are not counted, because the caches still hold other
# contenders' data.
WARM_UP, TURN = 3, 10
# After so many appends, of two pages or more each, SQLite has written its write-ahead log back.
LOGGED = 600
# Other conversations in the tables, and their messages. Otherwise the database would read the whole table.
OTHERS, OF_EACH = 50, 100


class Entry(NamedTuple):
    """A contender: its title, its ``module:class``, its database, and whether it is another library's."""

    title: str
    path: str
    postgresql: bool
    peer: bool = True


ENTRIES = [
    Entry("psycopg", "raw:Driver", postgresql=True, peer=False),
    Entry("psycopg, not prepared", "raw:Unprepared", postgresql=True, peer=False),
    Entry("psycopg, async", "raw:Asynchronous", postgresql=True, peer=False),
    Entry("django_convmemory", "ours:Convmemory", postgresql=True, peer=False),
    Entry("django_convmemory, prepared", "ours:Prepared", postgresql=True, peer=False),
    Entry("django_convmemory, async", "ours:Asynchronous", postgresql=True, peer=False),
    Entry("a plain Django model", "naive:Naive", postgresql=True, peer=False),
    Entry("a plain Django model, last 40", "naive:Limited", postgresql=True, peer=False),
    Entry("LangChain SQLChatMessageHistory", "langchain_history:History", postgresql=True),
    Entry("Agents SDK SQLAlchemySession", "agents_sdk:Sessions", postgresql=True),
    Entry("LlamaIndex Memory", "llama_index_memory:Queue", postgresql=True),
    Entry("sqlite3", "raw:Driver", postgresql=False, peer=False),
    Entry("sqlite3, async", "raw:Asynchronous", postgresql=False, peer=False),
    Entry("django_convmemory", "ours:Convmemory", postgresql=False, peer=False),
    Entry("django_convmemory, async", "ours:Asynchronous", postgresql=False, peer=False),
    Entry("a plain Django model", "naive:Naive", postgresql=False, peer=False),
    Entry("a plain Django model, last 40", "naive:Limited", postgresql=False, peer=False),
    Entry("LangChain SQLChatMessageHistory", "langchain_history:History", postgresql=False),
    Entry("Agents SDK SQLiteSession", "agents_sdk:Sessions", postgresql=False),
    Entry("LlamaIndex Memory", "llama_index_memory:Queue", postgresql=False),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operations", description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 1000, 10_000, 100_000], help="messages stored")
    parser.add_argument("--turns", type=int, default=40, help=f"of {TURN} operations each")
    parser.add_argument(
        "--budget", type=float, default=20.0, help="seconds after which a contender takes no further turns"
    )
    parser.add_argument("--peers", help="the Python of an environment with peers.txt (default: skip the peers)")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench/operations.json")
    arguments = parser.parse_args()
    if min(arguments.turns, *arguments.sizes) < 1:
        parser.error("--turns and --sizes must be at least 1.")
    if arguments.peers and not os.access(arguments.peers, os.X_OK):
        parser.error(f"--peers: there is no Python at {arguments.peers}. Install it: make .venv-peers/.installed")
    entries = [entry for entry in ENTRIES if arguments.peers or not entry.peer]
    results = []
    with contextlib.ExitStack() as stack:
        processes, places = {}, {}
        for number, entry in enumerate(entries):
            place = database(number) if entry.postgresql else tempfile.TemporaryDirectory()
            places[entry] = stack.enter_context(place)
            processes[entry] = stack.enter_context(running(entry, places[entry], arguments.peers))
        # Fill everything before the first load, because PostgreSQL keeps the plans that it made for smaller tables.
        lengths = {f"other{number}": OF_EACH for number in range(OTHERS)}
        lengths |= {f"s{size}": size for size in arguments.sizes}
        for entry, process in processes.items():
            for name, length in lengths.items():
                order(process, "fill", name, length)
            if entry.postgresql:
                vacuum(places[entry])
            else:
                # The write-ahead log grows with each append until it is written back for the first time.
                order(process, "append", "other0", LOGGED)
        for size in arguments.sizes:
            results += measured(processes, size, arguments)
    report(results)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


def measured(processes: dict[Entry, Any], size: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    for operation in ("load", "append"):
        times: dict[Entry, list[int]] = {entry: [] for entry in processes}
        chance = random.Random(size)
        for _ in range(arguments.turns):
            # In a random order, so that no contender always follows the same one in the caches and on the disk.
            for entry, process in chance.sample(list(processes.items()), len(processes)):
                if sum(times[entry]) > arguments.budget * 1e9:
                    continue
                times[entry] += order(process, operation, f"s{size}", WARM_UP + TURN)[WARM_UP:]
        for entry, entry_times in times.items():
            ordered = sorted(entry_times)
            results.append(
                {
                    "size": size,
                    "operation": operation,
                    "database": "postgresql" if entry.postgresql else "sqlite",
                    "contender": entry.title,
                    "count": len(ordered),
                    "p50": statistics.median(ordered) / 1e6,
                    "p95": ordered[int(len(ordered) * 0.95)] / 1e6,
                    "p99": ordered[int(len(ordered) * 0.99)] / 1e6,
                }
            )
    return results


def report(results: list[dict[str, Any]]) -> None:
    floors = {
        (result["size"], result["operation"], result["database"]): result["p50"]
        for result in results
        if result["contender"] in ("psycopg", "sqlite3")
    }
    for key in dict.fromkeys((result["database"], result["operation"], result["size"]) for result in results):
        database, operation, size = key
        print(f"\n{database}, {operation}, {size:,} messages stored (ms; number of measurements)")
        for row in results:
            if (row["database"], row["operation"], row["size"]) == key:
                ratio = row["p50"] / floors[size, operation, database]
                print(
                    f"  {row['contender']:<34} p50 {row['p50']:9.3f}   p95 {row['p95']:9.3f}   p99 {row['p99']:9.3f}"
                    f"   {ratio:7.2f} times the driver   ({row['count']})"
                )


def order(process: Any, operation: str, session: str, times: int, clock: str = "perf_counter_ns") -> list[int]:
    process.stdin.write(json.dumps({"do": operation, "session": session, "times": times, "clock": clock}) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"The process {process.args} has ended. See its output above.")
    durations: list[int] = json.loads(line)["ns"]
    return durations


def vacuum(place: str) -> None:
    """Run what autovacuum would run a minute later."""
    import psycopg

    with psycopg.connect(place, autocommit=True) as server:
        server.execute("VACUUM ANALYZE")


@contextlib.contextmanager
def running(entry: Entry, place: str, peers: str | None) -> Iterator[Any]:
    # abspath, not resolve(): the Python of an environment is a symbolic link.
    python = os.path.abspath(peers) if entry.peer and peers else sys.executable  # noqa: PTH100
    command = [python, str(HERE / "contender.py"), entry.path, place]
    environment = os.environ | {"PYTHONPATH": "" if entry.peer else str(ROOT), "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE
    ) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]  This ends the process.


@contextlib.contextmanager
def database(number: int) -> Iterator[str]:
    import psycopg

    name = f"bench_operations_{os.getpid()}_{number}"
    with psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            yield f"postgresql://postgres@127.0.0.1:5432/{name}"
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


if __name__ == "__main__":
    main()
