"""Finding the sessions that a worker should fold, and those whose summary should be rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections
from django.db.models import F

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.rules.strategies import Threshold
from django_convmemory.store import pause, transactions
from django_convmemory.store.database import Database


class Sweeping(Database):
    """Finds what a worker should do."""

    def sweep(
        self,
        alias: str,
        *,
        limit: int,
        due_for: float = 0.0,
        queued_for: float,
        fewest_attempts: bool = False,
        unindexed: int | None = None,
    ) -> list[int]:
        """Return the ids of sessions that a worker could fold now, at most ``limit``. The longest due come first.

        They have been due for ``due_for`` seconds or longer. With ``fewest_attempts`` those with the fewest attempts
        come first. With ``unindexed`` only those are returned that have more settled messages that are not indexed.
        Sessions that were queued in the last ``queued_for`` seconds are left out, unless the lease of their worker has
        expired, or a pause of the alias has ended since. The returned ones are marked as queued now.
        """
        free = self._sessions.due(due_for).unleased().filter(alias=alias).unqueued(queued_for)
        # A session is indexed whether or not the time of its next attempt has come.
        behind = free.filter(newest_position__gt=F("indexed_position") + (unindexed or 0))
        stale = free.ready() if unindexed is None else behind
        order = ("attempts", "due_since", "pk") if fewest_attempts else ("due_since", "pk")
        return _marked(stale, order, limit, {"queued_at": Clock()})

    def sweep_rebuilds(self, alias: str, *, limit: int, wait: float) -> list[int]:
        """Return the ids of sessions whose summary is to be rebuilt, at most ``limit``, longest marked first.

        They are not due, and nobody works on them. No other call returns them in the next ``wait`` seconds.
        """
        marked = self._sessions.filter(alias=alias, rebuild_after__lte=Clock(), due_since__isnull=True).unleased()
        return _marked(marked, ("rebuild_after", "pk"), limit, {"rebuild_after": Clock(wait)})

    def waiting_rebuilds(self, alias: str, *, within: float, limit: int) -> int:
        """Return the number of sessions whose rebuild is to be tried in the next ``within`` seconds, or ``limit``.

        :meth:`sweep_rebuilds` marks a session like this until a worker begins.
        """
        sessions = self._sessions.filter(alias=alias, due_since__isnull=True)
        sent = sessions.filter(rebuild_after__gt=Clock(), rebuild_after__lte=Clock(within))
        return sent.order_by()[:limit].count()

    def mark_unmarked(self, alias: str, threshold: Threshold, *, limit: int) -> int:
        """If the threshold is not the one last checked, mark sessions that are over it, and return their number.

        Each call looks at the next ``limit`` sessions, until it has seen all.
        """
        state = pause.rows_of(self.using, alias)
        text = f"{threshold.tokens}, {threshold.messages}, {threshold.unindexed} unindexed"
        # ``after`` is the id of the session that was compared last, or None if all were compared.
        compared, after = state.values_list("threshold", "compared_id").first() or ("", None)
        if compared != text:
            after = 0
            pause.create(self.using, alias)
            transactions.update(state, threshold=text, compared_id=after)
        if after is None:
            return 0
        sessions = self._sessions.filter(alias=alias, pk__gt=after)
        ids = list(sessions.order_by("alias", "pk").values_list("pk", flat=True)[:limit])
        marked = 0
        if ids:
            over = models.exceeds(threshold, covered_tokens=F("covered_tokens"), covered_count=F("covered_count"))
            unmarked = sessions.filter(over, pk__lte=ids[-1], due_since__isnull=True)
            marked = transactions.update(unmarked, due_since=Clock())
        transactions.update(state, compared_id=ids[-1] if len(ids) == limit else None)
        return marked

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        """Return the number of due sessions whose task no worker has taken, or ``limit`` if there are more.

        Only tasks count that were queued between ``within`` and ``after`` seconds ago.
        """
        sessions = self._sessions.due().unleased().ready().filter(alias=alias)
        return sessions.in_queue(after=after, within=within).order_by()[:limit].count()


def _marked(rows: models.SessionQuerySet, order: Sequence[str], limit: int, mark: dict[str, Any]) -> list[int]:
    """Set ``mark`` in the first ``limit`` of ``rows``, and return their ids. No other process marks the same ones."""
    using = rows.db
    connection = connections[using]
    ordered = rows.order_by(*order).values_list("pk", flat=True)

    def one_by_one() -> list[int]:
        # SQLite has one writer at a time. Of two sweeps, the first one that marks a row gets it.
        return [pk for pk in list(ordered[:limit]) if rows.filter(pk=pk).update(**mark)]

    def locked() -> list[int]:
        # Sweeps that run at the same time take different rows. A row that a request has locked is left for the next
        # sweep. This sweep holds the locks of other rows: if it waited, appends to those would wait too.
        ids = list(ordered.select_for_update(skip_locked=True)[:limit])
        models.Session.objects.using(using).filter(pk__in=ids).update(**mark)
        return ids

    if not ordered.exists():
        return []
    return transactions.run(using, locked if connection.features.has_select_for_update_skip_locked else one_by_one)
