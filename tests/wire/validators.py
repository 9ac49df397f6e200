"""What providers accept, written from their documentation and the errors that they return, and not from our code.

Each public function yields what is wrong with a request, or nothing.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
_Wire = Sequence[Message]

_ROLES = {"system", "developer", "user", "assistant", "tool"}
# OpenAI: "Expected a string that matches the pattern".
_NAME = re.compile(r"[^\s<|\\/>]{1,64}")
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MOST_MARKS = 4


# OpenAI's chat completions.


def chat(messages: _Wire) -> Iterator[str]:
    """OpenAI's chat completions."""
    yield from _results_follow_their_calls(messages)
    for index, message in enumerate(messages):
        for problem in _message_of_chat(message):
            yield f"messages[{index}] ({message['role']}): {problem}"


def _results_follow_their_calls(messages: _Wire) -> Iterator[str]:
    expected: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in expected:
                yield f"no call before the result has the id {message['tool_call_id']!r}"
            else:
                expected.remove(message["tool_call_id"])
            continue
        if expected:
            yield f"the calls {expected} have no results yet"
        expected = list(dict.fromkeys(call["id"] for call in message.get("tool_calls", ())))
    if expected:
        yield f"the calls {expected} at the end have no results"


def _message_of_chat(message: Message) -> Iterator[str]:
    role, content, calls = message["role"], message.get("content"), message.get("tool_calls")
    if role not in _ROLES:
        yield "unknown role"
    if calls is not None and (role != "assistant" or not calls):
        yield "calls that may not stand here"
    if content is None and not (role == "assistant" and (calls or message.get("refusal"))):
        yield "no content"
    if content == []:
        yield "an empty list of parts"
    if message.get("name") is not None and not _NAME.fullmatch(message["name"]):
        yield "invalid name"


def strict_template(messages: _Wire) -> Iterator[str]:
    """The templates of Mistral and Gemma: at most one system message, the first. The user begins, then both alternate.

    Calls and their results do not count.
    """
    rest = list(messages)
    if rest and rest[0]["role"] == "system":
        rest.pop(0)
    if rest and rest[0]["role"] != "user":
        yield "the user does not begin"
    counted = [message for message in rest if message["role"] != "tool" and not message.get("tool_calls")]
    for index, message in enumerate(counted):
        if message["role"] != ("assistant" if index % 2 else "user"):
            yield f"message {index} that counts: {message['role']} does not alternate"
    for before, after in itertools.pairwise(message["role"] for message in rest):
        if before == after != "tool":
            yield f"two neighbours have the role {after}"
        if (before, after) == ("tool", "user"):
            yield "a user's message follows a result at once"


# Anthropic's Messages API.


def anthropic(arguments: Message) -> Iterator[str]:
    """Anthropic's Messages API."""
    if not set(arguments) <= {"system", "messages"} or arguments.get("system") == []:
        yield f"invalid arguments, or system is empty: {set(arguments)}"
    messages, system = arguments["messages"], arguments.get("system", ())
    yield from _roles_alternate(messages)
    yield from _results_come_next(messages)
    yield from _ids_are_unique(messages)
    blocks = [(message["role"], block) for message in messages for block in message["content"]]
    for role, block in [*(("system", block) for block in system), *blocks]:
        yield from _block(role, block)
    last_role, last = blocks[-1] if blocks else ("", {})
    if last_role == "assistant" and last.get("text", "") != last.get("text", "").rstrip():
        yield "the last text of the assistant ends with white space"
    marks = sum("cache_control" in block for block in [*system, *(block for _, block in blocks)])
    if marks > _MOST_MARKS:
        yield f"{marks} marks for the cache"


def _roles_alternate(messages: _Wire) -> Iterator[str]:
    for index, message in enumerate(messages):
        if set(message) != {"role", "content"} or not message["content"]:
            yield f"messages[{index}]: unknown fields, or empty"
        if message["role"] != ("assistant" if index % 2 else "user"):
            yield f"messages[{index}]: {message['role']} does not alternate"


def _results_come_next(messages: _Wire) -> Iterator[str]:
    expected: list[str] = []
    for index, message in enumerate(messages):
        kinds = [block["type"] for block in message["content"]]
        results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
        if sorted(results) != sorted(expected):
            yield f"messages[{index}]: the results {results} for the calls {expected}"
        if "tool_result" in kinds[len(results) :]:
            yield f"messages[{index}]: a result after something else"
        expected = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if expected and "text" in kinds[kinds.index("tool_use") :]:
            yield f"messages[{index}]: text after a call"
    if expected:
        yield f"the calls {expected} at the end have no results"


def _ids_are_unique(messages: _Wire) -> Iterator[str]:
    blocks = [block for message in messages for block in message["content"]]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    if len(ids) != len(set(ids)):
        yield f"the ids of calls are not unique: {ids}"


def _block(role: str, block: Message) -> Iterator[str]:
    rules = {"text": _text, "tool_use": _use, "tool_result": _result, "image": _source, "document": _source}
    places = {"text": ("system", "user", "assistant"), "tool_use": ("assistant",)}
    if block["type"] not in rules:
        yield f"unknown block {block['type']}"
    elif role not in places.get(block["type"], ("user",)):
        yield f"a block {block['type']} with the role {role}"
    else:
        yield from rules[block["type"]](block)


def _text(block: Message) -> Iterator[str]:
    if not block["text"].strip():
        yield "an empty text"


def _use(block: Message) -> Iterator[str]:
    if not _ANTHROPIC_ID.fullmatch(block["id"]) or not isinstance(block["input"], dict):
        yield "invalid id or input of a call"
    if not _TOOL_NAME.fullmatch(block["name"]):
        yield "invalid name of a tool"
    try:
        json.dumps(block["input"], allow_nan=False)
    except ValueError:
        yield "the input is not JSON"


def _result(block: Message) -> Iterator[str]:
    for inner in block.get("content", ()):
        yield from _block("user", inner)


def _source(block: Message) -> Iterator[str]:
    source = block["source"]
    images = ("image/jpeg", "image/png", "image/gif", "image/webp")
    if source["type"] == "base64" and source["media_type"] not in (
        images if block["type"] == "image" else ("application/pdf",)
    ):
        yield f"a block {block['type']} of the type {source['media_type']}"
    if source["type"] == "url" and not source["url"].startswith("https://"):
        yield "no https URL"


# OpenAI's Responses API.


def responses(items: _Wire) -> Iterator[str]:
    """OpenAI's Responses API."""
    calls: dict[str, str] = {}
    answered: set[str] = set()
    for item in items:
        kind = item["type"]
        if kind == "message":
            yield from _message_of_responses(item)
        elif kind in ("function_call", "custom_tool_call"):
            if not _TOOL_NAME.fullmatch(item["name"]):
                yield f"invalid name {item['name']!r}"
            if item["call_id"] in calls or not 1 <= len(item["call_id"]) <= 64:
                yield f"the id {item['call_id']} is not unique, or has {len(item['call_id'])} characters"
            calls[item["call_id"]] = kind
        elif calls.get(item["call_id"]) != kind.removesuffix("_output") or item["call_id"] in answered:
            yield f"a second result, or no call before it has the id {item['call_id']}"
        else:
            answered.add(item["call_id"])
    if set(calls) - answered:
        yield f"No tool output found for the calls {set(calls) - answered}"


def _message_of_responses(item: Message) -> Iterator[str]:
    if item["role"] not in ("system", "developer", "user", "assistant") or "name" in item:
        yield "unknown role or field"
    if item["content"] == []:
        yield "an empty list of parts"
    if item["role"] == "assistant" and not (isinstance(item["content"], str) and item["content"]):
        yield "an assistant without a text"
