"""Messages of LlamaIndex as chat messages. The message is counted, summarized and found instead of the item.

The item is what ``ChatMessage.model_dump(mode="json")`` of LlamaIndex returns. Its classes are in
``llama_index.core.base.llms.types``.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django_convmemory.messages import REASONING, ChatMessage, dumps, thaw

FORMAT = "llama_index"

Item = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "tool": "tool",
}
_SILENT = frozenset({"cache", "thinking", "tool_call"})


def messages(items: Iterable[Item]) -> Iterator[ChatMessage]:
    """Yield the chat messages that stand for ``items``, with the items."""
    used: collections.Counter[str] = collections.Counter()
    for item in items:
        fields = _fields(item)
        if fields["role"] == "assistant":
            used.clear()
        elif fields["role"] == "tool":
            # Models without ids have the name of the tool in their place. A second call has a number after it.
            used[fields["tool_call_id"]] += 1
            fields["tool_call_id"] = _numbered(fields["tool_call_id"], used)
        yield ChatMessage(**fields, format=FORMAT, item=item)  # type: ignore[arg-type]


def items(given: Iterable[ChatMessage]) -> list[Item]:
    """Return the items for which ``given`` stand. A message that has none is made into one."""
    return [_made(message) if message.item is None else thaw(message.item) for message in given]


def _fields(item: Mapping[str, Any]) -> Item:
    """Return the fields of the chat message."""
    blocks, more = item["blocks"], item["additional_kwargs"]
    content, role = _content(blocks), _ROLES.get(item["role"], "")
    call_id = more.get("tool_call_id")
    if role == "tool" and isinstance(call_id, str) and call_id:
        return {"role": role, "content": content, "tool_call_id": call_id}
    if role in ("", "tool"):  # A result of a form that has no id.
        words = content if isinstance(content, str) else dumps(content)
        return {"role": "assistant", "content": f"[{item['role']}] {words}", "kind": item["role"][:32]}
    if role != "assistant":
        return {"role": role, "content": content}
    calls = _calls(blocks, more)
    kind = REASONING if blocks and not calls and all(block["block_type"] in _SILENT for block in blocks) else "chat"
    return {"role": role, "content": content or None, "tool_calls": calls, "kind": kind}


def _calls(blocks: Sequence[Item], more: Mapping[str, Any]) -> list[Item]:
    """Return the calls in the form of chat completions. Their ids are unique in the message."""
    used: collections.Counter[str] = collections.Counter()
    calls = []
    for block in blocks:
        if block["block_type"] == "tool_call":
            used[call_id := block["tool_call_id"] or block["tool_name"] or "tool"] += 1
            function = {"name": block["tool_name"], "arguments": _text(block["tool_kwargs"])}
            calls.append({"id": _numbered(call_id, used), "type": "function", "function": function})
    if not calls and isinstance(more.get("tool_calls"), list):
        for call in more["tool_calls"]:
            if isinstance(call, Mapping):
                called = call.get("function")
                name = called.get("name") if isinstance(called, Mapping) else None
                call_id = str(call.get("id") or name or "tool")
                used[call_id] += 1
                calls.append({**call, "id": _numbered(call_id, used)})
    return calls


def _numbered(call_id: str, used: Mapping[str, int]) -> str:
    return call_id if used[call_id] == 1 else f"{call_id} ({used[call_id]})"


def _content(blocks: Iterable[Item]) -> Any:
    """Return texts and parts in the form of chat completions."""
    parts = [part for block in blocks for part in _parts(block)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts or ""


def _parts(block: Item) -> list[Item]:
    form = block["block_type"]
    if form in _SILENT:
        return []
    if form == "text":
        return [{"type": "text", "text": block["text"]}]
    if form == "citable":
        return [part for each in block["content"] for part in _parts(each)]
    if form == "citation":
        return _parts(block["cited_content"])
    url = block.get("url")
    if form == "image" and isinstance(url, str) and url.startswith(("https://", "http://")):
        return [{"type": "image_url", "image_url": {"url": url}}]
    # The bytes of a file are in the item. They need not be stored twice.
    return [{"type": form}]


def _made(message: ChatMessage) -> Item:
    """Return the item that is made from a chat message."""
    blocks: list[Item] = []
    if isinstance(message.content, str):
        if message.content:
            blocks = [{"block_type": "text", "text": message.content}]
    else:
        blocks = [_block(part) for part in message.content or ()]
    for call in message.tool_calls:
        details = call.get("function") or call.get("custom")
        details = details if isinstance(details, Mapping) else {}
        arguments = _text(thaw(details.get("arguments", details.get("input", ""))))
        called = {"tool_name": str(details.get("name") or "tool"), "tool_kwargs": arguments}
        blocks.append({"block_type": "tool_call", "tool_call_id": call["id"], **called})
    more = {} if message.tool_call_id is None else {"tool_call_id": message.tool_call_id}
    return {"role": message.role, "blocks": blocks, "additional_kwargs": more}


def _block(part: Mapping[str, Any]) -> Item:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else None
    if isinstance(url, str) and url.startswith(("https://", "http://")):
        return {"block_type": "image", "url": url}
    text = part.get("text")
    return {"block_type": "text", "text": text if isinstance(text, str) else f"[{part['type']}]"}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)
