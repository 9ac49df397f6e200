"""Measures a table of messages with 64 partitions: ``python -m benchmarks.partitions``.

Each table exists twice, with partitions and without. Append and load take turns on both, planning included. The store
that does not know of partitions takes part too. Then the largest table is converted while a process appends. Creates
databases on the local PostgreSQL and drops them at the end.
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.partitions", description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[100, 10_000], help=f"of {MESSAGES} messages each")
    parser.add_argument("--turns", type=int, default=60, help=f"of {TURN} operations each")
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--rate", type=float, default=50.0, help="appends a second during the conversion")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench/partitions.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"tables": []}
    for count in arguments.sessions:
        with (
            database(f"{PREFIX}_{count}", False, "sessions", count) as plain,
            copied(plain, f"{plain}_parts") as parts,
        ):
            print(f"\n{count * MESSAGES:,} messages, {arguments.partitions} partitions")
            results["tables"] += of_tables(count, plain, parts, arguments)
            if count == max(arguments.sessions):
                results["conversion"] = of_conversion(count, plain, arguments)
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


def of_tables(count: int, plain: str, parts: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    convert(parts, arguments)
    contenders = {"without": ("ours", plain), "with": ("ours", parts), "with, one statement": ("naive", parts)}
    times: dict[Any, list[int]] = defaultdict(list)
    chance = random.Random(0)
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(running(*contender)) for name, contender in contenders.items()}
        for operation in ("load", "append"):
            for turn in range(-1, arguments.turns):
                sessions = chosen(chance, count, TURN)
                for name in chance.sample(list(contenders), len(contenders)):
                    durations = order(processes[name], operation, sessions)["ns"]
                    if turn >= 0:  # The first turn is the warm-up.
                        times[operation, name] += durations
    results = []
    for operation in ("load", "append"):
        first = statistics.median(times[operation, "without"])
        for name in contenders:
            ordered = sorted(times[operation, name])
            p50, p99 = statistics.median(ordered), ordered[len(ordered) * 99 // 100]
            figures = {"p50": p50 / 1e6, "p99": p99 / 1e6, "ratio": p50 / first}
            results.append({"operation": operation, "messages": count * MESSAGES, "partitions": name, **figures})
            print(f"{operation:<7} {name:<20} {p50 / 1e6:7.3f} {p99 / 1e6:8.3f} ms {p50 / first:6.2f}", flush=True)
    return results


@contextlib.contextmanager
def running(kind: str, name: str) -> Iterator[Any]:
    command = [sys.executable, "-m", "benchmarks.partitions.contender", kind, name]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()  # type: ignore[union-attr]  This ends the process.


def of_conversion(count: int, name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Convert a table while a process appends. Compare its appends with those in as many seconds before."""
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
            process.terminate()
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
    print(f"conversion of {count * MESSAGES:,} messages: {seconds:.1f} s")
    for when in ("before", "during"):
        p50, p99, longest = (figures[f"{when} {figure}"] for figure in ("p50", "p99", "longest"))
        print(f"appends {when:<7} median {p50:7.2f}, p99 {p99:7.2f}, longest {longest:7.1f} ms", flush=True)
    return figures


if __name__ == "__main__":
    main()
