"""Prepares a database: ``python -m benchmarks.large_jobs.filling (sessions N OWNERS | to-recount | to-reindex)``.

Or ``users N``, for the import."""

from __future__ import annotations

import sys

import django


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from benchmarks import tables
    from benchmarks.large_jobs.__main__ import MESSAGES_EACH
    from django_convmemory import models

    what, *counts = sys.argv[1:]
    if what == "to-recount":
        models.Session.objects.update(counter="another")
        return
    if what == "to-reindex":
        models.Segment.objects.all().delete()
        models.Session.objects.update(indexed_position=0)
        return
    call_command("migrate", verbosity=0)
    if what == "sessions":
        tables.fill(int(counts[0]), MESSAGES_EACH, int(counts[1]))
    else:
        User.objects.bulk_create([User(username=f"user{number}") for number in range(int(counts[0]))])


if __name__ == "__main__":
    main()
