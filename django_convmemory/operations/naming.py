"""Naming: which session a key, a handle or a row stands for, and whose it is."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from django_convmemory.exceptions import InvalidMessage, InvalidSession
from django_convmemory.messages import check_text
from django_convmemory.operations.arguments import NOT_GIVEN
from django_convmemory.rules.values import MAX_KEY_LENGTH, SessionName
from django_convmemory.store.either import Store

MAX_VISITOR_LENGTH = 64


@runtime_checkable
class Named(Protocol):
    """An object that names a session: a handle, or a ``Session`` row."""

    @property
    def session_name(self) -> SessionName: ...


class Scope(NamedTuple):
    """Whose a session is: a user's, a visitor's, or nobody's."""

    owner_id: Any = None
    visitor: str = ""


def session_name(
    store: Store, alias: str, key: object, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN
) -> SessionName:
    """Return the name of the session with this key in a scope. Raises InvalidSession."""
    return SessionName(alias, check_key(key), *scope(store, owner, visitor))


def check_key(key: object) -> str:
    """Return the key of a session. Raises InvalidSession if it cannot be one."""
    if not isinstance(key, str) or not key or len(key) > MAX_KEY_LENGTH:
        raise InvalidSession(f"A session's key must be a string of 1 to {MAX_KEY_LENGTH} characters, not {key!r:.100}.")
    return _checked(key, "The key")


def scope(store: Store, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> Scope:
    """Return the scope of an owner, of a visitor, or of nobody if neither is given.

    Raises InvalidSession for both, for what cannot own a session, and if None is all that is given.
    """
    given = [value for value in (owner, visitor) if value is not NOT_GIVEN]
    if given and all(value is None for value in given):
        raise InvalidSession(
            "The session needs an owner or a visitor, but what was passed is None. For a visitor, save "
            "request.session before you read its key. For a session that everybody shares, pass neither."
        )
    owner = None if owner is NOT_GIVEN else owner
    visitor = None if visitor is NOT_GIVEN else visitor
    owner_id = None
    if owner is not None:
        owner_id = store.owner_id(owner)
        if visitor:
            raise InvalidSession("A session belongs to an owner or to a visitor, not to both. Pass only one of them.")
    if visitor is not None and (not isinstance(visitor, str) or not 0 < len(visitor) <= MAX_VISITOR_LENGTH):
        raise InvalidSession(
            f"A visitor must be a string of 1 to {MAX_VISITOR_LENGTH} characters, not {visitor!r:.100}."
        )
    return Scope(owner_id, _checked(visitor or "", "The visitor"))


def _checked(text: str, name: str) -> str:
    try:
        return check_text(text, name)
    except InvalidMessage as error:
        raise InvalidSession(str(error)) from None


def resolve(alias: str, session: str | Named) -> SessionName:
    """Return the name of the session of ``alias`` that a key, a handle or a row stands for.

    Raises InvalidSession, also for a session of another alias.
    """
    if isinstance(session, str):
        return SessionName(alias, check_key(session))
    # isinstance() with a protocol would take longer than the rest of this function.
    name = getattr(session, "session_name", None)
    if not isinstance(name, SessionName):
        raise InvalidSession(f"Pass the session as a key, a handle or a Session row, not as {type(session).__name__}.")
    if name.alias != alias:
        raise InvalidSession(
            f"The session {name.key!r} belongs to memories[{name.alias!r}], not to memories[{alias!r}]."
        )
    return name
