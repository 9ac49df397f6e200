"""Reading what a model's client returned: a whole reply, or the chunks of one that is streamed.

Sources: the references of OpenAI's chat completions and Responses, and of Anthropic's messages, each with its streams.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from django_convmemory import content_parts
from django_convmemory.context.wire import forms
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage, called, freeze, loads, storable

logger = logging.getLogger(__name__)

# Why the three providers end a reply that has become too long.
_LENGTH = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
# The events with which a message may begin. Others, such as a ping, may follow its end.
_BEGINNINGS = ("message_start", "content_block_start", "response.")
# These fields never come in pieces.
_WHOLE_FIELDS = frozenset({"id", "type", "index"})

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
        message, content = self.message, self.message.content
        says = content.strip() if isinstance(content, str) else any(map(_says, content or ()))
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
        "anthropic client. A stream of theirs is for stream_answer."
    )


def _plain(value: Any) -> Mapping[str, Any]:
    value = getattr(value, "chunk", value)  # The stream helper of the openai client has its chunks in events.
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


class Chunks:
    """The chunks of one message. ``text`` is what was said so far.

    ``ended`` says that the model has ended it, and ``needs_end`` that it has to: a text without a form has no end.
    """

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self.needs_end = False
        # All calls, and the newest one with each index. Some servers give several one index.
        self._calls: list[dict[str, Any]] = []
        self._newest_calls: dict[Any, dict[str, Any]] = {}
        self._more: dict[str, Any] = {}
        # The completion of which the last chunk is.
        self._completion: Any = None
        # Of one of Anthropic's messages: its blocks, as its calls, and its other fields.
        self._blocks: list[dict[str, Any]] = []
        self._newest_blocks: dict[Any, dict[str, Any]] = {}
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
            # Gemini's servers give each chunk the reason of the end.
            is_same = plain.get("id") and _completion(plain) == self._completion
            return not is_same and any(choice.get("delta") for choice in plain["choices"] or ())
        kind = plain.get("type")
        return not isinstance(kind, str) or "role" in plain or kind.startswith(_BEGINNINGS)

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
        self._completion = _completion(chunk)
        self._usage = chunk.get("usage") or self._usage
        # Some servers give no reason, but the usage after all pieces.
        self.ended = self.ended or bool(self._usage and not chunk["choices"] and not self.is_empty)
        for choice in [choice for choice in chunk["choices"] if not choice.get("index")][:1]:
            self._end(choice.get("finish_reason"))
            delta = dict(choice.get("delta") or {})
            for number, call in enumerate(delta.pop("tool_calls", None) or ()):
                self._add_call(call, number)
            text = delta.pop("content", None) or ""
            if isinstance(text, list):  # Mistral's parts. Its thoughts are left out.
                text = "".join(content_parts.texts(text))
            if isinstance(delta.get("audio"), Mapping):  # The provider keeps the sound.
                delta["audio"] = {field: value for field, value in delta["audio"].items() if field != "data"}
            _join(self._more, {field: value for field, value in delta.items() if field != "role"})
            return text if isinstance(text, str) else ""
        return ""

    def _add_call(self, delta: Mapping[str, Any], number: int) -> None:
        index = delta.get("index")
        if index is None:  # Some servers send each call whole.
            index = delta.get("id") or number
        call = self._newest_calls.get(index)
        if call is None or _begins_call(call, delta):
            call = self._newest_calls[index] = {"type": "function"}
            self._calls.append(call)
        # Some servers send an empty id, or a new one, with each piece of the arguments.
        known = {"index", "id"} if call.get("id") else {"index"}
        _join(call, {field: value for field, value in delta.items() if field not in known})

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
                # A text alone would be read as a whole reply.
                self._whole, self.ended = read(dict(event["response"])), True
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
            block = self._newest_blocks[event["index"]] = dict(event["content_block"])
            self._blocks.append(block)
            # Another text begins in a line of its own.
            return ("\n" if self.text else "") + block["text"] if block.get("type") == "text" else ""
        block = self._newest_blocks[event["index"]]
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
            blocks = [whole for block in self._blocks for whole in self._whole_block(block)]
            own = {**self._own, "stop_reason": self._reason}
            return [Reply(forms.of_anthropic(storable({"content": blocks, **own}))[0], usage, cut_off)]
        fields = {"role": "assistant", "content": self.text or None, **storable(self._more)}
        if self._calls and self.ended:
            fields["tool_calls"] = storable(self._calls)
        return [Reply(ChatMessage.from_openai(fields), usage, cut_off)]

    def _whole_block(self, block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return one of Anthropic's blocks, or nothing if the message was cut off before its end."""
        if block["type"] == "text":
            return [block]
        if not self.ended:
            return []
        whole = {field: value for field, value in block.items() if field != "json"}
        return [whole | {"input": _object(block["json"])} if block.get("json") else whole]


def _completion(chunk: Mapping[str, Any]) -> tuple[Any, Any]:
    return chunk.get("id"), chunk.get("created")


def _begins_call(call: Mapping[str, Any], delta: Mapping[str, Any]) -> bool:
    """Whether ``delta`` begins another call than ``call``, which has the same index. Only a beginning has a name.

    Some servers send the name again with each piece.
    """
    (name, arguments), (_, before) = called(delta), called(call)
    ids = {each["id"] for each in (call, delta) if each.get("id")}
    return bool(name) and (len(ids) > 1 or bool(arguments and loads(before) is not None))


def _object(text: str) -> Any:
    """Return the input of a call. A model's JSON may be wrong."""
    value = loads(text)
    return {"_raw": text} if value is None else value


def _join(fields: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add the pieces in ``delta``: texts and lists are joined, and so are the fields of objects."""
    for field, value in delta.items():
        before = fields.get(field)
        if isinstance(value, Mapping):
            fields[field] = dict(before) if isinstance(before, Mapping) else {}
            _join(fields[field], value)
        elif value is None or (field == "name" and value == before):
            continue
        elif field in _WHOLE_FIELDS:
            fields[field] = value or before
        elif isinstance(value, (str, list)) and isinstance(before, type(value)):
            joined: Any = before
            fields[field] = joined + value
        else:
            fields[field] = value
