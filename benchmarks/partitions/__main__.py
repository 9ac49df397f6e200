"""Measures a table of messages with 64 partitions: ``python -m benchmarks.partitions``.

Each table exists twice, with partitions and without. Append and load take turns on all of them, planning included.
psycopg takes part with its own statements, and the store as it would be if it did not know of partitions. Then the
largest table is converted while a process appends, and its messages are counted. Creates databases on the local
PostgreSQL and drops them at the end.
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

from benchmarks.growth.__main__ import MESSAGES, ROOT, SERVER, TURN, chosen, database, order

PREFIX = "bench_partitions"
# Whose operations, and whether the table has partitions.
CONTENDERS = {
    "without": ("ours", False),
    "with": ("ours", True),
    "with, one statement": ("naive", True),
    "driver, without": ("driver", False),
    "driver, with": ("driver", True),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partitions", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--sessions", type=int, nargs="+", default=[100, 10_000, 100_000], help=f"of {MESSAGES} messages each"
    )
    parser.add_argument("--turns", type=int, default=30, help=f"of {TURN} operations each")
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--rate", type=float, default=50.0, help="appends a second during the conversion")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench/partitions.json")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        names = {}
        for count in arguments.sessions:
            plain = stack.enter_context(database(f"{PREFIX}_{count}", False, "sessions", count))
            parts = stack.enter_context(copied(plain, f"{plain}_parts"))
            print(f"{parts}: converted in {convert(parts, arguments):.0f} s", flush=True)
            names |= {(count, False): plain, (count, True): parts}
        results: dict[str, Any] = {"tables": of_tables(names, arguments)}
        largest = max(arguments.sessions)
        results["conversion"] = of_conversion(largest, names[largest, False], arguments)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=1) + "\n")


@contextlib.contextmanager
def copied(name: str, copy: str) -> Iterator[str]:
    """Copy a database for the block."""
    import psycopg

    with psycopg.connect(SERVER, autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{copy}" TEMPLATE "{name}"')
        try:
            yield copy
        finally:
            server.execute(f'DROP DATABASE "{copy}" WITH (FORCE)')


def convert(name: str, arguments: argparse.Namespace) -> float:
    """Convert the table, and return the seconds."""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "benchmarks.admin_pages.settings", "BENCH_DATABASE": name}
    began = time.monotonic()
    command = ["convmemory_partition", "--partitions", str(arguments.partitions), "--verbosity", "0"]
    subprocess.run([sys.executable, "-m", "django", *command], cwd=ROOT, env=environment, check=True)
    return time.monotonic() - began


def of_tables(names: dict[tuple[int, bool], str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    counts = dict.fromkeys(count for count, _ in names)
    times: dict[Any, list[int]] = defaultdict(list)
    chance = random.Random(0)
    with contextlib.ExitStack() as stack:
        processes = {
            (count, contender): stack.enter_context(running(kind, names[count, has_partitions]))
            for count in counts
            for contender, (kind, has_partitions) in CONTENDERS.items()
        }
        for operation in ("load", "append"):
            for turn in range(-1, arguments.turns):
                sessions = {count: chosen(chance, count, TURN) for count in counts}
                for (count, contender), process in chance.sample(list(processes.items()), len(processes)):
                    durations = order(process, operation, sessions[count])["ns"]
                    if turn >= 0:  # The first turn is the warm-up.
                        times[operation, count, contender] += durations
    results = []
    for operation in ("load", "append"):
        print(
            f"\n{operation} (median and p99 in ms, and the median by that without partitions, and by the first size's)"
        )
        for count in counts:
            for contender in CONTENDERS:
                ordered = sorted(times[operation, count, contender])
                p50, p99 = statistics.median(ordered), ordered[len(ordered) * 99 // 100]
                ratios = {
                    "of without": p50 / statistics.median(times[operation, count, "without"]),
                    "of first": p50 / statistics.median(times[operation, next(iter(counts)), contender]),
                }
                results.append(
                    {
                        "operation": operation,
                        "messages": count * MESSAGES,
                        "contender": contender,
                        "p50": p50 / 1e6,
                        "p99": p99 / 1e6,
                        **ratios,
                    }
                )
                line = "".join(f" {ratio:6.2f}" for ratio in ratios.values())
                print(f"{count * MESSAGES:>11,} {contender:<20} {p50 / 1e6:7.3f} {p99 / 1e6:8.3f}{line}", flush=True)
    return results


@contextlib.contextmanager
def running(kind: str, name: str) -> Iterator[Any]:
    command = [sys.executable, "-m", "benchmarks.partitions.contender", kind, name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]  This ends the process.


def of_conversion(count: int, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Convert a table while a process appends, and compare its appends with those before. Count the messages."""
    stored = messages_of(name)
    file = ROOT / "build/bench/partitions-writer"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as output:
        command = [sys.executable, "-m", "benchmarks.partitions.writer", name, str(count), str(arguments.rate)]
        with subprocess.Popen(command, cwd=ROOT, stdout=output) as process:
            # The first five seconds warm up. The next fifteen are the appends to compare with.
            time.sleep(20)
            began = time.monotonic()
            seconds = convert(name, arguments)
            # The last appends may have waited for the swap.
            time.sleep(2)
            process.terminate()  # It ends after the append at hand.
    appends = [tuple(map(float, line.split())) for line in file.read_text().splitlines()]
    before = sorted(took for due, took in appends if began - 15 < due < began)
    during = sorted(took for due, took in appends if began < due < began + seconds)
    figures = {
        "messages": count * MESSAGES,
        "seconds": seconds,
        **{
            f"{when} {name}": value
            for when, taken in (("before", before), ("during", during))
            for name, value in (
                ("count", len(taken)),
                ("p50", taken[len(taken) // 2]),
                ("p99", taken[len(taken) * 99 // 100]),
                ("longest", taken[-1]),
            )
        },
    }
    print(f"\nconversion of {count * MESSAGES:,} messages: {seconds:.1f} s")
    for when in ("before", "during"):
        p50, p99, longest = (figures[f"{when} {figure}"] for figure in ("p50", "p99", "longest"))
        print(f"appends {when:<7} median {p50:7.2f}, p99 {p99:7.2f}, longest {longest:7.1f} ms", flush=True)
    lost = stored + len(appends) - messages_of(name)
    print(f"{len(appends)} messages were appended, and {lost} of all messages are missing.", flush=True)
    return figures | {"appends": len(appends), "missing": lost}


def messages_of(name: str) -> int:
    """Count the messages of a database. Those of each session must reach up to its last position."""
    import psycopg

    with psycopg.connect(SERVER.rpartition("/")[0] + f"/{name}") as server:
        row = server.execute(
            "SELECT (SELECT count(*) FROM convmemory_message), (SELECT sum(last_position) FROM convmemory_session)"
        ).fetchone()
    stored, counted = row or (0, 0)
    if stored != counted:
        sys.exit(f"{name} has {stored} messages, but its sessions have counted {counted}.")
    return int(stored)


if __name__ == "__main__":
    main()
