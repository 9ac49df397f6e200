"""What providers accept, written from their documentation and the errors that they return, and not from our code.

Each public function yields what is wrong with a request, or nothing. What one server of a form refuses is wrong.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
_Wire = Sequence[Message]

# OpenAI: "Expected a string that matches the pattern".
_NAME = re.compile(r"[^\s<|\\/>]{1,64}")
_FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CHAT_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MOST_MARKS = 4


def _shape(value: Message, required: str, optional: str = "") -> Iterator[str]:
    """Yield the fields that ``value`` lacks, and those that the provider does not know."""
    needed = set(required.split())
    if missing := sorted(needed - set(value)):
        yield f"no {', '.join(missing)} in {value.get('type', 'it')}"
    if unknown := sorted(set(value) - needed - set(optional.split())):
        yield f"unknown fields in {value.get('type', 'it')}: {', '.join(unknown)}"


# OpenAI's chat completions.

_IN_PLACE_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio")
# The fields of each role. Servers that send the ones about reasoning document that they come back as they are.
_CHAT_FIELDS = {
    **dict.fromkeys(("system", "developer", "user"), "role content name"),
    "tool": "role content name tool_call_id",
    "assistant": "role content name annotations reasoning_content reasoning reasoning_details "
    + " ".join(_IN_PLACE_OF_CONTENT),
}
_CHAT_PARTS = {"user": ("text", "image_url", "input_audio", "file"), "assistant": ("text", "refusal")}
_CHAT_PART_FIELDS = {
    "image_url": ("url", "detail"),
    "input_audio": ("data format", ""),
    "file": ("", "file_data file_id filename"),
}


def chat(messages: _Wire) -> Iterator[str]:
    """OpenAI's chat completions."""
    yield from _results_follow_their_calls(messages)
    for index, message in enumerate(messages):
        if message["role"] not in _CHAT_FIELDS:
            yield f"messages[{index}]: unknown role {message['role']}"
        for problem in _message_of_chat(message):
            yield f"messages[{index}] ({message['role']}): {problem}"


def _results_follow_their_calls(messages: _Wire) -> Iterator[str]:
    expected: list[Any] = []
    seen: list[Any] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in expected:
                yield f"no call before the result has the id {message.get('tool_call_id')!r}"
            else:
                expected.remove(message["tool_call_id"])
            continue
        if expected:
            yield f"the calls {expected} have no results yet"
        expected = [call.get("id") for call in message.get("tool_calls") or ()]
        seen += expected
    if expected:
        yield f"the calls {expected} at the end have no results"
    if len(seen) != len(set(seen)):
        yield f"the ids of calls are not unique: {seen}"
    if invalid := [call_id for call_id in seen if not _CHAT_ID.fullmatch(call_id or "")]:
        yield f"invalid ids of calls: {invalid}"


def _message_of_chat(message: Message) -> Iterator[str]:
    role, content = message["role"], message.get("content")
    yield from _shape(message, "role tool_call_id" if role == "tool" else "role", _CHAT_FIELDS.get(role, "content"))
    if content is None and not (role == "assistant" and any(map(message.get, _IN_PLACE_OF_CONTENT))):
        yield "no content"
    if content == [] or (content == "" and role == "assistant"):
        yield "an empty content"
    for part in content if isinstance(content, list) else ():
        yield from _part_of_chat(role, part)
    if message.get("name") is not None and not _NAME.fullmatch(message["name"]):
        yield "invalid name"
    if message.get("audio") and set(message["audio"]) != {"id"}:
        yield "sound with more than its id"
    if not message.get("tool_calls", True):
        yield "an empty list of calls"
    for call in message.get("tool_calls") or ():
        yield from _call_of_chat(call)


def _part_of_chat(role: str, part: Message) -> Iterator[str]:
    kind = part["type"]
    if kind not in _CHAT_PARTS.get(role, ("text",)):
        yield f"a part {kind}"
        return
    yield from _shape(part, f"type {kind}")
    if not part.get(kind):
        yield f"an empty part {kind}"
    elif kind in _CHAT_PART_FIELDS:
        yield from _shape(part[kind], *_CHAT_PART_FIELDS[kind])


def _call_of_chat(call: Message) -> Iterator[str]:
    form = call.get("type")
    if form not in ("function", "custom"):
        yield f"a call of the type {form}"
        return
    # Gemini's endpoint wants the signature of its thought back, which is in extra_content.
    yield from _shape(call, f"id type {form}", "extra_content")
    details, text = call.get(form, {}), "arguments" if form == "function" else "input"
    yield from _shape(details, f"name {text}")
    if form == "function" and not _is_object(details.get(text)):
        yield "the arguments are not the JSON of an object"  # llama.cpp and vLLM read them.
    if not _FUNCTION_NAME.fullmatch(str(details.get("name"))) or not isinstance(details.get(text), str):
        yield "invalid name or arguments of a call"


def _is_object(text: Any) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (TypeError, ValueError):
        return False


def one_system(messages: _Wire) -> Iterator[str]:
    """The templates of Qwen: at most one system message, the first."""
    if not {"system", "developer"}.isdisjoint(message["role"] for message in messages[1:]):
        yield "a system message that is not the first"


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

# Where each block may stand, the fields that it needs, and those that it may have.
_BLOCKS = {
    "text": ("system user assistant tool_result", "text", "citations cache_control"),
    "image": ("user tool_result", "source", "cache_control"),
    "document": ("user tool_result", "source", "title context citations cache_control"),
    "search_result": ("user tool_result", "source title content", "citations cache_control"),
    "container_upload": ("user", "file_id", "cache_control"),
    "tool_result": ("user", "tool_use_id", "content is_error cache_control"),
    **dict.fromkeys(("tool_use", "server_tool_use"), ("assistant", "id name input", "caller cache_control")),
    "mcp_tool_use": ("assistant", "id name input server_name", "cache_control"),
    "web_search_tool_result": ("assistant", "tool_use_id content", "caller cache_control"),
    "mcp_tool_result": ("assistant", "tool_use_id content", "is_error cache_control"),
    "thinking": ("assistant", "thinking signature", ""),
    "redacted_thinking": ("assistant", "data", ""),
}
_THOUGHTS = ("thinking", "redacted_thinking")
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
# The fields of each source.
_SOURCES = {
    **dict.fromkeys(("base64", "text"), "type media_type data"),
    "url": "type url",
    "file": "type file_id",
    "content": "type content",
}


def anthropic(arguments: Message) -> Iterator[str]:
    """Anthropic's Messages API."""
    if not set(arguments) <= {"system", "messages"} or arguments.get("system") == []:
        yield f"invalid arguments, or system is empty: {set(arguments)}"
    messages, system = arguments["messages"], arguments.get("system", ())
    yield from _roles_alternate(messages)
    yield from _results_come_next(messages)
    blocks = [(message["role"], block) for message in messages for block in message["content"]]
    for role, block in [*(("system", block) for block in system), *blocks]:
        yield from _block(role, block)
    ids = [block["id"] for _, block in blocks if block["type"] in ("tool_use", "server_tool_use")]
    if len(ids) != len(set(ids)):
        yield f"the ids of calls are not unique: {ids}"
    if blocks and blocks[-1][0] == "assistant":
        yield "the conversation ends with the assistant"
    texts = [block["text"] for role, block in blocks if role == "assistant" and block["type"] == "text"]
    if texts and texts[-1] != texts[-1].rstrip():
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
        blocks, kinds = message["content"], [block["type"] for block in message["content"]]
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if sorted(results) != sorted(expected):
            yield f"messages[{index}]: the results {results} for the calls {expected}"
        if "tool_result" in kinds[len(results) :]:
            yield f"messages[{index}]: a result after something else"
        expected = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if expected and not {"text", *_THOUGHTS}.isdisjoint(kinds[kinds.index("tool_use") :]):
            yield f"messages[{index}]: a text or a thought after a call"
        if not set(kinds).isdisjoint(_THOUGHTS) and (kinds[0] not in _THOUGHTS or kinds[-1] in _THOUGHTS):
            yield f"messages[{index}]: with a thought, but it does not begin with one, or ends with one"
        served = [block["tool_use_id"] for block in blocks if block["type"].endswith("_tool_result")]
        if served != [block["id"] for block in blocks if block["type"] in ("server_tool_use", "mcp_tool_use")]:
            yield f"messages[{index}]: the server's results are not those of its calls"
    if expected:
        yield f"the calls {expected} at the end have no results"


def _block(place: str, block: Message) -> Iterator[str]:
    places, required, optional = _BLOCKS.get(block["type"], ("", "", ""))
    if place not in places.split():
        yield f"a block {block['type']} in {place}"
        return
    yield from _shape(block, f"type {required}", optional)
    if block["type"] == "text" and not block["text"].strip():
        yield "an empty text"
    elif block["type"] == "thinking" and not block.get("signature"):
        yield "a thought without its signature"
    elif block["type"] in ("image", "document"):
        yield from _source(block["type"], block["source"])
    elif block["type"] == "tool_result":
        inner = block.get("content") or ()
        if block.get("is_error") and not inner:
            yield "an error without content"
        for each in [{"type": "text", "text": inner}] if isinstance(inner, str) else inner:
            yield from _block("tool_result", each)
    elif "input" in required.split():
        yield from _use(block)


def _use(block: Message) -> Iterator[str]:
    if not _ANTHROPIC_ID.fullmatch(block["id"]) or not isinstance(block["input"], dict):
        yield "invalid id or input of a call"
    if not _TOOL_NAME.fullmatch(block["name"]):
        yield "invalid name of a tool"
    try:
        json.dumps(block["input"], allow_nan=False)
    except ValueError:
        yield "the input is not JSON"


def _source(kind: str, source: Message) -> Iterator[str]:
    yield from _shape(source, _SOURCES.get(source["type"], "type url"))
    types = _IMAGE_TYPES if kind == "image" else ("application/pdf",) if source["type"] == "base64" else ("text/plain",)
    if source.get("media_type", types[0]) not in types or source.get("data") == "":
        yield f"a block {kind} of the type {source['media_type']}, or without data"
    if source["type"] == "url" and not source["url"].startswith("https://"):
        yield "no https URL"


# OpenAI's Responses API.

# The fields that an item needs, and those that it may have besides its id.
_ITEMS = {
    "message": ("role content", "status phase"),
    "reasoning": ("summary", "content encrypted_content status"),
    "function_call": ("call_id name arguments", "status"),
    "function_call_output": ("call_id output", "status"),
    "custom_tool_call": ("call_id name input", ""),
    "custom_tool_call_output": ("call_id output", ""),
    "web_search_call": ("id status", "action"),
    "mcp_approval_request": ("id name arguments server_label", ""),
    "mcp_approval_response": ("approval_request_id approve", "reason"),
}
_ITEM_IDS = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_INPUT_PARTS = {
    "input_text": ("text", ""),
    "input_image": ("detail", "image_url file_id"),
    "input_file": ("", "file_data file_id file_url filename detail"),
}
_OUTPUT_PARTS = {"output_text": ("text", "annotations logprobs"), "refusal": ("refusal", "")}


def responses(items: _Wire) -> Iterator[str]:
    """OpenAI's Responses API."""
    items = [{"type": "message", **item} for item in items]  # A message may be without a type.
    yield from _outputs_follow_their_calls(items)
    ids = [item["id"] for item in items if "id" in item]
    if len(ids) != len(set(ids)):
        yield f"duplicate items: {ids}"
    for index, item in enumerate(items):
        if item["type"] not in _ITEMS:
            yield f"unknown item {item['type']}"
            continue
        yield from _item(item)
        after = items[index + 1] if index + 1 < len(items) else {"type": "the end"}
        belongs = after.get("role") == "assistant" or after["type"].endswith(("_call", "_request"))
        if item["type"] == "reasoning" and not belongs:
            yield f"a thought without what belongs to it, but before {after['type']}"


def _item(item: Message) -> Iterator[str]:
    kind = item["type"]
    required, optional = _ITEMS[kind]
    yield from _shape(item, f"type {required}", f"id {optional}")
    if "id" in item and not re.fullmatch(f"{_ITEM_IDS.get(kind, '')}.{{1,60}}", str(item["id"])):
        yield f"an item {kind} with the id {item['id']!r}"
    if "name" in item and not _TOOL_NAME.fullmatch(item["name"]):
        yield f"invalid name {item['name']!r}"
    if kind == "message":
        if item["role"] not in ("system", "developer", "user", "assistant"):
            yield "unknown role"
        yield from _content(item["content"], item["role"] == "assistant")
    elif kind.endswith("_output"):
        yield from _content(item["output"])


def _outputs_follow_their_calls(items: _Wire) -> Iterator[str]:
    waiting: dict[str, str] = {}
    calls = [item["call_id"] for item in items if item["type"].endswith("_call") and "call_id" in item]
    if len(calls) != len(set(calls)) or not all(1 <= len(call_id) <= 64 for call_id in calls):
        yield f"ids are not unique, or have no character, or more than 64: {calls}"
    for item in items:
        if item["type"].endswith("_call") and "call_id" in item:
            waiting[item["call_id"]] = item["type"]
        elif item["type"].endswith("_output") and waiting.pop(item["call_id"], "") + "_output" != item["type"]:
            yield f"a second result, or no call before it has the id {item['call_id']}"
        elif item.get("role") == "user" and waiting:
            yield f"the calls {set(waiting)} have no results before the next message of the user"
    if waiting:
        yield f"No tool output found for the calls {set(waiting)}"


def _content(content: Any, is_of_assistant: bool = False) -> Iterator[str]:
    known = _OUTPUT_PARTS if is_of_assistant else _INPUT_PARTS
    if content == [] or (is_of_assistant and not content):
        yield "no content"
    for part in content if isinstance(content, list) else ():
        if part["type"] not in known:
            yield f"a part {part['type']} of {'the assistant' if is_of_assistant else 'the input'}"
            continue
        required, optional = known[part["type"]]
        yield from _shape(part, f"type {required}", optional)
        if is_of_assistant and not part[required]:
            yield "an empty part"
