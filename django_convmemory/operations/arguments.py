"""The arguments of the operations: checked, and brought into the form that stores take."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from django_convmemory.exceptions import InvalidArgument, InvalidMessage, InvalidSession
from django_convmemory.messages import ChatMessage, check_text, dumps, freeze, thaw
from django_convmemory.rules.values import MAX_KEY_LENGTH, MAX_TITLE_LENGTH, SessionName
from django_convmemory.search.searching import MAX_HITS, MAX_NEIGHBOURS
from django_convmemory.store import Store

# The default of arguments for which None has a meaning.
NOT_GIVEN: Any = object()
# The largest integer that JSON and every database represent exactly.
_MAX_INTEGER = 2**53 - 1
MAX_VISITOR_LENGTH = 64
# MariaDB refuses JSON that is nested deeper than 32 levels.
_MAX_METADATA_DEPTH = 30


class Named(Protocol):
    """An object that names a session: a handle, or a ``Session`` row."""

    @property
    def session_name(self) -> SessionName: ...


def session_name(store: Store, alias: str, key: object, owner: Any, visitor: Any) -> SessionName:
    """Return the name of the session with this key in a scope. Raises InvalidSession."""
    return SessionName(alias, check_key(key), **scope(store, owner, visitor))


def check_key(key: object) -> str:
    """Return the key of a session. Raises InvalidSession if it cannot be one."""
    if not isinstance(key, str) or not key or len(key) > MAX_KEY_LENGTH:
        raise InvalidSession(f"A session's key must be a string of 1 to {MAX_KEY_LENGTH} characters, not {key!r:.100}.")
    return _checked(key, "The key")


def scope(store: Store, owner: Any = NOT_GIVEN, visitor: Any = NOT_GIVEN) -> dict[str, Any]:
    """Return ``owner_id`` and ``visitor`` of an owner, of a visitor, or of nobody if neither is given.

    Raises InvalidSession for both, for what cannot own a session, and if None is all that is given.
    """
    given = [value for value in (owner, visitor) if value is not NOT_GIVEN]
    if given and all(value is None for value in given):
        raise InvalidSession(
            "The session needs an owner or a visitor, but what was passed is None. For a visitor, save "
            "request.session before you read its key. For a session that everybody shares, pass neither."
        )
    owner, visitor = (None if value is NOT_GIVEN else value for value in (owner, visitor))
    owner_id = None if owner is None else store.owner_id(owner)
    if owner is not None and visitor:
        raise InvalidSession("A session belongs to an owner or to a visitor, not to both. Pass only one of them.")
    if visitor is not None and (not isinstance(visitor, str) or not 0 < len(visitor) <= MAX_VISITOR_LENGTH):
        raise InvalidSession(
            f"A visitor must be a string of 1 to {MAX_VISITOR_LENGTH} characters, not {visitor!r:.100}."
        )
    return {"owner_id": owner_id, "visitor": _checked(visitor or "", "The visitor")}


def _checked(text: str, name: str) -> str:
    try:
        return check_text(text, name)
    except InvalidMessage as error:
        raise InvalidSession(str(error)) from None


def check_idempotency_key(key: object, name: str = "idempotency_key") -> str | None:
    """Return an idempotency key, or None if there is none. Raises InvalidMessage if it cannot be one.

    ``name`` is that of the argument.
    """
    if key is None:
        return None
    if not isinstance(key, str) or not key:
        raise InvalidMessage(
            f"{name} must be a string that is not empty, such as the header Idempotency-Key, not {key!r:.100}."
        )
    return check_text(key, name)


def usages(usage: Any, messages: Sequence[ChatMessage], max_bytes: int) -> list[Mapping[str, Any] | None]:
    """Return the usage of each message: that of the provider belongs to the last reply. Raises InvalidMessage."""
    found: list[Mapping[str, Any] | None] = [None] * len(messages)
    if usage is not None:
        replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
        if not replies:
            raise InvalidMessage("usage belongs to a reply. Pass it together with the assistant's message.")
        found[replies[-1]] = _usage(usage, max_bytes)
    return found


def _usage(usage: Any, max_bytes: int) -> Mapping[str, Any]:
    if hasattr(usage, "model_dump"):
        usage = usage.model_dump(mode="json", exclude_unset=True)
    if not isinstance(usage, Mapping):
        raise InvalidMessage(f"usage must be a dict or the openai client's usage, not {type(usage).__name__}.")
    frozen: Mapping[str, Any] = freeze(usage, "usage")
    check_size("usage", len(dumps(frozen).encode()), max_bytes)
    return frozen


def check_size(name: str, size: int, limit: int) -> None:
    """Raise InvalidMessage for a value of more than ``limit`` bytes."""
    if size > limit:
        raise InvalidMessage(
            f"The {name} has {size} bytes, and {limit} are allowed. Store large data elsewhere and a reference to it "
            "here, or raise the option max_message_bytes."
        )


def times(created_at: object, count: int) -> list[dt.datetime | None]:
    """Return the time of each of ``count`` messages. In UTC, because MariaDB's driver drops the time zone."""
    if not isinstance(created_at, Sequence) or isinstance(created_at, str):
        return [_utc(created_at)] * count
    if len(created_at) != count:
        raise InvalidMessage(f"created_at has {len(created_at)} times for {count} messages. Pass one for each.")
    return [_utc(time) for time in created_at]


def _utc(time: object) -> dt.datetime | None:
    if time is None:
        return None
    if not isinstance(time, dt.datetime) or time.utcoffset() is None:
        raise InvalidMessage(f"created_at must be a datetime with a time zone, not {time!r:.100}.")
    # Every database can store these years.
    if not 1000 < time.year < 9999:
        raise InvalidMessage(f"created_at is in the year {time.year}. Correct it, or leave it out.")
    return time.astimezone(dt.UTC)


def marks(**flags: Any) -> dict[str, bool]:
    """Return the flags of a session, without those that are NOT_GIVEN. Raises InvalidArgument."""
    for name, value in flags.items():
        if value is not NOT_GIVEN and not isinstance(value, bool):
            raise InvalidArgument(f"{name} must be True or False, not {value!r:.100}.")
    return {name: value for name, value in flags.items() if value is not NOT_GIVEN}


def description(title: Any, metadata: Any, max_bytes: int) -> dict[str, Any]:
    """Return the title and the metadata of a session, without those that are NOT_GIVEN.

    ``max_bytes`` bounds the metadata. Raises InvalidArgument.
    """
    changes: dict[str, Any] = {}
    try:
        if title is not NOT_GIVEN:
            if not isinstance(title, str) or len(title) > MAX_TITLE_LENGTH:
                raise InvalidArgument(
                    f"title must be a string of at most {MAX_TITLE_LENGTH} characters, not {title!r:.300}."
                )
            changes["title"] = check_text(title, "title")
        if metadata is not NOT_GIVEN:
            if not isinstance(metadata, Mapping):
                raise InvalidArgument(f"metadata must be a dict, not {metadata!r:.100}.")
            frozen = freeze(metadata, "metadata", max_depth=_MAX_METADATA_DEPTH)
            check_size("metadata", len(dumps(frozen).encode()), max_bytes)
            changes["metadata"] = thaw(frozen)
    except InvalidMessage as error:
        raise InvalidArgument(str(error)) from None
    return changes


def check_whole_number(
    value: Any, name: str, minimum: int = 0, maximum: int | None = _MAX_INTEGER, *, optional: bool = False
) -> None:
    """Raise InvalidArgument unless ``value`` is a whole number from ``minimum`` to ``maximum``. None: no maximum.

    An ``optional`` value may be None.
    """
    if optional and value is None:
        return
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < minimum or (maximum is not None and value > maximum):
        allowed = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise InvalidArgument(f"{name} must be a whole number {allowed}, not {value!r:.100}.")


def check_search(
    session: object, *others: object, limit: object, offset: object, before: object, after: object, neighbours: object
) -> None:
    """Raise InvalidArgument for numbers that no search takes. Positions need a ``session``.

    Raises InvalidSession unless exactly one of a session, and of ``others``, which stand for several, is not None.
    """
    check_whole_number(limit, "limit", minimum=1, maximum=MAX_HITS)
    check_whole_number(offset, "offset", maximum=MAX_HITS)
    check_whole_number(neighbours, "neighbours", maximum=MAX_NEIGHBOURS)
    for name, position in (("before", before), ("after", after)):
        check_whole_number(position, name, optional=True)
        if position is not None and session is None:
            raise InvalidArgument(f"{name} is a position in a session: pass the session too.")
    given = [scope for scope in (session, *others) if scope is not None]
    if len(given) != 1:
        raise InvalidSession(
            "search() looks into one session, or into all sessions of an owner, of a visitor or of a query: pass "
            f"exactly one of session, owner, visitor and sessions, not {len(given)}."
        )
