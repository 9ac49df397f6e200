"""The process of one contender: ``python -m benchmarks.partitions.contender ours|naive|driver DATABASE``.

It takes the orders of :mod:`benchmarks.growth.contender`. ``naive`` sends the statements of a table without
partitions.
"""

from __future__ import annotations

import json
import sys

from benchmarks.growth.contender import Driver, Ours, measure


class Naive(Ours):
    """The store as it would be if it did not know of partitions."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        from django_convmemory.store import database as store_database

        store_database.is_partitioned = lambda connection: False  # type: ignore[assignment]


def main() -> None:
    kind, database = sys.argv[1:]
    contender: Ours | Driver = {"ours": Ours, "naive": Naive, "driver": Driver}[kind](database)
    for line in sys.stdin:
        print(json.dumps({"ns": measure(contender, json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
