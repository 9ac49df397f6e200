"""Items of OpenAI's Responses API as chat messages. The message is counted, summarized and found instead of the item.

Source: ``ResponseInputItemParam`` of the ``openai`` package, and the reference of "Create a model response".
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django_convmemory import content_parts, messages as chat
from django_convmemory.context.wire import calls, forms, responses
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage

Item = dict[str, Any]

# Calls that this side answers, each with the fields that say what is to be done. The others are done by the provider.
_CALLS = {
    "function_call": ("arguments",),
    "custom_tool_call": ("input",),
    "mcp_approval_request": ("arguments",),
    "shell_call": ("action",),
    "local_shell_call": ("action",),
    "computer_call": ("action", "actions"),
    "apply_patch_call": ("operation",),
    "tool_search_call": ("arguments",),
    "program": ("code",),
}
# The forms that a call and its result have without an item, too.
_PLAIN_FORMS = frozenset({"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"})
# What the provider did, as far as it is text.
_TOLD = ("name", "arguments", "action", "queries", "code", "output", "error")


def message(item: Any) -> ChatMessage:
    """Return the chat message that stands for ``item``, with the item.

    What no database stores is left out of it, and an empty id of a call is ``call``. A system item is not pinned,
    because agents send one in the middle of a conversation. A thought has no content: only the provider can read it.
    Raises :class:`~django_convmemory.exceptions.InvalidMessage`.
    """
    if not isinstance(item, Mapping):
        raise InvalidMessage(f"An item must be a dict, not {type(item).__name__}.")
    item = chat.storable(item)
    if item.get("call_id") == "":
        item["call_id"] = chat.NO_CALL_ID
    item = chat.freeze(item, "item")
    return ChatMessage(**_fields(item), format=chat.RESPONSES, item=item)


def items(messages: Sequence[ChatMessage]) -> list[Item]:
    """Return the items for which ``messages`` stand. A message that has none is made into one or more.

    A message has none if the site stored it, if another framework did, or if it was redacted. If it made or answered a
    call, the item on the other side of the call takes a form that fits. A thought and what follows it need each other:
    if one of them was redacted, the thought is left out, and the others lose the ids that name it.
    """
    made: list[Item] = []
    messages = list(_without_torn_thoughts(messages))
    itemless = {call_id for each in messages if _item(each) is None for call_id in _call_ids(each)}
    custom = {call["id"] for each in messages for call in each.tool_calls if isinstance(call.get("custom"), Mapping)}
    for each in messages:
        item = _item(each)
        form = None if item is None else item.get("type")
        if item is not None and (form in _PLAIN_FORMS or itemless.isdisjoint(_call_ids(each))):
            made.append(chat.thaw(item))
        elif each.tool_call_id is not None:
            form = "custom_tool_call_output" if each.tool_call_id in custom else "function_call_output"
            made.append({"type": form, "call_id": each.tool_call_id, "output": responses.content_of(each)})
        else:
            made += [*responses.said(each), *map(_call_item, each.tool_calls)]
    return made


def _without_torn_thoughts(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    for is_response, run in itertools.groupby(messages, key=_is_of_response):
        said = list(run)
        has_thought = any(each.kind == chat.REASONING for each in said)
        if is_response and has_thought and any(each.item is None for each in said):
            said = [_without_thought(each) for each in said if each.kind != chat.REASONING]
        yield from said


def _is_of_response(message: ChatMessage) -> bool:
    return message.format == chat.RESPONSES and message.role == "assistant"


def _without_thought(message: ChatMessage) -> ChatMessage:
    """Return a message whose item does not need the thought before it."""
    item = message.item
    if item is None or "id" not in item:
        return message
    if item.get("type", "message") not in calls.FOLLOWING:
        return message.without_item()  # It may not be sent without its id.
    without_id = {name: value for name, value in item.items() if name != "id"}
    return dataclasses.replace(message, item=without_id)  # type: ignore[arg-type]


def _item(message: ChatMessage) -> Mapping[str, Any] | None:
    return message.item if message.format == chat.RESPONSES else None


def _call_ids(message: ChatMessage) -> Sequence[str]:
    return message.call_ids if message.tool_call_id is None else (message.tool_call_id,)


def _call_item(call: Mapping[str, Any]) -> Item:
    name, arguments = chat.called(call)
    if isinstance(call.get("custom"), Mapping):
        return {"type": "custom_tool_call", "call_id": call["id"], "name": name, "input": arguments}
    return {"type": "function_call", "call_id": call["id"], "name": name, "arguments": arguments}


def _fields(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the chat message."""
    form = str(item.get("type") or "message")
    if form == "reasoning":
        return {"role": "assistant", "kind": chat.REASONING}
    call_id = item.get("call_id") or item.get("id")
    if form in _CALLS and isinstance(call_id, str):
        return {"role": "assistant", "tool_calls": [_call(form, call_id, item)]}
    if form == "mcp_approval_response":
        answered = item.get("approval_request_id")
        return {"role": "tool", "content": chat.as_text(item.get("approve")), "tool_call_id": answered}
    if form.endswith("_output") and isinstance(call_id, str):
        return {"role": "tool", "content": _content(item.get("output", "")), "tool_call_id": call_id}
    role = item.get("role")
    if role in ("user", "assistant"):
        return {"role": role, "content": _content(item.get("content") or "")}
    if role in ("system", "developer"):
        return {"role": "user", "name": role, "content": _content(item.get("content") or "")}
    told = [chat.as_text(item[name]) for name in _TOLD if item.get(name)]
    return {"role": "assistant", "content": " ".join([f"[{form}]", *told]), "kind": form[:32]}


def _call(form: str, call_id: str, item: Mapping[str, Any]) -> Item:
    arguments = chat.as_text(next((item[name] for name in _CALLS[form] if item.get(name)), ""))
    name = str(item.get("name") or form.removesuffix("_call"))
    if form == "custom_tool_call":
        return {"id": call_id, "type": "custom", "custom": {"name": name, "input": arguments}}
    return forms.call(call_id, name, arguments)


def _content(content: Any) -> str | list[Item]:
    """Return texts and parts in the form of chat completions."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) and content.get("type") == "computer_screenshot":
        return [content_parts.stub("image")]
    if not isinstance(content, Sequence):
        return chat.as_text(content)
    return content_parts.joined([_part(part) for part in content])


def _part(part: Any) -> Item:
    if not isinstance(part, Mapping):
        return {"type": "text", "text": chat.as_text(part)}
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if isinstance(part.get("refusal"), str):
        return {"type": "refusal", "refusal": part["refusal"]}
    if url := content_parts.web_address(part.get("image_url")):
        return content_parts.image(url, part.get("detail"))
    # The bytes of a file are in the item. They need not be stored twice.
    return content_parts.stub_of(part, str(part.get("type") or "part"), len(chat.dumps(part)))
