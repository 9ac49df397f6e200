"""The rows of the aliases: the pause of each, and how far its sessions were compared with a new threshold.

:mod:`.rules.pause` decides what follows from a call. A row changes from one state to the next by an UPDATE that takes
effect only if nobody else has changed it meanwhile. So a process that is stopped here holds no lock, and every process
sees the state of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import Case, Exists, OuterRef, QuerySet, Subquery, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.rules.pause import Pause
from django_convmemory.rules.values import AttemptOutcome
from django_convmemory.store import compiled, transactions
from django_convmemory.store.database import Database

_TRIES = 200
# The fields of a state without its time. If these are equal, so is the error.
_COMPARED = Pause._fields[1:-1]


class Pauses(Database):
    """The pause of each alias."""

    def pause_of(self, alias: str) -> Pause:
        """Return the state of the alias's own model."""
        return _read(self.using, alias)

    def change_pause(self, alias: str, change: Callable[[Pause], Pause]) -> tuple[Pause, Pause]:
        """Replace the state by what ``change`` makes of it. Return the states before and after.

        ``change`` is called again if another process has changed the state meanwhile.
        """
        using = self.using
        for left in reversed(range(_TRIES)):
            # In a transaction that sees an earlier state, only a locking read finds the present one.
            before = _read(using, alias, lock=transactions.reads_earlier(using))
            after = change(before)
            if after == before:
                return before, before
            rows = rows_of(using, alias)
            # It fails if another process has succeeded. The last try finds also a row that no comparison finds, because
            # somebody has written its times in another form.
            columns = {name: getattr(after, name) for name in (*_COMPARED, "error")}
            if transactions.update(_in_state(rows, before) if left else rows, **columns):
                break
            create(using, alias)
        return before, after

    def has_folded_another(self, alias: str, session_id: int, seconds: float) -> bool:
        """Whether the alias's own model has folded another session since this session's last failing call began.

        If there was none, since ``seconds`` ago.
        """
        attempts = models.Attempt.objects.using(self.using)
        began = Case(When(outcome=AttemptOutcome.UNAVAILABLE, then="started_at"), default=Clock(-seconds))
        newest = attempts.filter(session=session_id).order_by("-pk").values_list(began)[:1]
        since = Coalesce(Subquery(newest), Clock(-seconds))
        version = models.Summary.objects.filter(session=OuterRef("session"), version=OuterRef("version"))
        folded = attempts.filter(alias=alias, outcome=AttemptOutcome.PUBLISHED, started_at__gte=since)
        return folded.exclude(session=session_id).exclude(Exists(version.filter(fallback=True))).exists()


def _read(using: str, alias: str, *, lock: bool = False) -> Pause:
    for row in _reading(using, lock=lock).read(alias=alias):
        return Pause(*row)
    return Pause(timezone.now())


@compiled.once
def _reading(using: str, *, lock: bool) -> compiled.Selection:
    return compiled.selection(rows_of(using, compiled.Slot("alias")), Clock(), *_COMPARED, "error", lock=lock)


def _in_state(rows: QuerySet[models.AliasState], state: Pause) -> QuerySet[models.AliasState]:
    values = {name: getattr(state, name) for name in _COMPARED}
    return rows.filter(
        **{f"{name}__isnull" if value is None else name: value is None or value for name, value in values.items()}
    )


def rows_of(using: str, alias: Any) -> QuerySet[models.AliasState]:
    """Return the row of the alias, if there is one."""
    return models.AliasState.objects.using(using).filter(alias=alias)


def create(using: str, alias: str) -> None:
    """Create the row of the alias if it is missing."""
    if not rows_of(using, alias).exists():
        rows = models.AliasState.objects.using(using)
        transactions.run(using, lambda: rows.bulk_create([models.AliasState(alias=alias)], ignore_conflicts=True))
