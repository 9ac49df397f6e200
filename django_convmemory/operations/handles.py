"""The conversation memory with all operations, and what ``memory.session("x")`` returns.

Every operation is in one place: views, commands and tasks call it, and the asynchronous twins run it in a thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate

from asgiref.sync import markcoroutinefunction

from django_convmemory.exceptions import InvalidSession
from django_convmemory.operations import arguments
from django_convmemory.operations.arguments import NOT_GIVEN, Named
from django_convmemory.operations.edit import Edit
from django_convmemory.operations.folding import Folding, P, S, T, asynchronous
from django_convmemory.operations.streams import Streams
from django_convmemory.rules.values import SessionName
from django_convmemory.search.hits import Hits


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

    def adopt(self, visitor: str, user: Any) -> list[SessionHandle]:
        """Let a user adopt the sessions of a visitor in this memory, as at login. Return the sessions.

        If the user has a session with the same key, the adopted session gets a number: ``main (2)``.
        """
        for scope, value in (("visitor", visitor), ("user", user)):
            if value is None:
                raise InvalidSession(f"The {scope} is None. Pass both: the visitor, and the user who has logged in.")
        source, target = arguments.scope(self.store, visitor=visitor), arguments.scope(self.store, owner=user)
        names = self.store.adopt(self.alias, source["visitor"], target["owner_id"])
        return [SessionHandle(self, name) for name in names]

    aadopt = asynchronous(adopt)


def for_session(
    operation: Callable[Concatenate[S, str | Named, P], T],
) -> tuple[Callable[Concatenate[Any, P], T], Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]]:
    """Return two methods of a handle: they call ``operation`` and its asynchronous twin for the handle's session."""
    signature = inspect.signature(operation)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "session"]

    def calling(name: str) -> Callable[..., Any]:
        def method(handle: Any, /, *args: Any, **kwargs: Any) -> Any:
            # By name, so that it calls the operation of a subclass that overrides it.
            return getattr(handle.memory, name)(handle, *args, **kwargs)

        method.__dict__["__signature__"] = signature.replace(parameters=parameters)
        method.__name__ = name
        method.__qualname__ = f"SessionHandle.{name}"
        method.__doc__ = f":meth:`ConversationMemory.{name}` for this session."
        return method

    return calling(operation.__name__), markcoroutinefunction(calling(f"a{operation.__name__}"))


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

    create, acreate = for_session(ConversationMemory.create)
    update, aupdate = for_session(ConversationMemory.update)
    update_message, aupdate_message = for_session(ConversationMemory.update_message)
    delete, adelete = for_session(ConversationMemory.delete)
    append, aappend = for_session(ConversationMemory.append)
    replace, areplace = for_session(ConversationMemory.replace)
    load, aload = for_session(ConversationMemory.load)
    append_and_load, aappend_and_load = for_session(ConversationMemory.append_and_load)
    answer, aanswer = for_session(ConversationMemory.answer)
    stream_answer, astream_answer = for_session(ConversationMemory.stream_answer)
    stop_answer, astop_answer = for_session(ConversationMemory.stop_answer)
    history, ahistory = for_session(ConversationMemory.history)

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

    clear, aclear = for_session(ConversationMemory.clear)
    truncate, atruncate = for_session(ConversationMemory.truncate)
    pop, apop = for_session(ConversationMemory.pop)
    fork, afork = for_session(ConversationMemory.fork)
    redact, aredact = for_session(ConversationMemory.redact)
    compact, acompact = for_session(ConversationMemory.compact)
    rebuild, arebuild = for_session(ConversationMemory.rebuild)
    request_compaction, arequest_compaction = for_session(ConversationMemory.request_compaction)
    request_rebuild, arequest_rebuild = for_session(ConversationMemory.request_rebuild)
