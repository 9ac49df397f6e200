"""Everything that the store keeps. The other modules have functions that read and change it.

The store holds its lock while it calls one of these functions. So each sees and leaves a whole state.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from django_convmemory.rules import creations
from django_convmemory.rules.creations import Creation
from django_convmemory.rules.values import Attempted, SessionName
from django_convmemory.store.in_memory.rows import AliasState, Session


class State:
    """The sessions by id and by name, the states of the aliases, the calls of models, and the clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.sessions: dict[int, Session] = {}
        self.attempts: list[Attempted] = []
        self._by_name_hash: dict[str, Session] = {}
        self._aliases: dict[str, AliasState] = {}
        self._ids = itertools.count(1)

    def new_id(self) -> int:
        return next(self._ids)

    def named(self, name: SessionName) -> Session | None:
        return self._by_name_hash.get(name.name_hash)

    def of_alias(self, alias: str) -> Iterator[Session]:
        return (session for session in self.sessions.values() if session.session_name.alias == alias)

    def of_scope(self, alias: str, *, owner_id: Any, visitor: str) -> list[Session]:
        """Return the sessions of an owner or a visitor."""
        names = ((session.session_name, session) for session in self.of_alias(alias))
        return [session for name, session in names if (name.owner_id, name.visitor) == (owner_id, visitor)]

    def created_by(self, creation: Creation | None) -> Session | None:
        """Return the session that an earlier request with the key of ``creation`` created, or None.

        Raises :class:`~django_convmemory.exceptions.IdempotencyConflict` if that was another request.
        """
        if creation is None:
            return None
        for session in self.sessions.values():
            if session.creation is not None and session.creation.key_hash == creation.key_hash:
                if session.creation != creation:
                    raise creations.conflict()
                return dataclasses.replace(session, replayed=True)
        return None

    def restore(self, session: Session) -> None:
        """Put back a session as it was before an operation that has failed."""
        self.sessions[session.id] = self._by_name_hash[session.session_name.name_hash] = session

    def insert(self, session: Session) -> None:
        session.id = self.new_id()
        session.updated_at = self.clock()
        self.sessions[session.id] = self._by_name_hash[session.session_name.name_hash] = session

    def rename(self, session: Session, name: SessionName) -> None:
        del self._by_name_hash[session.session_name.name_hash]
        self._by_name_hash[name.name_hash] = session
        session.session_name = name

    def remove(self, session: Session) -> None:
        del self.sessions[session.id], self._by_name_hash[session.session_name.name_hash]

    def alias(self, alias: str) -> AliasState:
        """Return the state of an alias, which can be changed."""
        return self._aliases.setdefault(alias, AliasState())


def moment(seconds: float) -> dt.datetime:
    """Return a time of the clock as a datetime."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC)
