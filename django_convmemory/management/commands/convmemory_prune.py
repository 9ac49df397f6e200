"""Deletes what is old: sessions that nobody uses, the books of model calls, versions that nothing shows."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import QuerySet

from django_convmemory import models
from django_convmemory.management import choices, deletion, durations
from django_convmemory.management.deletion import Holding
from django_convmemory.management.progress import Progress
from django_convmemory.stores import transactions

_DURATION = "90d, 12h, 30m or 45s"


_LARGEST_BATCH = 10_000


class Command(BaseCommand):
    """``manage.py convmemory_prune``: at least one of its three options says what is too old.

    Works in batches, each in a transaction of its own, which looks again at what it deletes: a session that is used in
    the meantime stays. Can be stopped at any time, and run again.

    Exits with 0 when all of it is gone, and with 2 when the command line cannot be carried out.
    """

    help = "Delete sessions that were not used for long, and old records of model calls and versions of summaries."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--inactive-for", metavar="DURATION", help=f"Delete sessions that nothing changed for: {_DURATION}."
        )
        parser.add_argument(
            "--attempts-older-than", metavar="DURATION", help=f"Delete records of model calls older than: {_DURATION}."
        )
        parser.add_argument(
            "--versions-older-than",
            metavar="DURATION",
            help=f"Delete summaries older than: {_DURATION}. The current one stays, and those that it was made from.",
        )
        choices.add_aliases(parser)
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be deleted.")
        parser.add_argument(
            "--batch", type=int, default=500, metavar="N", help="Rows in a transaction (default: %(default)s)."
        )
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete what is too old."""
        using = choices.database(options)
        aliases, batch, dry_run = choices.aliases(options, using), options["batch"], options["dry_run"]
        if not 0 < batch <= _LARGEST_BATCH:
            raise CommandError(f"--batch is {batch}. Give a whole number from 1 to {_LARGEST_BATCH}.", returncode=2)
        ages = {
            name: durations.seconds(options[name], f"--{name.replace('_', '-')}")
            for name in ("inactive_for", "attempts_older_than", "versions_older_than")
            if options[name] is not None
        }
        if not ages:
            raise CommandError(
                "What is too old? Give --inactive-for, --attempts-older-than or --versions-older-than.", returncode=2
            )
        said = []
        if "inactive_for" in ages:
            said.append(str(self._sessions(ages["inactive_for"], using, aliases, options)))
        if "attempts_older_than" in ages:
            said.append(f"{_attempts(ages['attempts_older_than'], using, aliases, batch, dry_run=dry_run)} attempts")
        if "versions_older_than" in ages:
            said.append(f"{_versions(ages['versions_older_than'], using, aliases, batch, dry_run=dry_run)} versions")
        if options["verbosity"] > 0:
            self.stdout.write(f"{', '.join(said)} {'would be deleted' if dry_run else 'deleted'}.")

    def _sessions(self, seconds: int, using: str, aliases: list[str], options: dict[str, Any]) -> Holding:
        sessions = models.Session.objects.using(using).filter(alias__in=aliases)
        before = durations.ago(seconds, sessions)
        deleted, last = Holding(0, 0), 0
        if before is None:
            return deleted
        inactive = sessions.filter(updated_at__lt=before)
        if options["dry_run"]:
            return deletion.holding(inactive)
        with Progress(self.stdout, "deleted", shown=options["verbosity"] > 0) as progress:
            # Onwards by the id: no index knows what is inactive, so that all rows are read, and that once.
            while page := _page(inactive.filter(pk__gt=last), options["batch"]):
                # Those of the page that still are inactive, under the lock. A range names as many as it takes.
                found = deletion.delete(inactive.filter(pk__gt=last, pk__lte=page[-1]))
                deleted += found
                progress.advance(found.sessions)
                last = page[-1]
        return deleted


def _page(rows: QuerySet[Any], batch: int) -> list[int]:
    return list(rows.order_by("pk").values_list("pk", flat=True)[:batch])


def _attempts(seconds: int, using: str, aliases: list[str], batch: int, *, dry_run: bool) -> int:
    attempts = models.Attempt.objects.using(using).filter(alias__in=aliases)
    before = durations.ago(seconds, attempts)
    if before is None:
        return 0
    old = attempts.filter(started_at__lt=before)
    if dry_run:
        return old.count()
    deleted, last = 0, 0
    while page := _page(old.filter(pk__gt=last), batch):
        deleted += transactions.run(using, old.filter(pk__gt=last, pk__lte=page[-1]).delete)[0]
        last = page[-1]
    return deleted


def _versions(seconds: int, using: str, aliases: list[str], batch: int, *, dry_run: bool) -> int:
    versions = models.Summary.objects.using(using).filter(session__alias__in=aliases)
    before = durations.ago(seconds, versions)
    if before is None:
        return 0
    stale = _stale(versions, before, batch)
    return sum(count if dry_run else _thin(session_id, using, before, batch) for session_id, count in stale)


def _stale(versions: models.SummaryQuerySet, before: dt.datetime, batch: int) -> Iterator[tuple[int, int]]:
    """Yield the sessions with versions that can go, and how many those are."""
    last = 0
    while page := list(
        versions.filter(created_at__lt=before, session_id__gt=last)
        .order_by("session_id")
        .values_list("session_id", flat=True)
        .distinct()[:batch]
    ):
        rows = versions.filter(session_id__gt=last, session_id__lte=page[-1]).order_by("session_id", "version")
        columns = ("session_id", "session__current_version", *_OF_A_LINE)
        of_sessions = itertools.groupby(
            rows.values_list(*columns).iterator(chunk_size=1000), key=operator.itemgetter(0, 1)
        )
        # Read to the end before anything of them is deleted.
        yield from [
            (session_id, len(stale))
            for (session_id, current), those in of_sessions
            if (stale := _outside_line(current, (row[2:] for row in those), before))
        ]
        last = page[-1]


_OF_A_LINE = ("version", "parent_version", "created_at", "invalidated_at")


def _outside_line(
    current: int, versions: Iterable[tuple[int, int | None, dt.datetime, dt.datetime | None]], before: dt.datetime
) -> list[int]:
    """Return the versions from ``before`` that no version was made from which stays and is valid, the newest first."""
    rows = {version: (parent, created_at, invalidated_at) for version, parent, created_at, invalidated_at in versions}
    kept: set[int] = set()
    for version, (_, created_at, invalidated_at) in rows.items():
        one: int | None = version
        if version != current and (created_at < before or invalidated_at is not None):
            continue
        while one in rows and one not in kept:
            kept.add(one)
            one = rows[one][0]
    stale = [version for version, row in rows.items() if version not in kept and row[1] < before]
    return sorted(stale, reverse=True)


def _thin(session_id: int, using: str, before: dt.datetime, batch: int) -> int:
    sessions = models.Session.objects.using(using).filter(pk=session_id)
    versions = models.Summary.objects.using(using).filter(session_id=session_id)

    def work() -> int:
        # The row's lock keeps the pointer where it is. What a compaction is at work on is left alone: a rebuild makes
        # a line that nothing points to yet.
        if not sessions.unleased().lock():
            return 0
        rows = versions.values_list(*_OF_A_LINE)
        stale = _outside_line(sessions.values_list("current_version", flat=True).get(), rows, before)
        return versions.filter(version__in=stale[:batch]).delete()[0]

    deleted = 0
    while found := transactions.run(using, work):
        deleted += found
    return deleted
