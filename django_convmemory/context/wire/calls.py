"""Tool calls and their results, for providers that pair them by ids in the whole request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from django_convmemory.messages import ChatMessage, dumps, text_parts

# Both Anthropic and OpenAI's Responses API accept such ids.
_VALID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_INVALID = re.compile(r"[^a-zA-Z0-9_-]")
_ROOM_FOR_NUMBER = 8
_LONGEST_NAME = 128


class ToolCall(NamedTuple):
    """A tool call. ``id`` is unique in the request, and ``name`` has no character that a provider refuses.

    ``arguments`` is JSON, or any text for a custom tool.
    """

    id: str
    kind: Literal["function", "custom"]
    name: str
    arguments: str
    result: ChatMessage


class CallingTurn(NamedTuple):
    """A message that is no result, with its calls.

    ``through`` is how many messages there are through it, and ``end`` how many there are through the last result.
    """

    message: ChatMessage
    calls: list[ToolCall]
    through: int
    end: int


def turns(messages: Sequence[ChatMessage]) -> Iterator[CallingTurn]:
    """Yield the turns of well-formed ``messages``: each result stands directly after the message that made the call.

    An id that providers refuse, or that an earlier call has, is replaced. The replacement depends on the messages
    before it only, so it stays the same when messages are added.
    """
    used: dict[str, int] = {}
    index = 0
    while index < len(messages):
        message = messages[index]
        index = through = index + 1
        results = {}
        while index < len(messages) and messages[index].role == "tool":
            results[messages[index].tool_call_id] = messages[index]
            index += 1
        calls = [_call(call, _unique(call["id"], used), results[call["id"]]) for call in message.tool_calls]
        yield CallingTurn(message, calls, through, index)


def _call(call: Mapping[str, Any], call_id: str, result: ChatMessage) -> ToolCall:
    custom = call.get("custom")
    if isinstance(custom, Mapping):
        return ToolCall(call_id, "custom", _name(custom), _text(custom.get("input")), result)
    function = call.get("function")
    if not isinstance(function, Mapping):
        function = {}
    return ToolCall(call_id, "function", _name(function), _text(function.get("arguments")), result)


def _name(function: Mapping[str, Any]) -> str:
    return _INVALID.sub("_", str(function.get("name", "")))[:_LONGEST_NAME] or "_"


def _text(arguments: Any) -> str:
    """Return the arguments of a call as text. Some servers send them as an object."""
    return arguments if isinstance(arguments, str) else "" if arguments is None else dumps(arguments)


def _unique(call_id: str, used: dict[str, int]) -> str:
    """Return ``call_id``, or an id in its place that is valid and not in ``used``. Add it to ``used``.

    The value of an id in ``used`` is the last number that was put after it. Some servers give each call the same id.
    """
    unique = call_id
    if not _VALID.fullmatch(call_id):
        unique = _INVALID.sub("_", call_id)[: 64 - _ROOM_FOR_NUMBER]
    if unique in used:
        base = unique[: 64 - _ROOM_FOR_NUMBER]
        number = used.get(base, 1) + 1
        while (unique := f"{base}_{number}") in used:
            number += 1
        used[base] = number
    used[unique] = 1
    return unique


def texts(message: ChatMessage) -> list[str]:
    """Return the texts of a message: of its parts, and the model's refusal."""
    content = message.content
    found = [content] if isinstance(content, str) else text_parts(content or ())
    parts = content if isinstance(content, tuple) else ()
    found += [part["refusal"] for part in (*parts, message.extra) if isinstance(part.get("refusal"), str)]
    return [text for text in found if text]
