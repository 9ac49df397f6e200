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
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from django_convmemory.context.wire import calls
from django_convmemory.context.wire.chat import CONTINUES
from django_convmemory.messages import ChatMessage, thaw

_Block = dict[str, Any]
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,(.*)", re.DOTALL)


def to_anthropic(messages: Sequence[ChatMessage], marks: Collection[int] = ()) -> dict[str, Any]:
    """Return ``system`` and ``messages`` for ``client.messages.create``. Without instructions there is no ``system``.

    ``marks`` are numbers of messages. After so many messages, a mark for the cache stands on the last block.
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
        _add(wire, "user" if turn.message.role == "user" else "assistant", _said(turn))
        if len(instructions) + turn.through in marks:
            _mark(wire[-1]["content"] if wire else system)
        _add(wire, "user", [_result(call) for call in turn.calls])
        if len(instructions) + turn.end in marks:
            _mark(wire[-1]["content"] if wire else system)
    return {"system": system, "messages": wire} if system else {"messages": wire}


def _mark(blocks: list[_Block]) -> None:
    if blocks:
        blocks[-1]["cache_control"] = {"type": "ephemeral"}


def _add(wire: list[dict[str, Any]], role: str, blocks: list[_Block]) -> None:
    """Add the blocks to the last message if it has this role, or as a new message."""
    if not blocks:
        return
    if not wire and role == "assistant":
        wire.append({"role": "user", "content": _text_blocks([CONTINUES.text])})
    if wire and wire[-1]["role"] == role:
        wire[-1]["content"] += blocks
    else:
        wire.append({"role": role, "content": blocks})


def _said(turn: calls.CallingTurn) -> list[_Block]:
    """Return the blocks of what somebody said, and of the calls that the assistant made."""
    message = turn.message
    if message.role == "user":
        blocks = _blocks(message)
        # There is no field for the name of a user.
        return [{"type": "text", "text": f"{message.name}:"}, *blocks] if message.name and blocks else blocks
    blocks = _text_blocks(text.rstrip() for text in calls.texts(message))
    for call in turn.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)})
    return blocks


def _result(call: calls.ToolCall) -> _Block:
    block: _Block = {"type": "tool_result", "tool_use_id": call.id}
    content = _blocks(call.result)
    return {**block, "content": content} if content else block


def _input(call: calls.ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object. Of anything else, the text is the value of ``_raw``."""
    if call.kind == "custom":
        return {"_raw": call.arguments}
    if not call.arguments.strip():
        return {}
    try:
        arguments = json.loads(call.arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {"_raw": call.arguments}
    return arguments if isinstance(arguments, dict) else {"_raw": arguments}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no {constant}.")


def _text_blocks(texts: Any) -> list[_Block]:
    return [{"type": "text", "text": text} for text in texts if text.strip()]


def _blocks(message: ChatMessage) -> list[_Block]:
    if isinstance(message.content, str):
        return _text_blocks([message.content])
    return [block for part in message.content or () for block in _block(part)]


def _block(part: Mapping[str, Any]) -> list[_Block]:
    """Return a content part as a block, or its type in brackets if there is no such block."""
    if isinstance(part.get("text"), str):
        return _text_blocks([part["text"]])
    image, file = part.get("image_url"), part.get("file")
    if isinstance(image, Mapping) and (source := _image_source(str(image.get("url", "")))):
        return [{"type": "image", "source": source}]
    match = DATA_URL.fullmatch(str(file.get("file_data", ""))) if isinstance(file, Mapping) else None
    if match and match[1] == "application/pdf":
        return [{"type": "document", "source": {"type": "base64", "media_type": match[1], "data": match[2]}}]
    if part["type"] in ("image", "document") and isinstance(part.get("source"), Mapping):
        # A site may have marked it for the cache when it was new. A request has few marks, and they are ours.
        return [{field: value for field, value in thaw(part).items() if field != "cache_control"}]
    return [{"type": "text", "text": f"[{part['type']}]"}]


def _image_source(url: str) -> dict[str, str] | None:
    if match := DATA_URL.fullmatch(url):
        return {"type": "base64", "media_type": match[1], "data": match[2]} if match[1] in IMAGE_TYPES else None
    return {"type": "url", "url": url} if url.startswith("https://") else None
