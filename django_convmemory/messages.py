"""The message as a value: the fields of a chat-completions message, and the site's own notes about it.

A :class:`ChatMessage` has no id and no position. The store gives a message its identity.
"""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Self

from django_convmemory import content_parts
from django_convmemory.exceptions import InvalidMessage

ROLES = ("system", "developer", "user", "assistant", "tool")
PINNED_ROLES = frozenset({"system", "developer"})
MAX_DEPTH = 64
_MOST_BITS = 1024
# The rest is for what holds the value: the item of a framework, or the field of a message.
_DEEPEST_STORABLE = MAX_DEPTH - 8

# What the openai client adds to a reply when it parses one. Its endpoint refuses these fields.
_NEVER_SENT = frozenset({"parsed"})
_NEVER_SENT_IN_CALLS = frozenset({"parsed_arguments"})

# The id of a call that has none, and of its result. Gemini's and Ollama's compatible servers send such calls.
NO_CALL_ID = "call"

_WIRE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")

# The fields of ``extra`` that hold what only Anthropic, or only the Responses API, can read. No one else gets them.
ANTHROPIC = "anthropic"
RESPONSES = "responses"
OWN_FORMS = (ANTHROPIC, RESPONSES)

# The format of a message that came as a chat message, and not as an item of another framework.
CHAT = "chat"
# The kind of messages in which a model thinks aloud.
REASONING = "reasoning"
# The kinds that make a text one of the model: some prompts name such a speaker, and a search leaves reasoning out.
MODEL_KINDS = frozenset({"plan", REASONING, "summary", "recall"})


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed and so can be shared. It serializes and compares as a dict does."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("A message cannot be changed. Make a new one with dataclasses.replace().")

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


def freeze(value: Any, where: str, depth: int = 0, *, max_depth: int = MAX_DEPTH) -> Any:
    """Return the JSON ``value`` with every list as a tuple and every object as a :class:`FrozenDict`.

    ``where`` is the name of the value in error messages. Raises :class:`InvalidMessage` if JSON or one of the supported
    databases cannot hold the value.
    """
    if isinstance(value, str):
        return check_text(value, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidMessage(f"{where} holds {value}, which JSON cannot represent. Store it as a string or None.")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise InvalidMessage(f"{where} holds an integer of more than {_MOST_BITS} bits. Store it as a string.")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth >= max_depth:
        raise InvalidMessage(f"{where} is nested deeper than {max_depth} levels. Flatten it.")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidMessage(f"{where} has the key {key!r}. The keys of a JSON object are strings; convert it.")
        return FrozenDict(
            (check_text(key, where), freeze(item, f"{where}.{key}", depth + 1, max_depth=max_depth))
            for key, item in value.items()
        )
    if isinstance(value, (list, tuple)):
        return tuple(
            freeze(item, f"{where}[{index}]", depth + 1, max_depth=max_depth) for index, item in enumerate(value)
        )
    raise InvalidMessage(
        f"{where} holds a {type(value).__name__}, which is not JSON. Convert it to a string, number, list or dict."
    )


def frozen_json(value: Any) -> Any:
    """Return the frozen form of a value that was frozen before and then stored as JSON. Checks nothing."""
    if isinstance(value, dict):
        return FrozenDict((key, frozen_json(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(map(frozen_json, value))
    return value


def thaw(value: Any) -> Any:
    """Return a copy of a frozen value as plain dicts and lists."""
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


def loads(text: str | bytes) -> Any:
    """Return the value of a JSON text, or None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def as_text(value: Any) -> str:
    """Return a text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else dumps(value)


def storable(value: Any, depth: int = 0) -> Any:
    """Return a value of JSON without what no database stores: NUL, halves of surrogate pairs, and numbers such as NaN.

    Two halves that follow each other are joined. What is nested too deeply, and an integer that is too large, is text.
    So what a model or a tool has said is not lost.
    """
    if isinstance(value, str):
        if value.isascii():
            return value.replace("\0", "") if "\0" in value else value
        return value.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, (Mapping, list, tuple)) and depth >= _DEEPEST_STORABLE:
        return storable(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
    if isinstance(value, Mapping):
        return {
            storable(name) if isinstance(name, str) else name: storable(item, depth + 1) for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [storable(item, depth + 1) for item in value]
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return hex(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_text(text: str, where: str) -> str:
    """Return ``text`` as a plain str, or raise :class:`InvalidMessage` if a database would refuse it."""
    if type(text) is not str:  # str() of a (str, Enum) member is its name.
        text = str.__str__(text)
    if "\x00" in text:
        raise InvalidMessage(f"{where} contains a NUL character, which PostgreSQL cannot store. Remove it.")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(
                f"{where} contains a lone surrogate at index {error.start}, which is not valid Unicode. "
                "Decode the text with errors='replace'."
            ) from None
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a chat. It cannot be changed; ``dataclasses.replace()`` makes a new one.

    - ``role`` is one of ``system``, ``developer``, ``user``, ``assistant`` and ``tool``.
    - ``content`` is text, a tuple of content parts (dicts with a ``type``), or None. Only an assistant message may have
      None.
    - ``name`` is the speaker's name, or None.
    - ``tool_calls`` are the calls of an assistant message, as dicts with an ``id``. A call without one gets ``call``,
      and so does a result. The n-th result with an id answers the n-th call with it.
    - ``tool_call_id`` is the id of the call that a tool message answers.
    - ``kind`` (``chat``, ``plan``, ``reasoning``, ``summary``, …) and ``metadata`` belong to the site and are never
      sent to a provider. ``kind`` has at most 32 characters.
    - ``extra`` holds the chat-completions fields that this class does not know, and known fields that were null or
      empty. With them :meth:`to_openai` returns what :meth:`from_openai` was given, except what the client has parsed.
    - ``item`` is the item of another framework for which the message stands, a JSON object, or None. ``format`` names
      its form, in at most 32 characters: ``responses`` for an item of OpenAI's Responses API. The message is what is
      counted, shown, summarized and found. The item comes back as it was: ``history(items=True)``. After a redaction
      the format stays, and there is no item.
    - ``id`` is the id under which the message is to be stored, a UUID that no message of the session has. None: a new
      one. A message that was read does not have it, and it does not count when messages are compared.

    Raises :class:`~django_convmemory.exceptions.InvalidMessage` if a value cannot be stored or sent.
    """

    role: str
    content: str | tuple[FrozenDict, ...] | None = None
    name: str | None = None
    tool_calls: tuple[FrozenDict, ...] = ()
    tool_call_id: str | None = None
    kind: str = "chat"
    metadata: FrozenDict = _EMPTY
    extra: FrozenDict = _EMPTY
    format: str = CHAT
    item: FrozenDict | None = None
    id: uuid.UUID | None = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        role, content = self.role, self.content
        if role not in ROLES:
            raise InvalidMessage(f"Unknown role {role!r}. Use one of {', '.join(ROLES)}.")
        if isinstance(content, str):
            content = check_text(content, "content")
        elif content is not None:
            content = checked_parts(content)
        elif role != "assistant":
            raise InvalidMessage(f"A {role} message needs content: text or a list of content parts.")
        put = object.__setattr__  # The class is frozen.
        put(self, "role", str.__str__(role))
        put(self, "content", content)
        # Most messages have only these two. So the other fields are compared with their defaults first.
        if role == "tool" or self.tool_calls != () or self.name is not None or self.tool_call_id is not None:
            self._check_calls()
        if type(self.kind) is not str or self.kind != "chat":
            self._check_word("kind")
        if self.item is not None or self.format != CHAT:
            self._check_item()
        if self.metadata is not _EMPTY or self.extra is not _EMPTY:
            self._check_objects()
        if self.id is not None and not isinstance(self.id, uuid.UUID):
            raise InvalidMessage(f"id must be a UUID or None, not {self.id!r:.100}.")

    def _check_calls(self) -> None:
        put = object.__setattr__
        put(self, "tool_calls", self._calls(self.tool_calls) if self.tool_calls not in ((), [], None) else ())
        for field in ("name", "tool_call_id"):
            value: object = getattr(self, field)
            if value == "" and (field, self.role) == ("tool_call_id", "tool"):
                value = NO_CALL_ID
            if value is None:
                continue
            if not isinstance(value, str) or not value:
                raise InvalidMessage(f"{field} must be a non-empty string or None, not {value!r}.")
            put(self, field, check_text(value, field))
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise InvalidMessage(
                "A tool message needs a tool_call_id: the id of the call that it answers."
                if self.role == "tool"
                else f"Only a tool message may have a tool_call_id. The role of this message is {self.role!r}."
            )

    def _check_objects(self) -> None:
        for field in ("metadata", "extra"):
            value = getattr(self, field)
            if type(value) is not FrozenDict:
                if not isinstance(value, Mapping):
                    raise InvalidMessage(f"{field} must be a dict, not {type(value).__name__}.")
                object.__setattr__(self, field, freeze(value, field))
        if not self.extra:
            return
        for field in _WIRE_FIELDS:
            if self.extra.get(field) not in (None, ()):
                raise InvalidMessage(f"extra holds {field!r}, which is a field of the message. Pass it as {field}=….")
        for form in OWN_FORMS:
            own = self.extra.get(form)
            if own is not None and not isinstance(own, Mapping):
                raise InvalidMessage(f"{form} must be a dict with the content in that form, not {own!r:.100}.")
            checked_parts((own or {}).get("content") or (), f"{form}.content")

    def _check_word(self, field: str) -> None:
        word: object = getattr(self, field)
        if not isinstance(word, str) or not 0 < len(word) <= 32:
            raise InvalidMessage(f"{field} must be a string of 1 to 32 characters, not {word!r:.100}.")
        object.__setattr__(self, field, check_text(word, field))

    def _check_item(self) -> None:
        self._check_word("format")
        if self.item is None:
            return
        if self.format == CHAT:
            raise InvalidMessage("An item needs the name of its format, for example format='responses'.")
        item: object = self.item
        if not isinstance(item, Mapping) or not item:
            raise InvalidMessage(f"item must be a dict that is not empty, not {item!r:.100}.")
        if type(self.item) is not FrozenDict:
            object.__setattr__(self, "item", freeze(self.item, "item"))

    def _calls(self, tool_calls: Any) -> tuple[FrozenDict, ...]:
        if self.role != "assistant":
            raise InvalidMessage(
                f"Only an assistant message may have tool calls. The role of this message is {self.role!r}."
            )
        if not isinstance(tool_calls, (list, tuple)):
            raise InvalidMessage(f"tool_calls must be a list, not {type(tool_calls).__name__}.")
        for index, call in enumerate(tool_calls):
            if not isinstance(call, Mapping) or not isinstance(call.get("id") or "", str):
                raise InvalidMessage(f"tool_calls[{index}] must be a dict with an 'id', a string.")
        with_ids = [call if call.get("id") else {**call, "id": NO_CALL_ID} for call in tool_calls]
        calls: tuple[FrozenDict, ...] = freeze(with_ids, "tool_calls")
        return calls

    @classmethod
    def system(cls, content: str | Sequence[Mapping[str, Any]], **fields: Any) -> Self:
        """Make a message from the site to the model. A stored system message is pinned."""
        return cls("system", content, **fields)  # type: ignore[arg-type]

    @classmethod
    def human(cls, content: str | Sequence[Mapping[str, Any]], **fields: Any) -> Self:
        """Make a message from the user."""
        return cls("user", content, **fields)  # type: ignore[arg-type]

    @classmethod
    def ai(cls, content: str | Sequence[Mapping[str, Any]] | None = None, **fields: Any) -> Self:
        """Make a message from the model: text, ``tool_calls=[…]``, or both."""
        return cls("assistant", content, **fields)  # type: ignore[arg-type]

    @classmethod
    def tool(cls, content: str | Sequence[Mapping[str, Any]], tool_call_id: str, **fields: Any) -> Self:
        """Make the result of the tool call with the id ``tool_call_id``."""
        return cls("tool", content, tool_call_id=tool_call_id, **fields)  # type: ignore[arg-type]

    @classmethod
    def from_openai(
        cls,
        message: Any,
        *,
        kind: str = "chat",
        metadata: Mapping[str, Any] = _EMPTY,
        format: str = CHAT,  # noqa: A002  the name of the field
        item: Mapping[str, Any] | None = None,
    ) -> Self:
        """Make a message from a chat-completions dict or from the ``openai`` client's message object.

        Of an object, only the fields that the server sent are used. Defaults that the client filled in are ignored.
        Raises :class:`~django_convmemory.exceptions.InvalidMessage`.
        """
        message = as_mapping(message)
        if "role" not in message:
            raise InvalidMessage(f"The message has no role. Add 'role' with one of {', '.join(ROLES)}.")
        extra: dict[str, Any] = {}
        fields = {"role": message["role"], "content": None, "kind": kind}
        fields |= {"metadata": metadata, "format": format, "item": item}
        for field, value in message.items():
            if field in _WIRE_FIELDS and (isinstance(value, str) or value not in (None, [], ())):
                fields[field] = value
            elif field not in _NEVER_SENT and field != "role":
                extra[field] = value
        if message["role"] == "tool":
            fields.setdefault("tool_call_id", NO_CALL_ID)
        if "tool_calls" in fields:
            fields["tool_calls"] = _sent_calls(fields["tool_calls"])
        if extra:
            if extra.get("content") == []:
                fields["content"] = extra.pop("content")
            fields["extra"] = extra
        if cls is not ChatMessage:  # A subclass may have fields of its own.
            return cls(**fields)
        checked = cls.restore(**fields)
        checked.__post_init__()
        return checked

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
        format: str = CHAT,  # noqa: A002  the name of the field
        item: FrozenDict | None = None,
        id: uuid.UUID | None = None,  # noqa: A002  the name of the field
    ) -> Self:
        """Make a message from fields that came from a :class:`ChatMessage` before. For stores: checks nothing."""
        draft: Any = _Draft()
        draft.role = role
        draft.content = content
        draft.kind = kind
        draft.name = name
        draft.tool_calls = tool_calls
        draft.tool_call_id = tool_call_id
        draft.metadata = metadata
        draft.extra = extra
        draft.format = format
        draft.item = item
        draft.id = id
        draft.__class__ = cls
        message: Self = draft
        return message

    def to_openai(self) -> dict[str, Any]:
        """Return the message as a chat-completions dict: plain dicts and lists that the caller may change.

        Of an item of another framework, a file is its type in brackets, as is a thought. What only Anthropic or the
        Responses API can read is left out.
        """
        wire = {field: value for field, value in self.as_stored().items() if field not in OWN_FORMS}
        if isinstance(wire.get("content"), list):
            wire["content"] = [content_parts.without_stub(part) for part in wire["content"]]
        elif self.kind == REASONING and wire.keys() == {"role"}:
            wire["content"] = f"[{REASONING}]"
        return wire

    def as_stored(self) -> dict[str, Any]:
        """Return the chat-completions dict of which :meth:`from_openai` makes this message again."""
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
                # dataclasses.replace() may have given a value to a field that extra holds as null.
                wire.setdefault(field, thaw(value))
        return wire

    def size(self, limit: int) -> int:
        """Return the size in bytes. A text that is certainly smaller than ``limit`` is not measured: 0."""
        others = (self.tool_calls, self.extra, self.metadata, self.name, self.tool_call_id, self.item)
        if isinstance(self.content, str) and not any(others):
            return len(self.content.encode()) if len(self.content) * 4 > limit else 0
        item = () if self.item is None else (self.item,)
        return len(dumps([self.as_stored(), self.metadata, *item]).encode())

    def emptied(self) -> Self:
        """Return the message without its content, metadata, unknown fields, item and the arguments of its calls.

        The role, the kind, the format, the name, and the ids and names of its calls stay.
        """
        return dataclasses.replace(
            self,
            content=None if self.content is None else "",
            tool_calls=tuple(map(_emptied_call, self.tool_calls)),  # type: ignore[arg-type]
            metadata=_EMPTY,
            extra=_EMPTY,
            item=None,
        )

    def without_item(self) -> Self:
        """Return the message without the item for which it stands, as a chat message."""
        return self if self.format == CHAT else dataclasses.replace(self, format=CHAT, item=None)

    @property
    def text(self) -> str:
        """The text of the content. Text parts are joined by line feeds; without any text it is ""."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part["text"] for part in self.content or () if isinstance(part.get("text"), str))

    @property
    def pinned(self) -> bool:
        """Whether the message is pinned: stored system and developer messages come first and are never summarized."""
        return self.role in PINNED_ROLES

    @property
    def call_ids(self) -> tuple[str, ...]:
        """The ids of this message's tool calls, in order."""
        return tuple(call["id"] for call in self.tool_calls)


def checked_parts(content: Any, where: str = "content") -> tuple[FrozenDict, ...]:
    """Return content parts in their frozen form. Raises :class:`InvalidMessage` unless each is a dict with a type."""
    if not isinstance(content, (list, tuple)):
        raise InvalidMessage(f"{where} must be text, a list of content parts or None, not {type(content).__name__}.")
    for index, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise InvalidMessage(f"{where}[{index}] must be a dict with a 'type', like {{'type': 'text', …}}.")
    parts: tuple[FrozenDict, ...] = freeze(content, where)
    return parts


def as_mapping(message: Any) -> Mapping[str, Any]:
    """Return a dict, or the fields of a client's message that the server sent. Raises :class:`InvalidMessage`."""
    if type(message) is dict:
        return message
    for attribute, repair in (("choices", ".choices[0].message"), ("message", ".message"), ("output", ".output as *")):
        if hasattr(message, attribute) and not (hasattr(message, "role") or hasattr(message, "type")):
            raise InvalidMessage(f"A {type(message).__name__} is not a message. Pass its {repair}.")
    if hasattr(message, "model_dump") and not isinstance(message, type):
        message = message.model_dump(mode="json", exclude_unset=True, exclude=set(_NEVER_SENT))
    if not isinstance(message, Mapping):
        raise InvalidMessage(
            f"Cannot read a message from a {type(message).__name__}. "
            "Pass a ChatMessage, a chat-completions dict or the openai client's message."
            + (" Pass a list as append(*messages)." if isinstance(message, (list, tuple)) else "")
        )
    return message


class _Draft:
    """A mutable message under construction. Filling it takes a fifth of the time that a frozen dataclass takes."""

    # Python allows ``__class__`` to be assigned only if both classes have the same slots.
    __slots__ = ChatMessage.__slots__


def _sent_calls(tool_calls: Any) -> Any:
    """Return tool calls without what the openai client has added. Calls of another form stay as they are."""
    if not isinstance(tool_calls, (list, tuple)):
        return tool_calls

    def sent(details: Any) -> Any:
        if not isinstance(details, Mapping):
            return details
        return {name: value for name, value in details.items() if name not in _NEVER_SENT_IN_CALLS}

    return [
        {field: sent(value) for field, value in call.items()} if isinstance(call, Mapping) else call
        for call in tool_calls
    ]


def _emptied_call(call: Mapping[str, Any]) -> dict[str, Any]:
    emptied = {key: call[key] for key in ("id", "type") if key in call}
    for form, argument, empty in (("function", "arguments", "{}"), ("custom", "input", "")):
        if isinstance(call.get(form), Mapping):
            emptied[form] = {"name": call[form].get("name", ""), argument: empty}
    return emptied


def called(call: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the arguments of a call of a function or of a custom tool. What is missing is ""."""
    details = call.get("function") or call.get("custom")
    details = details if isinstance(details, Mapping) else {}
    arguments = details.get("arguments", details.get("input"))
    return str(details.get("name") or ""), "" if arguments is None else as_text(arguments)


def spoken(message: ChatMessage) -> str:
    """Return ``message`` as one text: content, tool calls, and a word in brackets for each part that is not text.

    What a model has spoken, and why it refuses, are its text too.
    """
    texts: list[str] = []
    if isinstance(message.content, str):
        texts.append(message.content)
    else:
        parts = [(part, content_parts.read(part)) for part in message.content or ()]
        texts += [read.text if read.kind == "text" else f"[{part['type']}]" for part, read in parts]
    if message.extra:
        texts += said_elsewhere(message.extra)
    for call in message.tool_calls:
        name, arguments = called(call)
        texts.append(f"[calls {name or 'a tool'}({arguments})]")
    return "\n".join(text for text in texts if text)


def said_elsewhere(extra: Mapping[str, Any]) -> list[str]:
    """Return what a model has said outside the content: why it refuses, and the transcript of its speech."""
    audio = extra.get("audio")
    transcript = audio.get("transcript") if isinstance(audio, Mapping) else None
    return [text for text in (extra.get("refusal"), transcript) if isinstance(text, str)]


def coerce(message: Any) -> ChatMessage:
    """Return a message, a chat-completions dict or a message of the ``openai`` client as a :class:`ChatMessage`."""
    return message if isinstance(message, ChatMessage) else ChatMessage.from_openai(message)
