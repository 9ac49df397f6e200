"""The protocol of a store. A store keeps sessions by their names. A worker folds a session under a lease.

A store knows nothing of models, prompts and budgets. There are two, :class:`~.in_memory.InMemoryStore` and
:class:`~.orm.ORMStore`. A test checks that they do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from django_convmemory.core.counters import Batch
from django_convmemory.core.exchanges import Placed, Turn
from django_convmemory.core.strategies import View
from django_convmemory.core.values import (
    Appended,
    AttemptRecord,
    Claim,
    DueRule,
    Edited,
    Forked,
    NewVersion,
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

    def create(self, name: SessionName, *, title: str, metadata: Mapping[str, Any]) -> Any:
        """Create an empty session and return it: its row, if the store has rows.

        Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``.
        """

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        """Set ``title`` or ``metadata`` of the session to the values in ``changes``.

        Raises :class:`~django_convmemory.exceptions.UnknownSession` if there is no such session, and ``StaleRevision``
        if ``revision`` is not None and the session is at another one.
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
        """Delete the messages and summaries of the session. The session stays, and begins again at position 1."""

    def history(self, name: SessionName, *, before: int | None, after: int | None, limit: int) -> list[StoredMessage]:
        """Return at most ``limit`` messages after the position ``after`` and before the position ``before``, in order.

        They are the first ones if ``after`` is given, otherwise the last ones.
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

    def fork(self, source: SessionName, target: SessionName, at: int, rule: DueRule) -> Forked:
        """Copy the session ``source`` through the position ``at`` to the new session ``target``.

        Raises :class:`~django_convmemory.exceptions.InvalidSession`, ``SessionExists``, ``UnknownMessage``.
        """

    def redact(self, name: SessionName, position: int, rule: DueRule, *, forks: bool) -> list[Edited]:
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

    def claim(self, session_id: int, *, lease: float, force: bool) -> Claim | str:
        """Take the lease for ``lease`` seconds, and count an attempt. Otherwise return the reason why not.

        The reasons are ``not_due``, ``busy`` and ``waiting``. With ``force`` the time of the next attempt does not
        matter.
        """

    def claim_rebuild(self, session_id: int, *, lease: float, prompt_hash: str) -> Claim | str:
        """Take the lease to make the summary again from the messages. Otherwise return the reason why not.

        The reasons are ``not_due`` (there is no summary) and ``busy``. An unfinished rebuild with the same prompt is
        continued.
        """

    def turns(self, claim: Claim) -> list[Turn]:
        """Return the tail of the session as it was when it was claimed, without texts."""

    def messages(self, claim: Claim, first: int, last: int) -> list[Placed]:
        """Return the unpinned messages of the claimed tail from the position ``first`` through ``last``."""

    def extend(self, claim: Claim, *, lease: float) -> bool:
        """Make the lease last for ``lease`` seconds from now, and return whether it was still held."""

    def release_connection(self) -> None:
        """Close the database connection, which would be idle while a model answers."""

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, rule: DueRule, *, lease: float
    ) -> Claim | None:
        """Make ``version`` the current summary and extend the lease, if the claim still holds.

        ``attempt`` is the call of the model that made it, unless that is recorded already.

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
    ) -> bool:
        """Release the lease, and return whether the session is still due by ``rule`` and its current counters.

        The next attempt waits for ``retry_in`` seconds. ``error`` is stored as the last error; without it the number of
        attempts becomes 0. ``uncount`` takes back the attempt that the claim counted.
        """

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        """Store an attempt that did not lead to a version."""

    def paused(self, alias: str, *, seconds: float) -> bool:
        """Whether the newest attempt of the alias is an error of configuration less than ``seconds`` old."""

    def sweep(self, alias: str, *, limit: int, hint_age: float) -> list[int]:
        """Return the ids of due sessions that a worker could fold now, at most ``limit``. The longest due come first.

        Sessions for which a task was sent in the last ``hint_age`` seconds are left out. The returned ones are marked:
        a task is sent for them now.
        """

    def waiting(self, alias: str, *, after: float, within: float, limit: int) -> int:
        """Return the number of due sessions whose task no worker has taken, or ``limit`` if there are more.

        Only tasks count that were sent between ``within`` and ``after`` seconds ago.
        """

    def unhint(self, session_ids: Sequence[int]) -> None:
        """Remove the marks of :meth:`sweep` and :meth:`append`, because no task was sent."""
