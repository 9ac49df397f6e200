"""What append and load cost beside the drivers and the peers: ``python -m benchmarks.operations``, or ``make bench``.

Each contender is a process, and each has its turn, again and again and in another order each time, so that what else
the machine does meets all of them. Prints milliseconds and ratios to the driver on the same database, and writes them
as JSON.
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
# Operations of a turn: few enough for many turns of each. The first ones find the caches as the others left them, and
# are not counted.
WARM_UP, TURN = 3, 10
# Appends after which the write-ahead log of SQLite has been written back, be it of two pages each.
LOGGED = 600
# Other conversations in the tables, and the messages of each: a table with nothing else in it is read as a whole.
OTHERS, OF_EACH = 50, 100


class Entry(NamedTuple):
    """A contender: how it is called, what it is, which database it uses, and whether it is a peer's."""

    title: str
    what: str
    postgresql: bool
    peer: bool = True


ENTRIES = [
    Entry("psycopg", "raw:Driver", postgresql=True, peer=False),
    Entry("psycopg, not prepared", "raw:Unprepared", postgresql=True, peer=False),
    Entry("django_convmemory", "ours:Convmemory", postgresql=True, peer=False),
    Entry("django_convmemory, prepared", "ours:Prepared", postgresql=True, peer=False),
    Entry("django_convmemory, async", "ours:Asynchronous", postgresql=True, peer=False),
    Entry("a plain Django model", "naive:Naive", postgresql=True, peer=False),
    Entry("a plain Django model, last 40", "naive:Limited", postgresql=True, peer=False),
    Entry("LangChain SQLChatMessageHistory", "langchain_history:History", postgresql=True),
    Entry("Agents SDK SQLAlchemySession", "agents_sdk:Sessions", postgresql=True),
    Entry("LlamaIndex Memory", "llama_index_memory:Queue", postgresql=True),
    Entry("sqlite3", "raw:Driver", postgresql=False, peer=False),
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
        "--budget", type=float, default=20.0, help="seconds after which one is left out of what turns are left"
    )
    parser.add_argument("--peers", help="the Python of an environment with peers.txt; without it they are left out")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench/operations.json")
    arguments = parser.parse_args()
    if min(arguments.turns, *arguments.sizes) < 1:
        parser.error("--turns and --sizes take numbers from 1 on.")
    if arguments.peers and not os.access(arguments.peers, os.X_OK):
        parser.error(f"--peers: there is no Python at {arguments.peers}; make .venv-peers/.installed makes one.")
    entries = [entry for entry in ENTRIES if arguments.peers or not entry.peer]
    results = []
    with contextlib.ExitStack() as stack:
        processes, places = {}, {}
        for number, entry in enumerate(entries):
            place = database(number) if entry.postgresql else tempfile.TemporaryDirectory()
            places[entry] = stack.enter_context(place)
            processes[entry] = stack.enter_context(running(entry, places[entry], arguments.peers))
        # All of it before the first load: PostgreSQL keeps plans for a table that is not what it was any more.
        lengths = {f"other{number}": OF_EACH for number in range(OTHERS)}
        lengths |= {f"s{size}": size for size in arguments.sizes}
        for entry, process in processes.items():
            for name, length in lengths.items():
                order(process, "fill", name, length)
            if entry.postgresql:
                vacuum(places[entry])
            else:
                # Until a write-ahead log was written back once, it grows with each append.
                order(process, "append", "other0", LOGGED)
        for size in arguments.sizes:
            results += measured(processes, size, arguments)
    report(results)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


def measured(processes: dict[Entry, Any], size: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for what in ("load", "append"):
        taken: dict[Entry, list[int]] = {entry: [] for entry in processes}
        chance = random.Random(size)
        for _ in range(arguments.turns):
            # In another order each time: what one leaves to the next, in caches and on the disk, meets all of them.
            for entry, process in chance.sample(list(processes.items()), len(processes)):
                if sum(taken[entry]) > arguments.budget * 1e9:
                    continue
                taken[entry] += order(process, what, f"s{size}", WARM_UP + TURN)[WARM_UP:]
        for entry, each in taken.items():
            ordered = sorted(each)
            found.append(
                {
                    "size": size,
                    "operation": what,
                    "database": "postgresql" if entry.postgresql else "sqlite",
                    "contender": entry.title,
                    "count": len(each),
                    "p50": statistics.median(ordered) / 1e6,
                    "p95": ordered[int(len(ordered) * 0.95)] / 1e6,
                    "p99": ordered[int(len(ordered) * 0.99)] / 1e6,
                }
            )
    return found


def report(results: list[dict[str, Any]]) -> None:
    floors = {
        (one["size"], one["operation"], one["database"]): one["p50"]
        for one in results
        if one["contender"] in ("psycopg", "sqlite3")
    }
    for key in dict.fromkeys((one["database"], one["operation"], one["size"]) for one in results):
        database, operation, size = key
        print(f"\n{database}, {operation}, {size:,} messages stored (ms; how many were timed)")
        for one in results:
            if (one["database"], one["operation"], one["size"]) == key:
                ratio = one["p50"] / floors[size, operation, database]
                print(
                    f"  {one['contender']:<34} p50 {one['p50']:9.3f}   p95 {one['p95']:9.3f}   p99 {one['p99']:9.3f}"
                    f"   {ratio:7.2f} times the driver   ({one['count']})"
                )


def order(process: Any, what: str, session: str, times: int) -> list[int]:
    process.stdin.write(json.dumps({"do": what, "session": session, "times": times}) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args} ended.")
    taken: list[int] = json.loads(line)["ns"]
    return taken


def vacuum(place: str) -> None:
    """Do at once what PostgreSQL does by itself a minute later."""
    import psycopg

    with psycopg.connect(place, autocommit=True) as server:
        server.execute("VACUUM ANALYZE")


@contextlib.contextmanager
def running(entry: Entry, place: str, peers: str | None) -> Iterator[Any]:
    # Not resolved: an environment's Python is a link.
    python = os.path.abspath(peers) if entry.peer and peers else sys.executable  # noqa: PTH100
    command = [python, str(HERE / "contender.py"), entry.what, place]
    environment = os.environ | {"PYTHONPATH": "" if entry.peer else str(ROOT), "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE
    ) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]  which ends it


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
