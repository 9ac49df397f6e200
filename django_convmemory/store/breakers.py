"""The rows of the breakers. Each function is a few statements that need no transaction.

So a process that is stopped here holds no lock, and every process sees the state of the others.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Coalesce
from django.utils import timezone

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.rules.breaker import KNOWN_FOR, OPEN, Breaker, Reason
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import AttemptOutcome
from django_convmemory.store import compiled, transactions
from django_convmemory.store.compiled import Slot
from django_convmemory.store.database import Database

_MAX_ERROR = 1000
_OPEN = Q(reason__in=sorted(OPEN))


class Breakers(Database):
    """The breaker of each alias: see :mod:`.rules.breaker`."""

    def breaker(self, alias: str) -> Breaker:
        """Return the state of the breaker."""
        using = self.using
        for row in _reading(using).read(alias=alias):
            return Breaker(*row)
        return Breaker(timezone.now())

    def count_failure(self, alias: str, session_id: int, error: str, *, seconds: float = 0.0) -> int:
        """Count a failure of the alias's own model after so many seconds, and return how many there are in a row.

        While the breaker is closed, a session counts only once in a row. It does not count either if the model has
        folded another session since the session's last failing call began, or, if there was none, since this call
        began.
        """
        using = self.using
        _create(using, alias)
        counts = _OPEN
        if not _has_folded_another(using, alias, session_id, seconds):
            counts |= Q(last_session__isnull=True) | ~Q(last_session=session_id)
        _update(
            _rows(using, alias).filter(counts),
            failures=F("failures") + 1,
            last_session=session_id,
            since=Coalesce("since", Clock()),
            error=error[:_MAX_ERROR],
        )
        return _rows(using, alias).values_list("failures", flat=True).first() or 0

    def open_breaker(self, alias: str, reason: Reason, error: str, *, seconds: float) -> None:
        """Pause the alias for ``seconds``. A rate limit changes no longer pause, and none for another reason."""
        using = self.using
        _create(using, alias)
        rows = _rows(using, alias)
        if reason == Reason.RATE_LIMIT:
            # Of two calls at a time, only one may have been told how long to wait.
            rows = rows.filter(~_OPEN, Q(until__isnull=True) | Q(until__lt=Clock(seconds)))
            _update(rows, until=Clock(seconds), reason=reason, error=error[:_MAX_ERROR])
        else:
            # The outage begins now. The failures that were counted may be days old, and those of a wrong configuration
            # are no outage: the fallback must not stand in at once.
            begins = ~_OPEN | (Q(reason=Reason.MISCONFIGURED) & ~Q(reason=reason))
            since = Case(When(begins, then=Clock()), default=Coalesce("since", Clock()))
            # Before the reason changes: MariaDB evaluates an UPDATE from left to right.
            _update(rows, since=since, until=Clock(seconds), reason=reason, error=error[:_MAX_ERROR])

    def probe(self, alias: str, *, seconds: float) -> bool:
        """Return whether the caller may probe: the pause has ended, and nobody else probes. It is then longer.

        If the pause ended long ago (``breaker.KNOWN_FOR``), the outage begins anew.
        """
        using = self.using
        rows = _rows(using, alias).filter(_OPEN, until__lte=Clock())
        # Before the end changes: MariaDB evaluates an UPDATE from left to right.
        since = Case(When(until__lt=Clock(-KNOWN_FOR), then=Clock()), default=F("since"))
        return bool(_update(rows, since=since, until=Clock(seconds)))

    def end_probe(self, alias: str, *, seconds: float = 0.0, silent: bool = True) -> bool:
        """End the pause of a probe in ``seconds``, because it did not find out whether the model answers.

        If the provider was not ``silent``, the outage begins anew. Returns False if there is no such pause any more.
        """
        using = self.using
        rows = _rows(using, alias).filter(_OPEN, until__gt=Clock())
        return bool(_update(rows, until=Clock(seconds), **({} if silent else {"since": Clock()})))

    def close_breaker(self, alias: str) -> bool:
        """Close the breaker, because the model has answered: its pause ends now. Return whether it was open."""
        using = self.using
        # An UPDATE finds what the caller's transaction would not see.
        if not transactions.reads_earlier(using) and not _to_close(using).read(alias=alias):
            return False
        rows = _rows(using, alias)
        closed = {"failures": 0, "last_session": None, "since": None, "until": Clock(), "reason": "", "error": ""}
        if _update(rows.filter(_OPEN), **closed):
            return True
        _update(rows.filter(failures__gt=0), failures=0, last_session=None, since=None)
        return False


@compiled.once
def _reading(using: str) -> compiled.Selection:
    names = ("failures", "last_session", "since", "until", "reason", "error")
    return compiled.selection(_rows(using, Slot("alias")).values_list(Clock(), *names))


def _has_folded_another(using: str, alias: str, session_id: int, seconds: float) -> bool:
    """Whether the alias's own model has folded another session since this one last failed, or for ``seconds``."""
    attempts = models.Attempt.objects.using(using)
    began = Case(When(outcome=AttemptOutcome.UNAVAILABLE, then="started_at"), default=Clock(-seconds))
    newest = attempts.filter(session=session_id).order_by("-pk").values_list(began)[:1]
    since = Coalesce(Subquery(newest), Clock(-seconds))
    version = models.Summary.objects.filter(session=OuterRef("session"), version=OuterRef("version"))
    folded = attempts.filter(alias=alias, outcome=AttemptOutcome.PUBLISHED, started_at__gte=since)
    return folded.exclude(session=session_id).exclude(Exists(version.filter(stand_in=True))).exists()


@compiled.once
def _to_close(using: str) -> compiled.Selection:
    """Return the statement that finds the breaker if it has anything to forget. Usually it has not."""
    to_forget = Q(failures__gt=0) | _OPEN
    return compiled.selection(_rows(using, Slot("alias")).filter(to_forget).values_list("alias"))


def next_to_compare(using: str, alias: str, threshold: Threshold) -> int | None:
    """Return the id after which sessions are to be compared with ``threshold``, or None if all were."""
    text = f"{threshold.tokens} tokens, {threshold.messages} messages"
    if threshold.unindexed is not None:  # In a shorter form, for which the column has room.
        text = f"{threshold.tokens}, {threshold.messages}, {threshold.unindexed} unindexed"
    row = _rows(using, alias).values_list("threshold", "compared_id").first()
    if row is None or row[0] != text:
        _create(using, alias)
        _update(_rows(using, alias), threshold=text, compared_id=0)
        return 0
    compared_id: int | None = row[1]
    return compared_id


def compared(using: str, alias: str, through: int | None) -> None:
    """Note that sessions were compared through this id. None: all were."""
    _update(_rows(using, alias), compared_id=through)


def _rows(using: str, alias: Any) -> QuerySet[models.AliasState]:
    return models.AliasState.objects.using(using).filter(alias=alias)


def _create(using: str, alias: str) -> None:
    if not _rows(using, alias).exists():
        models.AliasState.objects.using(using).bulk_create([models.AliasState(alias=alias)], ignore_conflicts=True)


def _update(rows: QuerySet[models.AliasState], **changes: object) -> int:
    return transactions.run(rows.db, lambda: rows.update(**changes), savepoint=True, atomic=False)
