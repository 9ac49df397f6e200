"""The form of OpenAI's Responses API: a list of items, in which calls and results stand beside the messages.

Source: the reference of "Create a model response", and the guide on migrating from chat completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_convmemory.context.wire import calls
from django_convmemory.messages import ChatMessage, thaw

_Item = dict[str, Any]


def to_responses(messages: Sequence[ChatMessage]) -> list[_Item]:
    """Return the input items for ``client.responses.create``."""
    items: list[_Item] = []
    for turn in calls.turns(messages):
        items += said(turn.message)
        items += [_call(call) for call in turn.calls]
        items += [_result(call) for call in turn.calls]
    return items


def said(message: ChatMessage) -> list[_Item]:
    """Return what a message says as an item, or no item if an assistant only makes calls."""
    content: Any
    if message.role == "assistant":
        content = "\n".join(calls.texts(message))
        if not content:
            return []
    else:
        content = content_of(message)
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
    return [_part(part) for part in message.content or ()] or ""


def _text(text: str) -> _Item:
    return {"type": "input_text", "text": text}


def _part(part: Mapping[str, Any]) -> _Item:
    """Return a content part in the form of this API, or its type in brackets if there is no such part."""
    if isinstance(part.get("text"), str):
        return _text(part["text"])
    image, file = part.get("image_url"), part.get("file")
    if isinstance(image, Mapping):
        return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail", "auto")}
    if isinstance(file, Mapping):
        return {"type": "input_file", **thaw(file)}
    if part["type"] in ("input_image", "input_file"):
        return dict(thaw(part))
    return _text(f"[{part['type']}]")
