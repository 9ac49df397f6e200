"""The protocol of a store. A store keeps sessions by their names. A worker folds a session under a lease.

A store knows nothing of models, prompts and budgets. There are two, :class:`~.in_memory.InMemoryStore` and
:class:`~.orm.ORMStore`. A test checks that they do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from django_convmemory.rules.breaker import Breaker, Reason
from django_convmemory.rules.counters import Batch
from django_convmemory.rules.creations import Creation
from django_convmemory.rules.exchanges import Placed, Turn
from django_convmemory.rules.indexable import IndexRead, Unindexed
from django_convmemory.rules.segments import Segment
from django_convmemory.rules.strategies import View
from django_convmemory.rules.values import (
    Appended,
    AttemptRecord,
    Claim,
    DueRule,
    Edited,
    Forked,
    NewVersion,
    Redaction,
    SessionName,
    Snapshot,
    StoredMessage,
)


class Store(Protocol):
    """Keeps sessions, messages and summaries."""

    def owner_id(self, owner: Any) -> Any:
        """Return the id of a user. Raises :class:`~django_convmemory.exceptions.InvalidSession` for anything else."""

    def append(self, name: SessionName, batch: Batch, rule: DueRule, *, counter: str) -> Appended:
        """Store all messages of ``batch`` at the end of the session, or none. Create the session if there is none.

        In the same transaction the session is marked due if ``rule`` says so. ``counter`` is the name of the token
        counter.
        Raises :class:`~django_convmemory.exceptions.ToolResultRefused`, ``TooManyPinned``, ``IdempotencyConflict``.
        """

    def replace(
        self, name: SessionName, after: int, batch: Batch, rule: DueRule, *, counter: str, revision: int | None
    ) -> Appended:
        """Delete the messages after the position ``after`` as :meth:`truncate` does, and append ``batch``: or neither.

        A batch whose key was used changes nothing, whatever the revision. Raises the errors of both operations, and
        :class:`~django_convmemory.exceptions.UnknownMessage` if there is no message at ``after``.
        """

    def create(
        self, name: SessionName, *, title: str, metadata: Mapping[str, Any], creation: Creation | None = None
    ) -> Any:
        """Create an empty session and return it: its row, if the store has rows.

        If an earlier request has used the key of ``creation``, return the session that it created. Its ``replayed`` is
        true. Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``IdempotencyConflict``.
        """

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        """Set ``title``, ``metadata``, ``archived`` or ``starred`` of the session to the values in ``changes``.

        Without any, nothing is written. Only the first two change the conversation and the time of its last change.

        Raises :class:`~django_convmemory.exceptions.UnknownSession` if there is no such session, and ``StaleRevision``
        if ``revision`` is not None and the session is at another one.
        """

    def update_message(
        self, name: SessionName, position: int, metadata: Mapping[str, Any], *, revision: int | None
    ) -> None:
        """Replace the metadata of the message at ``position``.

        The epoch stays, because no summary shows metadata. Raises
        :class:`~django_convmemory.exceptions.UnknownMessage`, ``RedactedMessage``, ``UnknownSession``,
        ``StaleRevision``.
        """

    def delete(self, name: SessionName, *, revision: int | None) -> bool:
        """Delete the session with everything in it, and return whether there was one.

        Raises :class:`~django_convmemory.exceptions.StaleRevision` as :meth:`update` does.
        """

    def load(self, name: SessionName, view: View, max_pinned_tokens: int) -> Snapshot | None:
        """Return the session as it is at one moment, as far as ``view`` needs it, or None if there is no such session.

        Of the pinned messages it has those that fit in ``max_pinned_tokens``, and always the first one.
        """

    def clear(self, name: SessionName) -> None:
        """Delete the messages and summaries of the session. The session stays, and begins again at position 1.

        Idempotency keys stay used: see :mod:`.spent_keys`. So they do after the other operations that delete messages.
        """

    def history(
        self, name: SessionName, *, before: int | None, after: int | None, limit: int, items: bool = False
    ) -> list[StoredMessage]:
        """Return at most ``limit`` messages after the position ``after`` and before the position ``before``, in order.

        They are the first ones if ``after`` is given, otherwise the last ones. With ``items`` they have the items for
        which they stand.
        """

    # Recall. A session's index is made of segments: see :mod:`.segments`.

    def unindexed(self, session_id: int, *, limit: int) -> Unindexed | None:
        """Return the next messages to index, at most ``limit``. None: there are none, or no such session."""

    def add_segments(self, session_id: int, unindexed: Unindexed, new: Sequence[Segment]) -> bool:
        """Store the segments ``new`` if the session is as it was read. Return whether it was.

        The first one takes the place of the last segment if both begin at the same position.
        """

    def read_index(self, name: SessionName, *, before: int | None, epoch: int | None) -> IndexRead | None:
        """Return what a search reads of the session: see :func:`.indexing.searchable`."""

    def read_indexes_of(self, alias: str, *, owner_id: Any, visitor: str, max_messages: int) -> list[IndexRead]:
        """Return what a search reads of the sessions of a person: see :func:`.indexing.searchable_of`."""

    def read_indexes_among(self, alias: str, sessions: Any, *, max_messages: int = 100_000) -> list[IndexRead]:
        """Return what a search reads of the sessions in a query: see :func:`.indexing.searchable_among`.

        Raises :class:`~django_convmemory.exceptions.InvalidSession` if the store has no rows.
        """

    def messages_at(self, places: Sequence[tuple[int, int, int]]) -> dict[tuple[int, int], StoredMessage]:
        """Return messages by the id of their session and their position.

        A place is the id of a session, its epoch, and a position. There is no message for a session that is at another
        epoch by now.
        """

    # Operations that change stored conversations. Each raises the epoch, so that a compaction that began before cannot
    # publish. And each clears the lease, so that the next compaction need not wait for it.

    def truncate(
        self, name: SessionName, after: int, rule: DueRule, *, revision: int | None
    ) -> tuple[int, Edited | None]:
        """Delete the messages after the position ``after``, and return their number.

        Summaries that reach further are invalidated. Raises :class:`~django_convmemory.exceptions.StaleRevision` if
        ``revision`` is given and the session is at another one.
        """

    def pop(self, name: SessionName, rule: DueRule) -> tuple[StoredMessage | None, Edited | None]:
        """Delete the last message as :meth:`truncate` does, and return it with its item. None: there is no message.

        No other message is deleted, whatever is appended meanwhile.
        """

    def fork(
        self,
        source: SessionName,
        target: SessionName,
        at: int,
        rule: DueRule,
        *,
        title: str | None = None,
        creation: Creation | None = None,
    ) -> Forked:
        """Copy the session ``source`` through the position ``at`` to the new session ``target``.

        Without ``title`` it has the title of ``source``. ``creation`` is as for :meth:`create`. Raises
        :class:`~django_convmemory.exceptions.InvalidSession`, ``SessionExists``, ``UnknownMessage``,
        ``IdempotencyConflict``.
        """

    def redact(self, name: SessionName, position: int, rule: DueRule, *, forks: bool) -> Redaction:
        """Empty the message at ``position`` and every summary that covers it. With ``forks``, do so in its forks too.

        Raises :class:`~django_convmemory.exceptions.UnknownMessage`.
        """

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        """Delete the sessions of an owner or a visitor with all their messages, and return their number."""

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        """Give a visitor's sessions to an owner, and return their names.

        If the owner has a session with the same key already, the key gets a number.
        """

    def on_commit(self, function: Callable[[], None]) -> None:
        """Run ``function`` when the transaction has been committed."""

    # Compaction.

    def find(self, name: SessionName) -> int | None:
        """Return the id of the session, or None."""

    def claim(self, session_id: int, rule: DueRule, *, lease: float, prompt_hash: str, force: bool) -> Claim | str:
        """Take the lease for ``lease`` seconds, and count an attempt. Otherwise return the reason why not.

        The reasons are ``not_due``, ``busy`` and ``waiting``. A session that is not marked is due too if its counters
        exceed the limit. The next attempt is made after the lease, and waits longer from the second attempt on. With
        ``force`` the time of the next attempt does not matter. Parts that were folded with the same prompt are
        continued.
        """

    def claim_rebuild(
        self,
        session_id: int,
        *,
        lease: float,
        prompt_hash: str,
        stand_ins: bool,
        wait: float,
        reanchor_every: int | None = None,
    ) -> Claim | str:
        """Take the lease to make the summary again from the messages. Otherwise return the reason why not.

        The reasons are ``not_due`` (there is no summary) and ``busy``. An unfinished rebuild with the same prompt is
        continued. With ``stand_ins`` it begins after the last version before the first one that the fallback made, if
        there is one. Then it is ``not_due`` too if the session is not marked for a rebuild, and the next rebuild of the
        session waits for ``wait`` seconds, unless this one succeeds.
        """

    def turns(self, claim: Claim) -> list[Turn]:
        """Return the tail of the session as it was when it was claimed, without texts."""

    def messages(self, claim: Claim, first: int, last: int) -> list[Placed]:
        """Return the unpinned messages of the claimed tail from the position ``first`` through ``last``."""

    def extend(self, claim: Claim, *, lease: float) -> bool:
        """Make the lease last for ``lease`` seconds from now, and return whether it was still held.

        If a message was removed or redacted since the claim, it is not held any more.
        """

    def is_due(self, session_id: int) -> bool:
        """Whether the session is marked due."""

    def release_connection(self) -> None:
        """Close the database connection, which would be idle while a model answers."""

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, rule: DueRule, *, lease: float
    ) -> Claim | None:
        """Store ``version`` and extend the lease, if the claim still holds.

        If it is final (:func:`.values.is_final`), it becomes the current summary. A version that the fallback made in
        the model's place marks the session for a rebuild, and the end of a rebuild removes the mark.

        ``attempt`` is the model call that made it, unless that is recorded already.

        Returns the claim as it is after that. If the lease is lost, or the session has been changed since the claim,
        only the attempt is stored, and the result is None.
        """

    def release(
        self,
        claim: Claim,
        rule: DueRule,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
        rebuild_in: float | None = None,
    ) -> bool:
        """Release the lease, and return whether the session is still due by ``rule`` and its current counters.

        The next attempt waits for ``retry_in`` seconds. ``error`` is stored as the last error; without it the number of
        attempts becomes 0. ``uncount`` takes back the attempt that the claim counted. After a rebuild, these three are
        left as they are: they are about what is due. With ``rebuild_in`` the session is marked for a rebuild in so many
        seconds.
        """

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        """Store an attempt that did not lead to a version."""

    def sweep(
        self,
        alias: str,
        *,
        limit: int,
        hint_age: float,
        fewest_attempts: bool = False,
        unindexed: int | None = None,
    ) -> list[int]:
        """Return the ids of due sessions that a worker could fold now, at most ``limit``. The longest due come first.

        With ``fewest_attempts`` those with the fewest attempts come first. With ``unindexed`` only those are returned
        that have more settled messages that are not indexed. Sessions for which a task was sent in the last
        ``hint_age`` seconds are left out, unless a lease of that task has expired. The returned ones are marked: a task
        is sent for them now.
        """

    def sweep_rebuilds(self, alias: str, *, limit: int, wait: float) -> list[int]:
        """Return the ids of sessions whose summary is to be rebuilt, at most ``limit``, longest marked first.

        They are not due, and nobody works on them. No other call returns them in the next ``wait`` seconds.
        """

    def waiting_rebuilds(self, alias: str, *, within: float, limit: int) -> int:
        """Return the number of sessions whose rebuild is to be tried in the next ``within`` seconds, or ``limit``.

        :meth:`sweep_rebuilds` marks a session like this until a worker begins.
        """

    def mark_unmarked(self, alias: str, rule: DueRule, *, limit: int) -> int:
        """If the threshold is not the one last checked, mark sessions that are over it, and return their number.

        Each call looks at the next ``limit`` sessions, until it has seen all.
        """

    # The breaker of an alias: see :mod:`.breaker`.

    def breaker(self, alias: str) -> Breaker:
        """Return the state of the breaker."""

    def count_failure(self, alias: str, session_id: int, error: str, *, seconds: float = 0.0) -> int:
        """Count a failure of the alias's own model after so many seconds, and return how many there are in a row.

        While the breaker is closed, a session counts only once in a row. It does not count either if the model has
        folded another session since this one last failed, or, if it did not, since the call began.
        """

    def open_breaker(self, alias: str, reason: Reason, error: str, *, seconds: float) -> None:
        """Pause the alias for ``seconds``. A rate limit changes no longer pause, and none for another reason."""

    def probe(self, alias: str, *, seconds: float) -> bool:
        """Return whether the caller may probe: the pause has ended, and nobody else probes. It is then longer.

        If the pause ended long ago (``breaker.KNOWN_FOR``), the outage begins anew.
        """

    def end_probe(self, alias: str, *, seconds: float = 0.0, silent: bool = True) -> bool:
        """End the pause of a probe in ``seconds``, because it did not find out whether the model answers.

        If the provider was not ``silent``, the outage begins anew. Returns False if there is no such pause any more.
        """

    def close_breaker(self, alias: str) -> bool:
        """Close the breaker, because the model has answered. Return whether it was open."""

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        """Return the number of due sessions whose task no worker has taken, or ``limit`` if there are more.

        Only tasks count that were sent between ``within`` and ``after`` seconds ago.
        """

    def unhint(self, session_ids: Sequence[int]) -> None:
        """Remove the marks of :meth:`sweep` and :meth:`append`, because no task was sent."""
