"""The form of Anthropic's Messages API.

Its rules, by its documentation and its errors:

- The instructions are no messages. The first message is the user's, and roles alternate.
- A text has more than white space, and the last one of the assistant does not end with white space.
- Each call has a result in the next user message, before its text. The ids of calls are unique, and of few characters.
- Images stand in user messages and in results.

Source: the reference of "Create a Message", and the guides on tool use, vision, PDF files and prompt caching.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django_convmemory import content_parts
from django_convmemory.context.wire import calls
from django_convmemory.context.wire.chat import CONTINUES
from django_convmemory.messages import ANTHROPIC, ChatMessage, thaw

_Block = dict[str, Any]
_SERVER_TOOLS = frozenset({"server_tool_use", "mcp_tool_use"})
_OF_ASSISTANT = calls.THOUGHTS | _SERVER_TOOLS | {"text", "tool_use", "container_upload"}
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def to_anthropic(
    messages: Sequence[ChatMessage], marks: Collection[int] = (), model: str | None = None
) -> dict[str, Any]:
    """Return ``system`` and ``messages`` for ``client.messages.create``. Without instructions there is no ``system``.

    ``marks`` are numbers of messages. After so many messages, a mark for the cache stands on the last block. Thoughts
    of another model than ``model`` are left out.
    """
    instructions = [message for message in messages if message.pinned]
    others = messages[len(instructions) :]
    system: list[_Block] = []
    wire: list[dict[str, Any]] = []
    for number, message in enumerate(instructions, 1):
        system += _text_blocks(calls.texts(message))
        if number in marks:
            _mark(system)
    for turn in calls.turns(others):
        _add(wire, "user" if turn.message.role == "user" else "assistant", _said(turn, model))
        if len(instructions) + turn.through in marks:
            _mark(wire[-1]["content"] if wire else system)
        _add(wire, "user", [_result(call) for call in turn.calls])
        if len(instructions) + turn.end in marks:
            _mark(wire[-1]["content"] if wire else system)
    last = (others[-1].extra.get(ANTHROPIC) if others else None) or {}
    is_paused = last.get("stop_reason") == "pause_turn"
    for said in wire[:-1] if is_paused else wire:
        _close_server_tools(said["content"])
    if wire and wire[-1]["role"] == "assistant" and not is_paused:
        # Newer models refuse to go on with the beginning of a reply.
        _add(wire, "user", _text_blocks([CONTINUES.text]))
    return {"system": system, "messages": wire} if system else {"messages": wire}


def _close_server_tools(blocks: list[_Block]) -> None:
    """Put its type in place of a call of a server tool without its result, and of a result without its call.

    A reply was cut off there, or paused and then left.
    """
    called = {block.get("id") for block in blocks if block["type"] in _SERVER_TOOLS}
    answered = {block.get("tool_use_id") for block in blocks if block["type"].endswith("_tool_result")}
    for index, block in enumerate(blocks):
        is_lone = block["type"] in _SERVER_TOOLS and block.get("id") not in answered
        if is_lone or (block["type"].endswith("_tool_result") and block.get("tool_use_id") not in called):
            blocks[index] = {"type": "text", "text": f"[{block['type']}]"}


def _mark(blocks: list[_Block]) -> None:
    if blocks and blocks[-1]["type"] not in calls.THOUGHTS:
        blocks[-1]["cache_control"] = {"type": "ephemeral"}


def _add(wire: list[dict[str, Any]], role: str, blocks: list[_Block]) -> None:
    """Add the blocks to the last message if it has this role, or as a new message."""
    if not blocks:
        return
    if not wire and role == "assistant":
        wire.append({"role": "user", "content": _text_blocks([CONTINUES.text])})
    if wire and wire[-1]["role"] == role:
        # A thought stands at the beginning of a message.
        wire[-1]["content"] += [block for block in blocks if block["type"] not in calls.THOUGHTS]
    else:
        wire.append({"role": role, "content": blocks})


def _said(turn: calls.CallingTurn, model: str | None) -> list[_Block]:
    """Return the blocks of what somebody said, and of the calls that the assistant made."""
    message = turn.message
    if message.role == "user":
        blocks = _blocks(message)
        # There is no field for the name of a user.
        return [{"type": "text", "text": f"{message.name}:"}, *blocks] if message.name and blocks else blocks
    if own := calls.own_form(message, ANTHROPIC, model):
        made = iter(turn.calls)
        blocks = [_unmarked(block) for block in own if _is_whole(block)]
        for block in blocks:
            if block["type"] in calls.CALLS:
                block["id"] = next(made).id
            elif block["type"] == "text":
                block["text"] = block["text"].rstrip()
        while blocks and blocks[-1]["type"] in calls.THOUGHTS:  # It was cut off.
            blocks.pop()
        return blocks
    blocks = _text_blocks(text.rstrip() for text in calls.texts(message))
    for call in turn.calls:
        # Anthropic takes an object only, and a custom tool has any text.
        arguments = {"_raw": call.arguments} if call.kind == "custom" else json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _unmarked(block: Mapping[str, Any]) -> _Block:
    """Return a block as it came, without a mark for the cache. A request has few marks, and they are ours."""
    return {field: value for field, value in thaw(block).items() if field != "cache_control"}


def _is_whole(block: Mapping[str, Any]) -> bool:
    """Whether Anthropic takes a block back: it is an assistant's, a text has words, and a thought its signature."""
    field = {"text": "text", "thinking": "signature"}.get(block["type"], "type")
    is_known = block["type"] in _OF_ASSISTANT or block["type"].endswith("_tool_result")
    value = block.get(field)
    return is_known and isinstance(value, str) and bool(value.strip())


def _result(call: calls.ToolCall) -> _Block:
    block: _Block = {"type": "tool_result", "tool_use_id": call.id}
    content = _blocks(call.result)
    failed = {"is_error": True} if (call.result.extra.get(ANTHROPIC) or {}).get("is_error") else {}
    if failed and not content:
        content = _text_blocks(["[The tool failed.]"])
    return {**block, "content": content, **failed} if content else block


def _text_blocks(texts: Any) -> list[_Block]:
    return [{"type": "text", "text": text} for text in texts if text.strip()]


def _blocks(message: ChatMessage) -> list[_Block]:
    if isinstance(message.content, str):
        return _text_blocks([message.content])
    return [block for part in message.content or () for block in _block(part)]


def _block(part: Mapping[str, Any]) -> list[_Block]:
    """Return a content part as a block, or its type in brackets if there is no such block."""
    read = content_parts.read(part)
    source: dict[str, str] | None = None
    if read.kind == "text":
        return _text_blocks([read.text])
    if read.media_type in {"image": ("", *IMAGE_TYPES), "file": ("", "application/pdf")}.get(read.kind, ()):
        source = _source(read)
    if "source" in part and (source or read.file_id):
        # It is Anthropic's own, perhaps with a title or citations.
        return [{**_unmarked(part), "source": source or thaw(part["source"])}]
    if source is None:
        return [{"type": "text", "text": f"[{part['type']}]"}]
    return [{"type": "image" if read.kind == "image" else "document", "source": source}]


def _source(part: content_parts.ContentPart) -> dict[str, str] | None:
    if part.data:
        return {"type": "base64", "media_type": part.media_type, "data": part.data}
    return {"type": "url", "url": part.url} if part.url.startswith("https://") else None
