"""The message as a value: what a chat-completions message says, and what a site noted about it.

A :class:`ChatMessage` carries no id and no position: identity belongs to the store.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self

from django_convmemory.exceptions import InvalidMessage

ROLES = ("system", "developer", "user", "assistant", "tool")
PINNED_ROLES = frozenset({"system", "developer"})
MAX_DEPTH = 64

_WIRE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes: it serializes and compares as a dict does, and can be shared."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("A message is a value and cannot be changed; use dataclasses.replace() to make another.")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


_EMPTY = FrozenDict()


def freeze(value: Any, where: str, depth: int = 0) -> Any:
    """Return ``value``, which must be JSON, with every list a tuple and every object a :class:`FrozenDict`.

    Raises :class:`InvalidMessage` that names ``where`` for what JSON, or one of the supported databases, cannot hold.
    """
    if isinstance(value, str):
        return check_text(value, where)
    if value is None or isinstance(value, (bool, int, float)):
        return _check_number(value, where)
    if depth >= MAX_DEPTH:
        raise InvalidMessage(f"{where} is nested deeper than {MAX_DEPTH} levels; flatten it.")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidMessage(f"{where} has the key {key!r}; JSON objects have strings as keys.")
        return FrozenDict(
            (check_text(key, where), freeze(item, f"{where}.{key}", depth + 1)) for key, item in value.items()
        )
    if isinstance(value, (list, tuple)):
        return tuple(freeze(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value))
    raise InvalidMessage(
        f"{where} holds a {type(value).__name__}, which is not JSON; convert it to a string, number, list or dict."
    )


def frozen_json(value: Any) -> Any:
    """Return a value that was frozen before, and stored as JSON, in its frozen form. Nothing is checked."""
    if isinstance(value, dict):
        return FrozenDict((key, frozen_json(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(map(frozen_json, value))
    return value


def _check_number(value: object, where: str) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidMessage(f"{where} holds {value}, which JSON has no form for; store it as a string or None.")
    if isinstance(value, int) and value.bit_length() > 1024:
        raise InvalidMessage(f"{where} holds an integer of more than 1024 bits; store it as a string.")
    return value


def thaw(value: Any) -> Any:
    """Return a copy of a frozen value made of plain dicts and lists."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [thaw(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Return ``value`` as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def check_text(text: str, where: str) -> str:
    """Return ``text`` as a plain str, or raise :class:`InvalidMessage` where a database would refuse it."""
    if type(text) is not str:  # of an enumeration, say, which formats as something else
        text = str.__str__(text)
    if "\x00" in text:
        raise InvalidMessage(f"{where} contains a NUL character, which PostgreSQL cannot store; remove it.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(
                f"{where} contains a lone surrogate at index {error.start}, which is not valid Unicode; "
                "decode the text with errors='replace'."
            ) from None
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat.

    ``content`` is text, a tuple of content parts (dicts with a ``type``), or None where only tool calls are said.
    ``kind`` (``chat``, ``plan``, ``reasoning``, ``summary``, …) and ``metadata`` are the site's own and are never sent
    to a provider. ``extra`` holds the fields of the wire form that this class does not know, and those that it spelled
    out as null or empty, so that :meth:`to_openai` gives back exactly what :meth:`from_openai` took.

    Raises :class:`~django_convmemory.exceptions.InvalidMessage` for anything that could not be stored or sent.
    """

    role: str
    content: str | tuple[FrozenDict, ...] | None = None
    name: str | None = None
    tool_calls: tuple[FrozenDict, ...] = ()
    tool_call_id: str | None = None
    kind: str = "chat"
    metadata: FrozenDict = _EMPTY
    extra: FrozenDict = _EMPTY

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InvalidMessage(f"Unknown role {self.role!r}; use one of {', '.join(ROLES)}.")
        put = object.__setattr__
        put(self, "role", check_text(self.role, "role"))
        if isinstance(self.content, str):
            put(self, "content", check_text(self.content, "content"))
        elif self.content is not None:
            put(self, "content", self._parts(self.content))
        elif self.role != "assistant":
            raise InvalidMessage(f"A {self.role} message needs content: text, or a list of content parts.")
        put(self, "tool_calls", self._calls(self.tool_calls) if self.tool_calls not in ((), [], None) else ())
        self._check_texts()
        for field in ("metadata", "extra"):
            value = getattr(self, field)
            if type(value) is not FrozenDict:
                if not isinstance(value, Mapping):
                    raise InvalidMessage(f"{field} must be a dict, not {type(value).__name__}.")
                put(self, field, freeze(value, field))
        for field in _WIRE_FIELDS:
            if self.extra and self.extra.get(field) not in (None, ()):
                raise InvalidMessage(f"extra holds {field!r}, which the message has a field for; give it as {field}=….")

    def _check_texts(self) -> None:
        for field in ("name", "tool_call_id"):
            value: object = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, str) or not value:
                raise InvalidMessage(f"{field} must be a text that is not empty, or None, not {value!r}.")
            object.__setattr__(self, field, check_text(value, field))
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise InvalidMessage(
                "A tool message needs tool_call_id, the id of the call that it answers."
                if self.role == "tool"
                else f"Only a tool message has a tool_call_id; this one is from {self.role!r}."
            )
        kind: object = self.kind
        if not isinstance(kind, str) or not 0 < len(kind) <= 32:
            raise InvalidMessage(f"kind must be a text of 1 to 32 characters, not {kind!r:.100}.")
        object.__setattr__(self, "kind", check_text(kind, "kind"))

    def _parts(self, content: Any) -> tuple[FrozenDict, ...]:
        if not isinstance(content, (list, tuple)):
            raise InvalidMessage(
                f"content must be text, a list of content parts or None, not {type(content).__name__}."
            )
        for index, part in enumerate(content):
            if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
                raise InvalidMessage(f"content[{index}] must be a dict with a 'type', like {{'type': 'text', …}}.")
        parts: tuple[FrozenDict, ...] = freeze(content, "content")
        return parts

    def _calls(self, tool_calls: Any) -> tuple[FrozenDict, ...]:
        if self.role != "assistant":
            raise InvalidMessage(f"Only an assistant message makes tool calls; this one is from {self.role!r}.")
        if not isinstance(tool_calls, (list, tuple)):
            raise InvalidMessage(f"tool_calls must be a list, not {type(tool_calls).__name__}.")
        for index, call in enumerate(tool_calls):
            if not isinstance(call, Mapping) or not isinstance(call.get("id"), str) or not call["id"]:
                raise InvalidMessage(f"tool_calls[{index}] must be a dict with an 'id' that its result can name.")
        calls: tuple[FrozenDict, ...] = freeze(tool_calls, "tool_calls")
        return calls

    # Constructors.

    @classmethod
    def system(cls, content: str | Sequence[Mapping[str, Any]], **fields: Any) -> Self:
        """A message of the site to the model; stored, it is pinned."""
        return cls("system", content, **fields)  # type: ignore[arg-type]

    @classmethod
    def human(cls, content: str | Sequence[Mapping[str, Any]], **fields: Any) -> Self:
        """A message of the user."""
        return cls("user", content, **fields)  # type: ignore[arg-type]

    @classmethod
    def ai(cls, content: str | Sequence[Mapping[str, Any]] | None = None, **fields: Any) -> Self:
        """A message of the model: text, ``tool_calls=[…]``, or both."""
        return cls("assistant", content, **fields)  # type: ignore[arg-type]

    @classmethod
    def tool(cls, content: str | Sequence[Mapping[str, Any]], tool_call_id: str, **fields: Any) -> Self:
        """The result of the tool call ``tool_call_id``."""
        return cls("tool", content, tool_call_id=tool_call_id, **fields)  # type: ignore[arg-type]

    @classmethod
    def from_openai(cls, message: Any, *, kind: str = "chat", metadata: Mapping[str, Any] = _EMPTY) -> Self:
        """Make a message of a chat-completions dict or of the ``openai`` client's message object.

        Of an object only what the server sent is taken: fields that the client filled in are not stored.
        Raises :class:`~django_convmemory.exceptions.InvalidMessage`.
        """
        if hasattr(message, "model_dump") and not isinstance(message, type):
            message = message.model_dump(mode="json", exclude_unset=True)
        if not isinstance(message, Mapping):
            raise InvalidMessage(
                f"Cannot read a message from a {type(message).__name__}; "
                "give a ChatMessage, a chat-completions dict or the openai client's message"
                + (
                    ", and several of them one after the other, as append(…, *messages) does."
                    if isinstance(message, (list, tuple))
                    else "."
                )
            )
        if "role" not in message:
            raise InvalidMessage(f"The message has no role; add 'role', one of {', '.join(ROLES)}.")
        known = {field: message[field] for field in _WIRE_FIELDS if message.get(field) not in (None, [], ())}
        extra = {field: value for field, value in message.items() if field not in known}
        if extra.get("content") == [] and "content" in extra:
            known["content"] = extra.pop("content")
        known.setdefault("role", message["role"])
        extra.pop("role", None)
        return cls(**known, kind=kind, metadata=metadata, extra=extra)  # type: ignore[arg-type]

    @classmethod
    def restore(
        cls,
        role: str,
        content: str | tuple[FrozenDict, ...] | None,
        kind: str,
        name: str | None = None,
        tool_calls: tuple[FrozenDict, ...] = (),
        tool_call_id: str | None = None,
        metadata: FrozenDict = _EMPTY,
        extra: FrozenDict = _EMPTY,
    ) -> Self:
        """Make a message of fields that came from a message before: for stores. Nothing is checked."""
        draft: Any = _Draft()
        draft.role = role
        draft.content = content
        draft.kind = kind
        draft.name = name
        draft.tool_calls = tool_calls
        draft.tool_call_id = tool_call_id
        draft.metadata = metadata
        draft.extra = extra
        draft.__class__ = cls
        message: Self = draft
        return message

    # Views.

    def to_openai(self) -> dict[str, Any]:
        """Return the chat-completions form, as plain dicts and lists that the caller may change."""
        wire: dict[str, Any] = {"role": self.role}
        content = self.content
        if content is not None:
            wire["content"] = content if type(content) is str else thaw(content)
        if self.name is not None:
            wire["name"] = self.name
        if self.tool_calls:
            wire["tool_calls"] = thaw(self.tool_calls)
        if self.tool_call_id is not None:
            wire["tool_call_id"] = self.tool_call_id
        if self.extra:
            for field, value in self.extra.items():
                # A field spelled out as null may have been given a value since, by dataclasses.replace().
                wire.setdefault(field, thaw(value))
        return wire

    def emptied(self) -> Self:
        """Return the message without what it says: no content, metadata, unknown fields, nor arguments of its calls.

        Role, kind and name stay, and so do the ids and the names of its calls.
        """
        return dataclasses.replace(
            self,
            content=None if self.content is None else "",
            tool_calls=tuple(map(_emptied_call, self.tool_calls)),  # type: ignore[arg-type]
            metadata=_EMPTY,
            extra=_EMPTY,
        )

    @property
    def text(self) -> str:
        """The text of the content: all of it, or its text parts, a line each; "" where there is none."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(text_parts(self.content or ()))

    @property
    def pinned(self) -> bool:
        """Whether a store keeps this message in front, verbatim, for ever."""
        return self.role in PINNED_ROLES

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The ids of the tool calls that this message makes, in order."""
        return tuple(call["id"] for call in self.tool_calls)


class _Draft:
    """A message that is being put together. To fill it, and make it one, takes a fifth of what a frozen one takes."""

    # The same layout, so that it can become one.
    __slots__ = ChatMessage.__slots__


def _emptied_call(call: Mapping[str, Any]) -> dict[str, Any]:
    emptied = {key: call[key] for key in ("id", "type") if key in call}
    for form, argument, empty in (("function", "arguments", "{}"), ("custom", "input", "")):
        if isinstance(call.get(form), Mapping):
            emptied[form] = {"name": call[form].get("name", ""), argument: empty}
    return emptied


def text_parts(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the texts of the content parts that have one."""
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def coerce(message: Any) -> ChatMessage:
    """Return ``message`` as a :class:`ChatMessage`, whichever of the accepted forms it has."""
    if isinstance(message, ChatMessage):
        return message
    for attribute, repair in (("choices", ".choices[0].message"), ("message", ".message")):
        if hasattr(message, attribute) and not hasattr(message, "role"):
            raise InvalidMessage(f"A {type(message).__name__} is no message. Give its {repair}.")
    return ChatMessage.from_openai(message)
