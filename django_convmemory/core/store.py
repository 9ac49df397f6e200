"""What a store is: sessions by name, appended to, read for a prompt, and folded under a lease.

A store knows nothing of models, prompts and budgets. Both stores, :class:`~.in_memory.InMemoryStore` and
:class:`~.orm.ORMStore`, do the same, and one test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from django_convmemory.core.counters import Batch
from django_convmemory.core.exchanges import Placed, Turn
from django_convmemory.core.strategies import Threshold, View
from django_convmemory.core.values import (
    Appended,
    AttemptRecord,
    Claim,
    Edited,
    Forked,
    NewVersion,
    SessionName,
    Snapshot,
    StoredMessage,
)


class Store(Protocol):
    """Where sessions, messages and summaries are kept."""

    def owner_id(self, owner: Any) -> Any:
        """Return the id of a user. Raises :class:`~django_convmemory.exceptions.InvalidSession` for anything else."""

    def append(self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str, hint: bool) -> Appended:
        """Store ``batch`` after what the session holds, creating the session where there is none.

        Whole or not at all; the session is marked due when ``threshold`` says so, in the same transaction.
        ``counter`` names the token counter; ``hint`` notes that a task will be sent.
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
        """Return what ``view`` asks for, of one moment, or None where there is no such session."""

    def clear(self, name: SessionName) -> None:
        """Delete the messages and summaries of the session; it stays, and begins again at position 1."""

    def history(self, name: SessionName, *, before: int | None, after: int | None, limit: int) -> list[StoredMessage]:
        """Return at most ``limit`` messages between the positions ``before`` and ``after``, in order.

        The first ones where ``after`` is given, otherwise the last ones.
        """

    # Changes of what was said. Each raises the epoch, so that no compaction that began before can publish, and takes
    # the lease away, so that the next one need not wait for it.

    def truncate(
        self, name: SessionName, after: int, threshold: Threshold, *, revision: int | None, hint: bool
    ) -> tuple[int, Edited | None]:
        """Delete the messages after the position ``after``, and return their number.

        Summaries that reach further are invalidated. Raises :class:`~django_convmemory.exceptions.StaleRevision`
        unless the session is at ``revision``, where one is given.
        """

    def fork(self, source: SessionName, target: SessionName, at: int, threshold: Threshold, *, hint: bool) -> Forked:
        """Copy the session ``source`` as it was at the position ``at`` to a new one, ``target``.

        Raises :class:`~django_convmemory.exceptions.InvalidSession`, ``SessionExists``, ``UnknownMessage``.
        """

    def redact(
        self, name: SessionName, position: int, threshold: Threshold, *, forks: bool, hint: bool
    ) -> list[Edited]:
        """Empty the message at ``position`` and every summary that reaches it; with ``forks`` in its forks as well.

        Raises :class:`~django_convmemory.exceptions.UnknownMessage`.
        """

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        """Delete the sessions of an owner or a visitor, with everything in them, and return their number."""

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        """Give a visitor's sessions to an owner, and return their names; keys that the owner has get a number."""

    def on_commit(self, function: Callable[[], None]) -> None:
        """Run ``function`` once what was written is there for others to see."""

    # Compaction.

    def find(self, name: SessionName) -> int | None:
        """Return the id of the session, or None."""

    def claim(self, session_id: int, *, lease: float, force: bool) -> Claim | str:
        """Take the lease for ``lease`` seconds, and count an attempt; or say why not.

        The words are ``not_due``, ``busy`` and ``waiting``.
        ``force`` does not wait for the time of the next attempt.
        """

    def claim_rebuild(self, session_id: int, *, lease: float, prompt_hash: str) -> Claim | str:
        """Take the lease to make the summary anew, or say why not: ``not_due``, where there is none, or ``busy``.

        What an earlier rebuild with the same prompt left behind is continued.
        """

    def turns(self, claim: Claim) -> list[Turn]:
        """Return the tail of the session as it was claimed, without texts."""

    def messages(self, claim: Claim, first: int, last: int) -> list[Placed]:
        """Return the unpinned messages at ``first`` to ``last``."""

    def extend(self, claim: Claim, *, lease: float) -> bool:
        """Make the lease last for ``lease`` seconds from now, and return whether it was still held."""

    def release_connection(self) -> None:
        """Give back what would be held for nothing while a model answers."""

    def publish(
        self, claim: Claim, version: NewVersion, attempt: AttemptRecord | None, threshold: Threshold, *, lease: float
    ) -> Claim | None:
        """Make ``version`` the current summary and extend the lease: compare-and-set.

        ``attempt`` is the call that it came from, where that is not in the books yet.

        Returns the claim as it is from then on; None, with nothing written but the attempt, where the lease is not
        held any more or the session was changed under it.
        """

    def release(
        self,
        claim: Claim,
        threshold: Threshold,
        *,
        retry_in: float | None = None,
        error: str = "",
        uncount: bool = False,
        hint: bool = False,
    ) -> bool:
        """Give the lease back, and return whether the session is still due by its counters now.

        ``retry_in`` seconds must pass before the next attempt; ``uncount`` takes back the attempt that the claim
        counted; ``hint`` notes, where it is still due, that a task will be sent.
        """

    def record(self, claim: Claim, attempt: AttemptRecord) -> None:
        """Store an attempt that made no version."""

    def paused(self, alias: str, *, seconds: float) -> bool:
        """Whether the newest attempt of the alias is an error of configuration less than ``seconds`` old."""

    def sweep(self, alias: str, *, limit: int, hint_age: float) -> list[int]:
        """Return, longest due first, sessions that are due, free, and not hinted for ``hint_age`` seconds.

        They are marked as hinted now.
        """

    def waiting(self, alias: str, *, after: float, within: float, most: int) -> int:
        """Count, up to ``most``, the due sessions that nobody took since they were hinted.

        That is between ``within`` and ``after`` seconds ago.
        """

    def unhint(self, session_ids: Sequence[int]) -> None:
        """Take the marks back: nobody was told."""
