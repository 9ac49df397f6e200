"""The conversation memory with all operations, and what ``memory.session("x")`` returns.

Every operation is in one place: views, commands and tasks call it, and the asynchronous twins run it in a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.dispatch import Signal

from django_convmemory import signals
from django_convmemory.exceptions import InvalidSession
from django_convmemory.operations import arguments
from django_convmemory.operations.arguments import NOT_GIVEN, Named
from django_convmemory.operations.edit import Edit
from django_convmemory.operations.folding import Folding
from django_convmemory.operations.streams import Streams
from django_convmemory.operations.twins import asynchronous
from django_convmemory.rules.values import Claim, SessionName
from django_convmemory.search.hits import Hits

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


class ConversationMemory(Streams, Edit, Folding):
    """Keeps conversations in ``store``. The ``strategy`` decides which messages are shown and which are folded.

    Each class of :mod:`django_convmemory.memory` is this class with one strategy. A memory that is built in code folds
    inline, and counts tokens as the library it is named after. A memory that is built from the settings folds by Celery
    and uses the default counter. The prompts name the days of messages by the time zone ``zone``.

    Raises ValueError for an option that does not exist or has a wrong value.
    """

    def session(self, key: str | Named, *, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> SessionHandle:
        """Return a handle of the session ``key`` of a user, of a visitor, or of nobody. It costs no query.

        Without ``owner`` and ``visitor`` the session belongs to nobody, and all who use its key share it. If you pass
        ``owner`` or ``visitor``, it must not be None: a visitor whose id is not made yet would get a session that
        everybody shares.

        A ``Session`` row instead of the key gives a handle of that row. Once the row is deleted, no new session is
        made in its place, and an operation that would change it raises
        :class:`~django_convmemory.exceptions.UnknownSession`.

        Raises :class:`~django_convmemory.exceptions.InvalidSession`.
        """
        if not isinstance(key, str) and owner is NOT_GIVEN and visitor is NOT_GIVEN:
            return SessionHandle(self, self.resolve(key))
        return SessionHandle(self, arguments.session_name(self.store, self.alias, key, owner, visitor))

    def resolve(self, session: str | Named) -> SessionName:
        """Return the name of the session that a key, a handle or a ``Session`` row stands for.

        Raises :class:`~django_convmemory.exceptions.InvalidSession` for a session of another alias.
        """
        if isinstance(session, str):
            return SessionName(self.alias, arguments.check_key(session))
        # isinstance() with a protocol would take longer than the rest of this function.
        name = getattr(session, "session_name", None)
        if not isinstance(name, SessionName):
            raise InvalidSession(
                f"Pass the session as a key, a handle or a Session row, not as {type(session).__name__}."
            )
        if name.alias != self.alias:
            raise InvalidSession(
                f"The session {name.key!r} belongs to memories[{name.alias!r}], not to memories[{self.alias!r}]."
            )
        return name

    def adopt(self, visitor: str, user: Any) -> list[SessionHandle]:
        """Let a user adopt the sessions of a visitor in this memory, as at login. Return the sessions.

        If the user has a session with the same key, the adopted session gets a number: ``main (2)``.
        """
        for scope, value in (("visitor", visitor), ("user", user)):
            if value is None:
                raise InvalidSession(f"The {scope} is None. Pass both: the visitor, and the user who has logged in.")
        source, target = arguments.scope(self.store, visitor=visitor), arguments.scope(self.store, owner=user)
        names = self.store.adopt(self.alias, source.visitor, target.owner_id)
        return [SessionHandle(self, name) for name in names]

    aadopt = asynchronous(adopt)

    def _published(self, claim: Claim) -> None:
        if claim.summary is not None:
            self._send(signals.summary_published, claim.name, claim.session_id, version=claim.summary.version)

    def _failed(self, claim: Claim, error: Exception) -> None:
        self._send(signals.compaction_failed, claim.name, claim.session_id, error=error)

    def _send(self, signal: Signal, name: SessionName, session_id: int, **arguments: Any) -> None:
        handle = SessionHandle(self, name)
        signal.send_robust(sender=type(self), memory=self, session=handle, session_id=session_id, **arguments)


def for_session(operation: Callable[Concatenate[S, str | Named, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return the method of a handle that calls ``operation`` of the handle's memory for its session."""

    def method(handle: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name, so that it calls the operation of a subclass that overrides it.
        call: Callable[..., T] = getattr(handle.memory, operation.__name__)
        return call(handle, *args, **kwargs)

    signature = inspect.signature(operation)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "session"]
    method.__dict__["__signature__"] = signature.replace(parameters=parameters)
    method.__name__ = operation.__name__
    method.__qualname__ = f"SessionHandle.{operation.__name__}"
    method.__doc__ = f":meth:`ConversationMemory.{operation.__name__}` for this session."
    return markcoroutinefunction(method) if iscoroutinefunction(operation) else method


class SessionHandle:
    """A session of a memory, with the memory's operations. It holds no state and costs no query."""

    def __init__(self, memory: ConversationMemory, name: SessionName) -> None:
        self.memory = memory
        self.session_name = name

    def __repr__(self) -> str:
        return f"<SessionHandle: {self.session_name}>"

    @property
    def key(self) -> str:
        """The site's name for the session."""
        return self.session_name.key

    create = for_session(ConversationMemory.create)
    acreate = for_session(ConversationMemory.acreate)
    update = for_session(ConversationMemory.update)
    aupdate = for_session(ConversationMemory.aupdate)
    update_message = for_session(ConversationMemory.update_message)
    aupdate_message = for_session(ConversationMemory.aupdate_message)
    delete = for_session(ConversationMemory.delete)
    adelete = for_session(ConversationMemory.adelete)
    append = for_session(ConversationMemory.append)
    aappend = for_session(ConversationMemory.aappend)
    replace = for_session(ConversationMemory.replace)
    areplace = for_session(ConversationMemory.areplace)
    load = for_session(ConversationMemory.load)
    aload = for_session(ConversationMemory.aload)
    append_and_load = for_session(ConversationMemory.append_and_load)
    aappend_and_load = for_session(ConversationMemory.aappend_and_load)
    answer = for_session(ConversationMemory.answer)
    aanswer = for_session(ConversationMemory.aanswer)
    stream_answer = for_session(ConversationMemory.stream_answer)
    astream_answer = for_session(ConversationMemory.astream_answer)
    stop_answer = for_session(ConversationMemory.stop_answer)
    astop_answer = for_session(ConversationMemory.astop_answer)
    history = for_session(ConversationMemory.history)
    ahistory = for_session(ConversationMemory.ahistory)

    def search(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        before: int | None = None,
        after: int | None = None,
        neighbours: int = 0,
    ) -> Hits:
        """:meth:`ConversationMemory.search` in this session."""
        return self.memory.search(
            query, session=self, limit=limit, offset=offset, before=before, after=after, neighbours=neighbours
        )

    asearch = asynchronous(search)

    clear = for_session(ConversationMemory.clear)
    aclear = for_session(ConversationMemory.aclear)
    truncate = for_session(ConversationMemory.truncate)
    atruncate = for_session(ConversationMemory.atruncate)
    pop = for_session(ConversationMemory.pop)
    apop = for_session(ConversationMemory.apop)
    fork = for_session(ConversationMemory.fork)
    afork = for_session(ConversationMemory.afork)
    redact = for_session(ConversationMemory.redact)
    aredact = for_session(ConversationMemory.aredact)
    compact = for_session(ConversationMemory.compact)
    acompact = for_session(ConversationMemory.acompact)
    rebuild = for_session(ConversationMemory.rebuild)
    arebuild = for_session(ConversationMemory.arebuild)
    request_compaction = for_session(ConversationMemory.request_compaction)
    arequest_compaction = for_session(ConversationMemory.arequest_compaction)
    request_rebuild = for_session(ConversationMemory.request_rebuild)
    arequest_rebuild = for_session(ConversationMemory.arequest_rebuild)
