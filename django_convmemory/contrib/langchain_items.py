"""Messages of LangChain as chat messages. The message is counted, summarized and found instead of the item.

The item is what ``langchain_core.messages.message_to_dict`` returns: ``{"type": "human", "data": {"content": …}}``.

Source: the classes in ``langchain_core.messages``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django_convmemory import content_parts
from django_convmemory.context.wire import forms
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import NO_CALL_ID, REASONING, ChatMessage, as_text, dumps, freeze, storable

FORMAT = "langchain"

_ROLES = {"human": "user", "user": "user", "ai": "assistant", "assistant": "assistant", "system": "system"}
# Parts of a content that say the same as the calls of the message.
_CALLS = frozenset({"tool_use", "tool_call", "function_call", "input_json_delta", "tool_call_chunk"})
# The files in LangChain's own form.
_FILES = {"image": "image", "audio": "audio", "video": "video", "file": "document"}
# Only the provider can read its model's thoughts.
_THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_content"})


def message(item: Any) -> ChatMessage:
    """Return the chat message that stands for ``item``, with the item.

    What no database stores is left out of it, and calls without ids get some. Raises
    :class:`~django_convmemory.exceptions.InvalidMessage`.
    """
    if not isinstance(item, Mapping) or not isinstance(item.get("type"), str):
        raise InvalidMessage(
            "A message of LangChain must be a dict with a 'type' and its 'data', as message_to_dict()."
        )
    item = storable(item)
    data = item.get("data")
    if isinstance(data, Mapping):
        item["data"] = _with_ids(data)
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
    parts = [part for part in _list(data.get("content")) if isinstance(part, Mapping)]
    thinks = not content and not calls and any(part.get("type") in _THOUGHTS for part in parts)
    kind = REASONING if thinks else "chat"
    silent = thinks or (calls and not content)
    return {**fields, "content": None if silent else content, "tool_calls": calls, "kind": kind}


def _with_ids(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a message in which each call has an id, and so has a result."""
    more = {
        field: [{**call, "id": call.get("id") or NO_CALL_ID} if isinstance(call, Mapping) else call for call in calls]
        for field in ("tool_calls", "invalid_tool_calls")
        if isinstance(calls := data.get(field), list)
    }
    return {**data, **more} | ({"tool_call_id": NO_CALL_ID} if data.get("tool_call_id") == "" else {})


def _calls(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls in the form of chat completions."""
    calls = [
        forms.call(call["id"], str(call.get("name") or ""), as_text(call.get("args") or "{}"))
        for field in ("tool_calls", "invalid_tool_calls")
        for call in _list(data.get(field))
        if isinstance(call, Mapping) and isinstance(call.get("id"), str)
    ]
    more = data.get("additional_kwargs")
    if calls or not isinstance(more, Mapping):
        return calls
    # Old versions had the calls of OpenAI there only.
    made = _list(more.get("tool_calls"))
    return [dict(call) for call in made if isinstance(call, Mapping) and isinstance(call.get("id") or "", str)]


def _content(content: Any) -> str | list[dict[str, Any]]:
    """Return texts and parts in the form of chat completions."""
    if isinstance(content, str):
        return content
    return content_parts.joined([part for part in map(_part, _list(content)) if part is not None])


def _part(part: Any) -> dict[str, Any] | None:
    if not isinstance(part, Mapping):
        return {"type": "text", "text": as_text(part)}
    form = str(part.get("type") or "part")
    if form in _CALLS or form in _THOUGHTS:
        return None
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    image = part.get("image_url")
    url = content_parts.web_address(image or part.get("url"))
    detail = image.get("detail") if isinstance(image, Mapping) else part.get("detail")
    if form in ("image_url", "image") and url:
        return content_parts.image(url, detail)
    # The bytes of a file are in the item. They need not be stored twice.
    data = part.get("base64") or part.get("data")
    if form in _FILES and isinstance(data, str):
        return content_parts.stub(_FILES[form], data=data, detail=detail)
    return content_parts.stub_of(part, form, len(dumps(part)))


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()
