"""Compares an answer with an append_and_load and an append: ``python -m benchmarks.operations.answers``.

The model takes no time. The ways, the databases and the clocks take turns, in a random order each time. On a busy
machine, the processor time of our process tells more than the time that has passed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import statistics
import tempfile
from collections.abc import Iterator

from benchmarks.operations.__main__ import TURN, WARM_UP, Entry, database, order, running, vacuum

WAYS = ("by_hand", "by_hand_and_given_back", "answer")
CLOCKS = {"perf_counter_ns": "passed", "process_time_ns": "of the processor"}
# About as many messages as a load shows.
SIZE = 40


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operations.answers", description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=40, help=f"of {TURN} answers each")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        processes = {}
        for number, (title, contender, place) in enumerate(
            [
                ("PostgreSQL", "ours:Convmemory", database(100)),
                ("PostgreSQL, pool", "ours:Pooled", database(101)),
                ("SQLite", "ours:Convmemory", tempfile.TemporaryDirectory()),
                ("MariaDB", "ours:Convmemory", mariadb()),
            ]
        ):
            address = stack.enter_context(place)
            entry = Entry(title, contender, postgresql=number < 2, peer=False)
            processes[title] = stack.enter_context(running(entry, address, None))
            order(processes[title], "fill", "first", SIZE)
            if entry.postgresql:
                vacuum(address)
        keys = list(itertools.product(processes, CLOCKS, WAYS))
        times: dict[tuple[str, str, str], list[int]] = {key: [] for key in keys}
        chance = random.Random(1)
        for number in range(arguments.turns):
            for title, clock, way in chance.sample(keys, len(keys)):
                session = f"{clock}{way}{number}"
                order(processes[title], "fill", session, SIZE)
                times[title, clock, way] += order(processes[title], way, session, WARM_UP + TURN, clock)[WARM_UP:]
    for title, clock in itertools.product(processes, CLOCKS):
        by_hand, given_back, answer = (statistics.median(times[title, clock, way]) / 1e6 for way in WAYS)
        print(
            f"{title:<17} ms {CLOCKS[clock]}: by hand {by_hand:.2f}, given back {given_back:.2f}, answer {answer:.2f}, "
            f"{answer / by_hand:.2f} and {answer / given_back:.2f} times as much"
        )


@contextlib.contextmanager
def mariadb() -> Iterator[str]:
    import MySQLdb

    name = f"bench_answers_{os.getpid()}"
    with contextlib.closing(MySQLdb.connect(host="127.0.0.1", user="root")) as server:
        server.query(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        try:
            yield f"mysql://root@127.0.0.1:3306/{name}"
        finally:
            server.query(f"DROP DATABASE {name}")


if __name__ == "__main__":
    main()
