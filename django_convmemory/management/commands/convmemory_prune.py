"""Deletes old data: sessions that nobody uses, records of model calls, and summaries that nothing shows."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import QuerySet

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.management import choices
from django_convmemory.management.choices import counted, interruptible
from django_convmemory.store import transactions

# The number of rows in one transaction.
_BATCH = 500
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
# Some databases have no earlier dates.
_LONGEST_DAYS = 36500
_EXAMPLES = "90d, 12h, 30m or 45s"


class Command(BaseCommand):
    """``manage.py convmemory_prune``: deletes what is older than its three options say. One of them is required.

    The command works in batches. Each batch is a transaction that checks again what it deletes: a session that was used
    in the meantime stays. The command can be stopped at any time, and run again.

    Exits with 0 if everything old is deleted, and with 2 if the command line is invalid.
    """

    help = (
        "Delete sessions that have not been used for a long time, old records of model calls, and old versions of "
        "summaries. Idempotency keys whose messages were removed 30 days ago are deleted each time."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--inactive-for",
            metavar="DURATION",
            help=f"Delete sessions that have not changed for this time, such as {_EXAMPLES}.",
        )
        parser.add_argument(
            "--attempts-older-than",
            metavar="DURATION",
            help=f"Delete records of model calls older than this time, such as {_EXAMPLES}.",
        )
        parser.add_argument(
            "--versions-older-than",
            metavar="DURATION",
            help=f"Delete versions of summaries older than this time, such as {_EXAMPLES}. The current "
            "version stays, and so do the versions from which it was made.",
        )
        choices.add_aliases(parser)
        parser.add_argument("--dry-run", action="store_true", help="Only print what would be deleted.")
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete what is too old."""
        using = choices.database(options)
        aliases, dry_run = choices.aliases(options, using), options["dry_run"]
        prune = {"inactive_for": _sessions, "attempts_older_than": _attempts, "versions_older_than": _versions}
        given = [name for name in prune if options[name] is not None]
        ages = {name: _seconds(options[name], f"--{name.replace('_', '-')}") for name in given}
        if not ages:
            raise CommandError(
                "What should be deleted? Give --inactive-for, --attempts-older-than or --versions-older-than.",
                returncode=2,
            )
        with interruptible():
            results = [prune[name](age, using, aliases, dry_run) for name, age in ages.items()]
            if not dry_run:
                _forget_keys(using, aliases)
        if options["verbosity"] > 0:
            self.stdout.write(f"{', '.join(results)} {'would be deleted' if dry_run else 'deleted'}.")


def _seconds(text: str, option: str) -> int:
    """Return the seconds of the duration ``text``, which is the value of ``option``. Raises CommandError."""
    match = re.fullmatch(r"([0-9]{1,10})([dhms])", text)
    value = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < value <= _LONGEST_DAYS * _SECONDS["d"]:
        raise CommandError(
            f"{option} is {text!r:.100}. Write a whole number above 0, followed by d, h, m or s, as in {_EXAMPLES}. "
            f"The longest duration is {_LONGEST_DAYS}d.",
            returncode=2,
        )
    return value


def _older(rows: Any, column: str, seconds: float) -> Any:
    """Return those of ``rows`` whose time in ``column`` is longer than ``seconds`` ago."""
    before = _ago(seconds, rows)
    return rows.none() if before is None else rows.filter(**{f"{column}__lt": before})


def _ago(seconds: float, rows: QuerySet[Any]) -> dt.datetime | None:
    """Return the database's time ``seconds`` ago, or None if there are no ``rows``.

    It is a value and not an expression. So all statements of a command use the same moment, and PostgreSQL can use an
    index: it computes an expression of its clock again for each row.
    """
    return next(iter(rows.order_by().values_list(Clock(-seconds), flat=True)[:1]), None)


def _id_ranges(rows: models.SessionQuerySet | QuerySet[models.Attempt]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last id of each batch of rows.

    The ids ascend, so each row is read once, although no index has the column by which old rows are selected.
    """
    last = 0
    while ids := list(rows.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:_BATCH]):
        yield ids[0], ids[-1]
        last = ids[-1]


def _sessions(seconds: int, using: str, aliases: list[str], dry_run: bool) -> str:
    sessions = models.Session.objects.using(using).filter(alias__in=aliases)
    inactive = _older(sessions, "updated_at", seconds)
    if dry_run:
        return choices.with_messages(choices.totals(inactive))
    deleted: Counter[str] = Counter()
    for ids in _id_ranges(inactive):
        # This deletes the sessions that are still inactive under the lock.
        deleted += choices.delete(inactive.filter(pk__range=ids))
    return choices.with_messages(deleted)


def _attempts(seconds: int, using: str, aliases: list[str], dry_run: bool) -> str:
    attempts = models.Attempt.objects.using(using).filter(alias__in=aliases)
    old = _older(attempts, "started_at", seconds)
    if dry_run:
        return counted(old.count(), "attempt")
    id_ranges = _id_ranges(old)
    deleted = sum(transactions.run(using, old.filter(pk__range=id_range).delete)[0] for id_range in id_ranges)
    return counted(deleted, "attempt")


def _forget_keys(using: str, aliases: list[str]) -> None:
    """Delete the idempotency keys that count as unused already. So they are no result of the command."""
    forgotten = models.UsedKey.objects.using(using).filter(session__alias__in=aliases).forgotten()
    while session_ids := list(forgotten.values_list("session_id", flat=True).distinct()[:_BATCH]):
        transactions.run(using, models.UsedKey.objects.using(using).filter(session__in=session_ids).forgotten().delete)


def _versions(seconds: int, using: str, aliases: list[str], dry_run: bool) -> str:
    versions = models.Summary.objects.using(using).filter(session__alias__in=aliases)
    before, deleted = _ago(seconds, versions), 0
    if before is None:
        return counted(0, "version")
    sessions = models.Session.objects.using(using).filter(alias__in=aliases, last_version__gt=0)
    for first, last in _id_ranges(sessions):
        in_range = versions.filter(session_id__gte=first, session_id__lte=last).order_by("session_id", "version")
        rows = in_range.values_list("session_id", "session__current_version", *_VERSION_COLUMNS)
        by_session = itertools.groupby(rows.iterator(chunk_size=1000), key=operator.itemgetter(0, 1))
        # All rows are read before some of them are deleted.
        numbers = {
            session_id: len(_unneeded(current, (row[2:] for row in session_rows), before))
            for (session_id, current), session_rows in by_session
        }
        for session_id, number in numbers.items():
            if number:
                deleted += number if dry_run else _delete_versions(session_id, using, before)
    return counted(deleted, "version")


_VERSION_COLUMNS = ("version", "parent_version", "created_at", "invalidated_at")


def _unneeded(
    current: int, versions: Iterable[tuple[int, int | None, dt.datetime, dt.datetime | None]], before: dt.datetime
) -> list[int]:
    """Return the versions older than ``before`` that no kept version descends from, the newest first.

    A version is kept if it is the current one, or if it is valid and not older than ``before``.
    """
    unneeded: list[int] = []
    kept: set[int | None] = {current}
    # A version is newer than the one that it descends from.
    for version, parent, created_at, invalidated_at in sorted(versions, reverse=True):
        if version in kept or (invalidated_at is None and created_at >= before):
            kept.add(parent)
        elif created_at < before:
            unneeded.append(version)
    return unneeded


def _delete_versions(session_id: int, using: str, before: dt.datetime) -> int:
    sessions = models.Session.objects.using(using).filter(pk=session_id)
    versions = models.Summary.objects.using(using).filter(session_id=session_id)

    def delete_batch() -> int:
        # The update locks the row, so that the current version does not change. A session with a lease is left alone:
        # a running rebuild makes versions to which the session does not point yet.
        if not sessions.unleased().lock():
            return 0
        rows = versions.values_list(*_VERSION_COLUMNS)
        unneeded = _unneeded(sessions.values_list("current_version", flat=True).get(), rows, before)
        return versions.filter(version__in=unneeded[:_BATCH]).delete()[0]

    deleted = 0
    while count := transactions.run(using, delete_batch):
        deleted += count
    return deleted
