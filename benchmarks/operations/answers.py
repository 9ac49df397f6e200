"""Compares an answer with an append_and_load and an append: ``python -m benchmarks.operations.answers``.

The model takes no time. The three ways take turns, in a random order each time. So do the databases.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import tempfile
from collections.abc import Iterator

from benchmarks.operations.__main__ import TURN, WARM_UP, Entry, database, order, running, vacuum

WAYS = ("by_hand", "by_hand_and_given_back", "answer")
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
        times: dict[tuple[str, str], list[int]] = {(title, way): [] for title in processes for way in WAYS}
        chance = random.Random(1)
        for number in range(arguments.turns):
            for title, way in chance.sample(list(times), len(times)):
                session = f"{way}{number}"
                order(processes[title], "fill", session, SIZE)
                times[title, way] += order(processes[title], way, session, WARM_UP + TURN)[WARM_UP:]
    for title in processes:
        by_hand, given_back, answer = (statistics.median(times[title, way]) / 1e6 for way in WAYS)
        ratios = f"{answer / by_hand:.2f} and {answer / given_back:.2f} times"
        print(f"{title:<17} by hand {by_hand:.2f} ms, given back {given_back:.2f}, answer {answer:.2f}: {ratios}")


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
