"""Tool calls and their results, for providers that pair them by ids in the whole request."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

from django_convmemory import content_parts
from django_convmemory.messages import ChatMessage, called, dumps, said_elsewhere

# Every provider accepts such ids. OpenAI's chat completions refuse longer ones.
_INVALID = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_ID = 40
# The calls that a message has, in the forms of their providers, and its thoughts.
CALLS = frozenset({"tool_use", "function_call", "custom_tool_call"})
THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
# What names, by its id, that a thought of the Responses API comes before it.
FOLLOWING = frozenset({"message", "function_call", "custom_tool_call"})
_LONGEST_NAME = 64


class ToolCall(NamedTuple):
    """A tool call. Its ``name`` has no character that a provider refuses.

    ``arguments`` is JSON of an object, or any text for a custom tool.
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


def with_ids(messages: Sequence[ChatMessage], positions: Sequence[int | None]) -> Sequence[ChatMessage]:
    """Return well-formed ``messages`` with ids of calls that are unique and that every provider accepts.

    An id that an earlier call has gets the message's position after it, so that it stays the same in later contexts.
    """
    ids = UniqueNames(_LONGEST_ID)
    waiting: list[str] = []
    changed: list[ChatMessage] = []
    for message, position in zip(messages, positions, strict=True):
        if message.role == "tool" and waiting:
            call_id = waiting.pop(0)
            if call_id != message.tool_call_id:
                message = dataclasses.replace(message, tool_call_id=call_id)
        elif message.tool_calls:
            waiting = [ids.unique(_INVALID.sub("_", call_id), f"_{position}") for call_id in message.call_ids]
            if waiting != list(message.call_ids):
                calls = [{**call, "id": call_id} for call, call_id in zip(message.tool_calls, waiting, strict=True)]
                message = dataclasses.replace(message, tool_calls=calls)  # type: ignore[arg-type]
        changed.append(message)
    return changed


class UniqueNames:
    """The names that a request has so far, each of at most ``longest`` characters."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._used: set[str] = set()
        self._candidates: dict[tuple[str, str], Iterator[str]] = {}

    def unique(self, name: str, suffix: str = "") -> str:
        """Return ``name``, or if it is used, ``name`` with ``suffix`` and perhaps a number after it."""
        # They go on after the last one, because some messages have thousands of calls with one id.
        candidates = self._candidates.setdefault((name, suffix), self._candidates_of(name, suffix))
        unique = next(candidate for candidate in candidates if candidate not in self._used)
        self._used.add(unique)
        return unique

    def _candidates_of(self, name: str, suffix: str) -> Iterator[str]:
        yield name[: self._longest]
        for number in itertools.count(1 if suffix else 2):
            end = suffix if number == 1 else f"{suffix}_{number}"
            yield name[: self._longest - len(end)] + end


def turns(messages: Sequence[ChatMessage]) -> Iterator[CallingTurn]:
    """Yield the turns of well-formed ``messages``: each result stands directly after the message that made the call."""
    index = 0
    while index < len(messages):
        message = messages[index]
        index = through = index + 1
        results = messages[index : index + len(message.tool_calls)]
        index += len(results)
        calls = [_call(call, result) for call, result in zip(message.tool_calls, results, strict=True)]
        yield CallingTurn(message, calls, through, index)


def _call(call: Mapping[str, Any], result: ChatMessage) -> ToolCall:
    kind: Literal["function", "custom"] = "custom" if isinstance(call.get("custom"), Mapping) else "function"
    return ToolCall(call["id"], kind, *name_and_arguments(call), result)


def name_and_arguments(call: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of a call as providers accept it, and the arguments: of a function, JSON of an object.

    Some servers, such as llama.cpp and vLLM, read it, and refuse each request that has anything else.
    """
    name, arguments = called(call)
    if not isinstance(call.get("custom"), Mapping):
        arguments = _as_object(arguments)
    return _INVALID.sub("_", name)[:_LONGEST_NAME] or "_", arguments


def _as_object(arguments: str) -> str:
    if not arguments.strip():
        return "{}"
    try:
        value = json.loads(arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = arguments
    return arguments if isinstance(value, dict) else dumps({"_raw": value})


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}.")


def texts(message: ChatMessage) -> list[str]:
    """Return the texts of a message: of its parts, the model's refusal, and what it has spoken."""
    content = message.content
    found = [content] if isinstance(content, str) else content_parts.texts(content or ())
    return [text for text in (*found, *said_elsewhere(message.extra)) if text]


def own_form(message: ChatMessage, form: str, model: str | None) -> Sequence[Mapping[str, Any]]:
    """Return the blocks or items that a reply had in the form of its provider, or () if it has none.

    Without thoughts, if they are those of another model than ``model``.
    """
    own = message.extra.get(form)
    if message.role != "assistant" or not isinstance(own, Mapping):
        return ()
    parts = [part for part in own.get("content") or () if isinstance(part, Mapping)]
    if len(message.tool_calls) != sum(part.get("type") in CALLS for part in parts):
        return ()
    if model and own.get("model") not in (None, model):
        parts = [
            {name: value for name, value in part.items() if name != "id" or part.get("type") not in FOLLOWING}
            for part in parts
            if part.get("type") not in THOUGHTS
        ]
    return parts
