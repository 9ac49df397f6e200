"""Finding the sessions that a worker should fold, and those whose summary should be rebuilt.

Sessions of one owner or visitor take turns (:class:`.values.Scope`), so that one person with much to fold leaves
workers to the others.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from django.db import connections
from django.db.models import Case, F, Q, When, Window
from django.db.models.functions import RowNumber

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import Claim, Scope
from django_convmemory.store import compiled, pause, transactions
from django_convmemory.store.database import Database

# So many more sessions than asked for are looked at, because other processes lock some of them.
_SPARE = 20


class Sweeping(Database):
    """Finds what a worker should do.

    Where a method takes several ``aliases``, they are those whose sessions wait for the same workers.
    """

    def sweep(
        self,
        alias: str,
        *,
        limit: int,
        due_for: float = 0.0,
        queued_for: float,
        fewest_attempts: bool = False,
        unindexed: int | None = None,
        most_leases: int | None = None,
    ) -> list[int]:
        """Return the ids of sessions that a worker could fold now, at most ``limit``.

        One of each scope comes first. Of a scope, first come those that were never queued, then the longest queued,
        then the longest due. With ``fewest_attempts`` those with the fewest attempts come before all others. They have
        been due for ``due_for`` seconds or longer. With ``unindexed`` only those are returned that have more settled
        messages that are not indexed. Sessions that were queued in the last ``queued_for`` seconds are left out, unless
        the lease of their worker has expired, or a pause of the alias has ended since. The returned ones are marked as
        queued now.

        With ``most_leases`` the longest due come first, but none of a scope with so many leases. That reads a few rows
        only, however many sessions wait.
        """
        free = self._sessions.due(due_for).unleased().unqueued(alias, queued_for)
        # A session is indexed whether or not the time of its next attempt has come.
        behind = free.filter(newest_position__gt=F("indexed_position") + (unindexed or 0))
        stale = free.ready() if unindexed is None else behind
        first = ["attempts"] if fewest_attempts else []
        if most_leases is not None:
            crowded = [who for who, count in self._leases().items() if count >= most_leases]
            for whose in ("owner", "visitor"):
                stale = stale.exclude(**{f"{whose}__in": [value for kind, value in crowded if kind == whose]})
            if any(kind == "failing" for kind, _ in crowded):
                stale = stale.filter(attempts=0)
            return _marked(stale, stale.order_by(*first, "due_since", "pk"), limit, {"queued_at": Clock()})
        # A session that nobody owns takes turns with no other.
        alone = Case(When(owner=None, visitor="", then="pk"))
        turn = Window(RowNumber(), ["owner_id", "visitor", alone], [*first, *_WAITED])
        ordered = stale.annotate(turn=turn).order_by(*first, "turn", *_WAITED)
        return _marked(stale, ordered, limit, {"queued_at": Clock()})

    def scopes(self, session_id: int) -> list[Scope]:
        """Return the scopes of a session, first that of its owner. A session that is gone is a scope of its own."""
        for owner_id, visitor, attempts in _whose(self.using).read(session_id=session_id):
            return Scope.all_of(owner_id, visitor, session_id, attempts)
        return [Scope(None, "", session_id)]

    def leases(self, scope: Scope) -> int:
        """Return how many sessions of the scope somebody folds now."""
        return self._leases()[scope.who]

    def _leases(self) -> Counter[tuple[str, Any]]:
        # As many rows as there are workers. A claim counts as an attempt.
        leased = _leased(self.using).read()
        return Counter(
            scope.who
            for owner_id, visitor, session_id, attempts in leased
            for scope in Scope.all_of(owner_id, visitor, session_id, attempts - 1)
        )

    def others_wait(self, scope: Scope, aliases: tuple[str, ...]) -> bool:
        """Whether a session of another scope could be folded now, and nobody folds it."""
        return bool(_read(_waiting_of_others, self.using, scope, aliases))

    def unqueue(self, session_id: int) -> None:
        """Note that the task of a due session was dropped: it counts as queued before the session became due."""
        _marked_of(self._sessions.due(), [session_id], 1, {"queued_at": F("due_since") - dt.timedelta(seconds=1)})

    def following(self, claim: Claim) -> int | None:
        """Return the id of another session of the same scope and alias that could be folded now, or None.

        Its task was dropped. It counts as queued from now on.
        """
        if claim.scope.whose == "session":
            return None
        waiting = [pk for pk, *_ in _read(_waiting_of_scope, self.using, claim.scope, (claim.name.alias,))]
        stale = self._sessions.due().unleased().ready().filter(_DROPPED)
        return next(iter(_marked_of(stale, waiting, 1, {"queued_at": Clock()})), None)

    def sweep_rebuilds(self, alias: str, *, limit: int, wait: float) -> list[int]:
        """Return the ids of sessions whose summary is to be rebuilt, at most ``limit``, longest marked first.

        They are not due, and nobody works on them. No other call returns them in the next ``wait`` seconds.
        """
        marked = self._sessions.filter(alias=alias, rebuild_after__lte=Clock(), due_since__isnull=True).unleased()
        return _marked(marked, marked.order_by("rebuild_after", "pk"), limit, {"rebuild_after": Clock(wait)})

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
        sessions = self._sessions.due().unleased().ready().in_queue(alias, after=after, within=within)
        return sessions.order_by()[:limit].count()


# The task of a session did nothing: see SessionQuerySet.unqueued.
_DROPPED = Q(queued_at__lt=F("due_since"))
# Which session comes first: the one that was queued longest ago, if ever.
_WAITED = (F("queued_at").asc(nulls_first=True), "due_since", "pk")


def _marked(
    rows: models.SessionQuerySet, ordered: models.SessionQuerySet, limit: int, mark: dict[str, Any]
) -> list[int]:
    """Set ``mark`` in the first ``limit`` of ``rows``, which ``ordered`` has in order, and return their ids."""
    return _marked_of(rows, list(ordered.values_list("pk", flat=True)[: limit + _SPARE]), limit, mark)


def _marked_of(rows: models.SessionQuerySet, ids: Sequence[int], limit: int, mark: dict[str, Any]) -> list[int]:
    """Set ``mark`` in the first ``limit`` of ``rows`` with these ids. No other process marks the same ones."""
    using = rows.db

    def one_by_one() -> list[int]:
        # SQLite has one writer at a time. Of two sweeps, the first one that marks a row gets it.
        return list(itertools.islice((pk for pk in ids if rows.filter(pk=pk).update(**mark)), limit))

    def locked() -> list[int]:
        # Sweeps that run at the same time take different rows. A row that a request has locked is left for the next
        # sweep. This sweep holds the locks of other rows: if it waited, appends to those would wait too.
        taken: list[int] = []
        left = list(ids)
        while left and len(taken) < limit:
            number = limit - len(taken)
            free = rows.filter(pk__in=left[:number]).select_for_update(skip_locked=True)
            taken += sorted(free.values_list("pk", flat=True), key=ids.index)
            del left[:number]
        models.Session.objects.using(using).filter(pk__in=taken).update(**mark)
        return taken

    if not ids:
        return []
    can_skip_locked = connections[using].features.has_select_for_update_skip_locked
    return transactions.run(using, locked if can_skip_locked else one_by_one)


def _read(
    of: Callable[..., compiled.Selection], using: str, scope: Scope, aliases: tuple[str, ...]
) -> list[Sequence[Any]]:
    """Return the rows of a statement about the sessions of a scope, or of others."""
    owner_id = models.Session._meta.get_field("owner").get_db_prep_value(scope.owner_id, connections[using])
    return of(using, scope.whose, aliases).read(owner=owner_id, visitor=scope.visitor, session_id=scope.session_id)


_OF_SCOPE = {
    "owner": Q(owner=compiled.Slot("owner")),
    "visitor": Q(owner=None, visitor=compiled.Slot("visitor")),
    "session": Q(pk=compiled.Slot("session_id")),
    "failing": Q(attempts__gt=0),
}


@compiled.once
def _whose(using: str) -> compiled.Selection:
    return compiled.selection(
        models.Session.objects.using(using).filter(pk=compiled.Slot("session_id")), "owner_id", "visitor", "attempts"
    )


@compiled.once
def _leased(using: str) -> compiled.Selection:
    return compiled.selection(models.Session.objects.using(using).leased(), "owner_id", "visitor", "pk", "attempts")


@compiled.once
def _waiting_of_others(using: str, whose: str, aliases: tuple[str, ...]) -> compiled.Selection:
    waiting = models.Session.objects.using(using).due().unleased().ready().filter(alias__in=aliases)
    # What waits for a model that does not answer waits for no worker.
    paused = models.AliasState.objects.using(using).paused().values("alias")
    return compiled.selection(waiting.exclude(_OF_SCOPE[whose]).exclude(alias__in=paused)[:1], "pk")


@compiled.once
def _waiting_of_scope(using: str, whose: str, aliases: tuple[str, ...]) -> compiled.Selection:
    waiting = models.Session.objects.using(using).due().unleased().ready().filter(_OF_SCOPE[whose], alias__in=aliases)
    others = waiting.filter(_DROPPED).exclude(pk=compiled.Slot("session_id"))
    return compiled.selection(others.order_by("due_since", "pk")[:_SPARE], "pk")
