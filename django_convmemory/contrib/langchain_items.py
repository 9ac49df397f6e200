"""Messages of LangChain as chat messages. The message is counted, summarized and found instead of the item.

The item is what ``langchain_core.messages.message_to_dict`` returns: ``{"type": "human", "data": {"content": …}}``.

Source: the classes in ``langchain_core.messages``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage, as_text, freeze

FORMAT = "langchain"

_ROLES = {"human": "user", "user": "user", "ai": "assistant", "assistant": "assistant", "system": "system"}
# Parts of a content that say the same as the calls of the message.
_CALLS = frozenset({"tool_use", "tool_call", "function_call", "input_json_delta", "tool_call_chunk"})


def message(item: Any) -> ChatMessage:
    """Return the chat message that stands for ``item``, with the item.

    Raises :class:`~django_convmemory.exceptions.InvalidMessage`.
    """
    if not isinstance(item, Mapping) or not isinstance(item.get("type"), str):
        raise InvalidMessage(
            "A message of LangChain must be a dict with a 'type' and its 'data', as message_to_dict()."
        )
    item = freeze(item, "item")
    data = item.get("data")
    if not isinstance(data, Mapping):
        raise InvalidMessage(f"The data of a message of LangChain must be a dict, not {type(data).__name__}.")
    # A part of a stream has a type of its own, such as AIMessageChunk.
    form = item["type"].removesuffix("MessageChunk").lower()
    return ChatMessage(**_fields(form, data), format=FORMAT, item=item)


def _fields(form: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the chat message."""
    content = _content(data.get("content"))
    name = data.get("name") if isinstance(data.get("name"), str) else None
    if form == "tool":
        return {"role": "tool", "content": content, "tool_call_id": data.get("tool_call_id")}
    if form == "chat":  # The site has named the role itself.
        form = str(data.get("role") or "user")
        if form not in _ROLES:
            return {"role": "user", "name": form, "content": content}
    role = _ROLES.get(form)
    if role is None:
        words = [f"[{form}]", name or "", as_text(content)]
        return {"role": "assistant", "content": " ".join(filter(None, words)), "kind": form[:32] or "other"}
    fields = {"role": role, "content": content, "name": name or None}
    if role != "assistant":
        return fields
    calls = _calls(data)
    return {**fields, "content": None if calls and content == "" else content, "tool_calls": calls}


def _calls(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls in the form of chat completions. A call without an id is left out: nothing can answer it."""
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": str(call.get("name") or ""), "arguments": as_text(call.get("args") or "{}")},
        }
        for field in ("tool_calls", "invalid_tool_calls")
        for call in _list(data.get(field))
        if isinstance(call, Mapping) and _is_id(call.get("id"))
    ]
    more = data.get("additional_kwargs")
    if calls or not isinstance(more, Mapping):
        return calls
    # Old versions had the calls of OpenAI there only.
    return [
        dict(call) for call in _list(more.get("tool_calls")) if isinstance(call, Mapping) and _is_id(call.get("id"))
    ]


def _content(content: Any) -> str | list[dict[str, Any]]:
    """Return texts and parts in the form of chat completions."""
    if isinstance(content, str):
        return content
    parts = [part for part in map(_part, _list(content)) if part is not None]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts or ""


def _part(part: Any) -> dict[str, Any] | None:
    if not isinstance(part, Mapping):
        return {"type": "text", "text": as_text(part)}
    form = str(part.get("type") or "part")
    if form in _CALLS:
        return None
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image or part.get("url")
    if form in ("image_url", "image") and isinstance(url, str) and url.startswith(("https://", "http://")):
        return {"type": "image_url", "image_url": {"url": url}}
    # The bytes of a file are in the item. They need not be stored twice.
    return {"type": form, "text": ""} if form == "text" else {"type": form}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and value != ""
