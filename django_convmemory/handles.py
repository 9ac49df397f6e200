"""A session of a memory as an object of its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from django_convmemory.stores.values import SessionName, StoredMessage
from django_convmemory.twins import asynchronous

# Stands for an argument that was not given, where None was.
NOT_GIVEN: Any = object()

if TYPE_CHECKING:
    from django_convmemory.compaction import Outcome
    from django_convmemory.context import Context
    from django_convmemory.conversation import ConversationMemory, Receipt


@runtime_checkable
class Named(Protocol):
    """What names a session: a handle, or a ``Session`` row."""

    @property
    def session_name(self) -> SessionName: ...


class SessionHandle:
    """A session of a memory, with the memory's operations. It holds no state, and costs no query."""

    def __init__(self, memory: ConversationMemory, name: SessionName) -> None:
        self.memory = memory
        self.session_name = name

    def __repr__(self) -> str:
        return f"<SessionHandle: {self.session_name}>"

    @property
    def key(self) -> str:
        """The site's name for the session."""
        return self.session_name.key

    def append(
        self,
        *messages: Any,
        idempotency_key: str | None = None,
        usage: Any = None,
        created_at: dt.datetime | Sequence[dt.datetime | None] | None = None,
    ) -> Receipt:
        """:meth:`ConversationMemory.append` to this session."""
        return self.memory.append(self, *messages, idempotency_key=idempotency_key, usage=usage, created_at=created_at)

    def load(self, *, system: Any = None, max_tokens: int | None = None) -> Context:
        """:meth:`ConversationMemory.load` of this session."""
        return self.memory.load(self, system=system, max_tokens=max_tokens)

    def history(self, *, before: int | None = None, after: int | None = None, limit: int = 50) -> list[StoredMessage]:
        """:meth:`ConversationMemory.history` of this session."""
        return self.memory.history(self, before=before, after=after, limit=limit)

    def clear(self) -> None:
        """:meth:`ConversationMemory.clear` for this session."""
        self.memory.clear(self)

    def truncate(self, after: int, revision: int | None = None) -> int:
        """:meth:`ConversationMemory.truncate` for this session."""
        return self.memory.truncate(self, after, revision)

    def fork(self, at: int, *, key: str, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> Any:
        """:meth:`ConversationMemory.fork` of this session."""
        return self.memory.fork(self, at, key=key, owner=owner, visitor=visitor)

    def redact(self, position: int, forks: bool = True) -> int:
        """:meth:`ConversationMemory.redact` for this session."""
        return self.memory.redact(self, position, forks)

    def compact(self) -> Outcome:
        """:meth:`ConversationMemory.compact` for this session."""
        return self.memory.compact(self)

    def rebuild(self) -> Outcome:
        """:meth:`ConversationMemory.rebuild` for this session."""
        return self.memory.rebuild(self)

    async def acompact(self) -> Outcome:
        """The asynchronous twin of :meth:`compact`."""
        return await self.memory.acompact(self)

    async def arebuild(self) -> Outcome:
        """The asynchronous twin of :meth:`rebuild`."""
        return await self.memory.arebuild(self)

    def request_compaction(self) -> bool:
        """:meth:`ConversationMemory.request_compaction` for this session."""
        return self.memory.request_compaction(self)

    def request_rebuild(self) -> bool:
        """:meth:`ConversationMemory.request_rebuild` for this session."""
        return self.memory.request_rebuild(self)

    aappend = asynchronous(append)
    aload = asynchronous(load)
    ahistory = asynchronous(history)
    aclear = asynchronous(clear)
    atruncate = asynchronous(truncate)
    afork = asynchronous(fork)
    aredact = asynchronous(redact)
    arequest_compaction = asynchronous(request_compaction)
    arequest_rebuild = asynchronous(request_rebuild)
