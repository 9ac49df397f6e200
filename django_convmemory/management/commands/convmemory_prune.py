"""Deletes old data: sessions that nobody uses, and records of model calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
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
    """``manage.py convmemory_prune``: deletes what is older than its two options say. One of them is required.

    The command works in batches. Each batch is a transaction that checks again what it deletes: a session that was used
    in the meantime stays. The command can be stopped at any time, and run again.

    Exits with 0 if everything old is deleted, and with 2 if the command line is invalid.
    """

    help = (
        "Delete sessions that have not been used for a long time, and old records of model calls. Idempotency keys "
        "whose messages were removed 30 days ago are deleted each time."
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
        choices.add_aliases(parser)
        parser.add_argument("--dry-run", action="store_true", help="Only print what would be deleted.")
        choices.add_database(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete what is too old."""
        using = choices.database(options)
        aliases, dry_run = choices.aliases(options, using), options["dry_run"]
        prune = {"inactive_for": _sessions, "attempts_older_than": _attempts}
        given = [name for name in prune if options[name] is not None]
        ages = {name: _seconds(options[name], f"--{name.replace('_', '-')}") for name in given}
        if not ages:
            raise CommandError("What should be deleted? Give --inactive-for or --attempts-older-than.", returncode=2)
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
    # The database's time is a value here and not an expression. So all statements use the same moment, and PostgreSQL
    # can use an index: it computes an expression of its clock again for each row.
    before = next(iter(rows.order_by().values_list(Clock(-seconds), flat=True)[:1]), None)
    return rows.none() if before is None else rows.filter(**{f"{column}__lt": before})


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
