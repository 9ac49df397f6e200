"""The form of OpenAI's Responses API: a list of items, in which calls and results stand beside the messages.

Source: the reference of "Create a model response", and the guide on migrating from chat completions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django_convmemory import content_parts
from django_convmemory.context.wire import calls
from django_convmemory.messages import RESPONSES, ChatMessage, thaw

_Item = dict[str, Any]


def to_responses(messages: Sequence[ChatMessage], model: str | None = None) -> list[_Item]:
    """Return the input items for ``client.responses.create``. Thoughts of another model than ``model`` are left out."""
    items: list[_Item] = []
    for turn in calls.turns(messages):
        if own := calls.own_form(turn.message, RESPONSES, model):
            items += _own(own, iter(turn.calls))
        else:
            items += [*said(turn.message), *map(_call, turn.calls)]
        items += [_result(call) for call in turn.calls]
    return items


def _own(own: Sequence[Mapping[str, Any]], made: Iterator[calls.ToolCall]) -> list[_Item]:
    """Return the items of a response as they came. A thought goes only with the item to which it belongs."""
    items: list[_Item] = []
    for item in own:
        kept = thaw(item)
        if item["type"] in calls.CALLS:
            kept["call_id"] = next(made).id
        elif item["type"] == "message" and not isinstance(item.get("content"), str):
            parts = kept.get("content") if isinstance(kept.get("content"), list) else ()
            kept["content"] = [part for part in parts if _is_said(part)]
        if item["type"] == "message" and not kept["content"]:
            items = _without_last_thoughts(items)
        else:
            items.append(kept)
    return _without_last_thoughts(items)


def _is_said(part: Any) -> bool:
    is_output = isinstance(part, Mapping) and part.get("type") in ("output_text", "refusal")
    return is_output and bool(part.get("text") or part.get("refusal"))


def _without_last_thoughts(items: list[_Item]) -> list[_Item]:
    """Leave out thoughts at the end: what they belong to is missing."""
    while items and items[-1]["type"] == "reasoning":
        items.pop()
    return items


def said(message: ChatMessage) -> list[_Item]:
    """Return what a message says as an item, or no item if an assistant only makes calls."""
    content: Any = "\n".join(calls.texts(message)) if message.role == "assistant" else content_of(message)
    if not content:
        return []
    if message.name and message.role == "user":  # There is no field for it.
        label = f"{message.name}: "
        content = label + content if isinstance(content, str) else [_text(label), *content]
    return [{"type": "message", "role": message.role, "content": content}]


def _call(call: calls.ToolCall) -> _Item:
    if call.kind == "custom":
        return {"type": "custom_tool_call", "call_id": call.id, "name": call.name, "input": call.arguments}
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}


def _result(call: calls.ToolCall) -> _Item:
    return {"type": f"{_call(call)['type']}_output", "call_id": call.id, "output": content_of(call.result)}


def content_of(message: ChatMessage) -> str | list[_Item]:
    """Return the content of a message in the form of this API."""
    if isinstance(message.content, str):
        return message.content
    return [item for part in message.content or () for item in _part(part)] or ""


def _text(text: str) -> _Item:
    return {"type": "input_text", "text": text}


def _part(part: Mapping[str, Any]) -> list[_Item]:
    """Return a content part in the form of this API, or its type in brackets if there is no such part."""
    read = content_parts.read(part)
    if read.kind == "text":
        return [_text(read.text)] if read.text else []
    if read.kind == "image" and read.has_content:
        where = {"image_url": read.address} if read.address else {"file_id": read.file_id}
        return [{"type": "input_image", **where, "detail": read.detail or "auto"}]
    if read.kind == "file" and read.has_content:
        if read.data:
            return [{"type": "input_file", "filename": read.name or "file", "file_data": read.address}]
        return [{"type": "input_file", **({"file_url": read.url} if read.url else {"file_id": read.file_id})}]
    return [_text(f"[{part['type']}]")]
