"""Fills a database: ``python -m benchmarks.growth.filling lengths 10 1000`` or ``… sessions 10000``."""

from __future__ import annotations

import sys

import django


def main() -> None:
    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from benchmarks import tables
    from benchmarks.growth.__main__ import LENGTHS_LIMIT, LIMIT, MESSAGES, OWNERS

    call_command("migrate", verbosity=0)
    kind, *counts = sys.argv[1:]
    if kind == "sessions":
        tables.fill(int(counts[0]), MESSAGES, OWNERS, LIMIT)
        return
    for count in counts:
        tables.conversation(f"length {count}", int(count), limit=LENGTHS_LIMIT)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


if __name__ == "__main__":
    main()
