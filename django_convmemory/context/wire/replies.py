"""Reading what a model's client returned: a whole reply, or the chunks of one that is streamed.

Sources: the references of OpenAI's chat completions and Responses, and of Anthropic's messages, each with its streams.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from django_convmemory.context.wire import forms
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage, freeze, storable

logger = logging.getLogger(__name__)

# Why the three providers end a reply that has become too long.
_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})


P = ParamSpec("P")
T = TypeVar("T")


def _as_documented(read: Callable[P, T]) -> Callable[P, T]:
    """Raise InvalidMessage if a reply has not the form that its provider documents. Clients do not check that."""

    @functools.wraps(read)
    def checking(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidMessage):
                raise
            raise InvalidMessage(
                f"The model's reply does not have the form that its API documents: {error!r:.200}"
            ) from error

    return checking


class Reply(NamedTuple):
    """A message of the model, with what the provider reported about it. ``cut_off`` is "length" or ""."""

    message: ChatMessage
    usage: Any = None
    cut_off: str = ""

    @property
    def is_blank(self) -> bool:
        """Whether it has no text, call, refusal, transcript or file."""
        message = self.message
        parts = [message.content] if isinstance(message.content, str) else message.content or ()
        says = [part for part in parts if (part.strip() if isinstance(part, str) else _says(part))]
        return not (says or message.tool_calls or message.extra.get("refusal") or message.extra.get("audio"))


def _says(part: Mapping[str, Any]) -> bool:
    text = part.get("text", part.get("refusal"))
    return bool(text.strip()) if isinstance(text, str) else True


@_as_documented
def read(result: Any) -> list[Reply]:
    """Return the messages of a reply: a text, a message, a reply of a client, or a list of these.

    A completion without a message, as some servers send instead of an error, has none. Raises
    :class:`~django_convmemory.exceptions.InvalidMessage` for anything else.
    """
    if isinstance(result, (list, tuple)):
        return [reply for one in result for reply in read(one)]
    if isinstance(result, str):
        return [Reply(ChatMessage.ai(storable(result)))]
    if isinstance(result, ChatMessage):
        return [Reply(message) for message in forms.chat_messages([result])]
    plain = storable(_plain(result))
    usage = _usage(plain.get("usage"))
    if "choices" in plain or hasattr(result, "choices"):
        choice: Mapping[str, Any] = next(iter(plain.get("choices") or ()), {})
        if not choice.get("message"):
            return []
        return [Reply(ChatMessage.from_openai(choice["message"]), usage, _cut_off(choice.get("finish_reason")))]
    if isinstance(plain.get("output"), list):
        reason = (plain.get("incomplete_details") or {}).get("reason")
        return [Reply(forms.of_response(plain["output"], plain.get("model")), usage, _cut_off(reason))]
    if "stop_reason" in plain:
        return [Reply(forms.of_anthropic(plain)[0], usage, _cut_off(plain["stop_reason"]))]
    if "role" in plain or "type" in plain:
        return [Reply(message) for message in forms.chat_messages([plain])]
    raise InvalidMessage(
        f"Cannot read a reply from a {type(result).__name__}. Return a text, a message, or the reply of the openai or "
        "anthropic client."
    )


def _plain(value: Any) -> Mapping[str, Any]:
    if hasattr(value, "model_dump") and not isinstance(value, type):
        value = value.model_dump(mode="json", exclude_unset=True, warnings=False)
    return value if isinstance(value, Mapping) else {}


def _usage(reported: Any) -> Mapping[str, Any] | None:
    """Return what the provider reported, or None if it cannot be stored: the reply is worth more."""
    try:
        return freeze(reported, "usage") if isinstance(reported, Mapping) and reported else None
    except InvalidMessage as error:
        logger.warning("The usage of a reply is not stored: %s", error)
        return None


def _cut_off(reason: Any) -> str:
    return "length" if isinstance(reason, str) and reason in _LENGTH else ""


def _message(text: str, calls: list[dict[str, Any]], refusal: str = "", extra: Mapping[str, Any] = {}) -> ChatMessage:
    fields: dict[str, Any] = {"role": "assistant", "content": text or None, **extra}
    if calls:
        fields["tool_calls"] = calls
    if refusal:
        fields["refusal"] = refusal
    return ChatMessage.from_openai(fields)


class Chunks:
    """The chunks of one message. ``text`` is what was said so far.

    ``ended`` says that the model has ended it, and ``needs_end`` that it has to: a text without a form has no end.
    """

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self.needs_end = False
        self._calls: dict[Any, dict[str, Any]] = {}
        self._more: dict[str, Any] = {}
        # Of one of Anthropic's messages: its blocks, and its other fields.
        self._blocks: dict[int, dict[str, Any]] = {}
        self._own: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._reason: Any = None
        self._whole: list[Reply] = []
        # The first half of a surrogate pair, of which the other half comes in the next piece.
        self._half = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said."""
        return not (self.text.strip() or self._calls or self._more or self._blocks or self._whole)

    @property
    def has_calls(self) -> bool:
        """Whether the message makes calls."""
        whole = [*self._whole, *(self.replies() if self._blocks else ())]
        return bool(self._calls) or any(reply.message.tool_calls for reply in whole)

    @_as_documented
    def begins_another(self, chunk: Any) -> bool:
        """Whether ``chunk`` belongs to the message after this one, which has ended."""
        if not self.ended:
            return False
        plain = _plain(chunk)
        if "choices" in plain:
            return any(choice.get("delta") for choice in plain["choices"])
        return plain.get("type") not in ("message_stop", "content_block_stop", "message_delta", "text")

    @_as_documented
    def add(self, chunk: Any) -> str:
        """Add a chunk: a text, a chunk of a client, or a whole reply. Return the text that it adds."""
        text = self._half + (chunk if isinstance(chunk, str) else self._read(chunk))
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        added: str = storable(text[: len(text) - len(self._half)])
        self.text += added
        return added

    def _read(self, chunk: Any) -> str:
        """Add a chunk that is no text, and return the text in it."""
        plain = _plain(chunk)
        choices, kind = plain.get("choices"), plain.get("type")
        if isinstance(choices, list) and not any("message" in choice for choice in choices):
            return self._chat(plain)
        if isinstance(kind, str) and "role" not in plain:
            return self._event(kind, plain)
        self._whole += read(chunk)
        self.ended = True
        return "\n".join(reply.message.text for reply in self._whole)[len(self.text) :]

    def _chat(self, chunk: Mapping[str, Any]) -> str:
        """Add a chunk of chat completions. The usage comes after the end, in a chunk without choices."""
        self.needs_end = True
        self._usage = chunk.get("usage") or self._usage
        # Some servers give no reason, but the usage is always the last.
        self.ended = self.ended or bool(self._usage and not chunk["choices"])
        for choice in chunk["choices"][:1]:
            self._end(choice.get("finish_reason"))
            delta = dict(choice.get("delta") or {})
            for number, call in enumerate(delta.pop("tool_calls", None) or ()):
                self._add_call(call, number)
            text = delta.pop("content", None) or ""
            if isinstance(delta.get("audio"), Mapping):  # The provider keeps the sound.
                delta["audio"] = {field: value for field, value in delta["audio"].items() if field != "data"}
            _join(self._more, {field: value for field, value in delta.items() if field != "role"})
            return text if isinstance(text, str) else ""
        return ""

    def _add_call(self, delta: Mapping[str, Any], number: int) -> None:
        index = delta.get("index")
        if index is None:  # Some servers send each call whole.
            index = delta.get("id") or number
        call = self._calls.setdefault(index, {"type": "function"})
        if delta.get("id"):
            call["id"] = delta["id"]
        if delta.get("type"):
            call["type"] = delta["type"]
        # The names and arguments come in pieces.
        _join(call, {field: value for field, value in delta.items() if field not in ("index", "id", "type")})

    def _event(self, kind: str, event: Mapping[str, Any]) -> str:
        """Add an event of the Responses API or of Anthropic."""
        self.needs_end = True
        delta = event.get("delta")
        match kind:
            case "response.output_text.delta":
                return str(delta)
            case "response.refusal.delta":
                _join(self._more, {"refusal": str(delta)})
            case "response.completed" | "response.incomplete":
                self._whole, self.ended = read(event["response"]), True
            case "message_start":
                self._usage = dict(event["message"].get("usage") or {})
                self._own = {"model": event["message"].get("model")}
            case "content_block_start" | "content_block_delta":
                return self._block(event)
            case "message_delta" if isinstance(delta, Mapping):
                self._usage |= event.get("usage") or {}
                self._end(delta.get("stop_reason"))
        return ""

    def _block(self, event: Mapping[str, Any]) -> str:
        """Add the beginning or a piece of one of Anthropic's blocks."""
        delta = event.get("delta") or {}
        if event["type"] == "content_block_start":
            block = self._blocks[event["index"]] = dict(event["content_block"])
            # Another text begins in a line of its own.
            return ("\n" if self.text else "") + block["text"] if block.get("type") == "text" else ""
        block = self._blocks[event["index"]]
        match delta.get("type"):
            case "text_delta":
                block["text"] += delta["text"]
                return str(delta["text"])
            case "input_json_delta":
                block["json"] = block.get("json", "") + delta["partial_json"]
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
            case "thinking_delta" | "signature_delta":
                _join(block, {field: value for field, value in delta.items() if field != "type"})
        return ""

    def _end(self, reason: Any) -> None:
        if reason is not None:
            self._reason, self.ended = reason, True

    @_as_documented
    def replies(self) -> list[Reply]:
        """Return the messages that the chunks make."""
        if self._whole:
            return self._whole
        usage, cut_off = _usage(self._usage), _cut_off(self._reason)
        if self._blocks:
            blocks = [block for index in sorted(self._blocks) for block in self._whole_block(self._blocks[index])]
            own = {**self._own, "stop_reason": self._reason}
            return [Reply(forms.of_anthropic(storable({"content": blocks, **own}))[0], usage, cut_off)]
        calls = [call for call in self._calls.values() if self.ended]
        return [Reply(_message(self.text, storable(calls), extra=storable(self._more)), usage, cut_off)]

    def _whole_block(self, block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return one of Anthropic's blocks, or nothing if the message was cut off before its end."""
        if block["type"] == "text":
            return [block]
        if not self.ended:
            return []
        whole = {field: value for field, value in block.items() if field != "json"}
        return [whole | {"input": _object(block["json"])} if block.get("json") else whole]


def _object(text: str) -> Any:
    """Return the input of a call. A model's JSON may be wrong."""
    try:
        return json.loads(text)
    except ValueError:
        return {"_raw": text}


def _join(fields: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add the pieces in ``delta``: texts and lists are joined, and so are the fields of objects."""
    for field, value in delta.items():
        before = fields.get(field)
        if isinstance(value, Mapping):
            fields[field] = dict(before) if isinstance(before, Mapping) else {}
            _join(fields[field], value)
        elif (isinstance(value, str) and isinstance(before, str)) or isinstance(before, list):
            fields[field] = before + value
        elif value is not None:
            fields[field] = value
