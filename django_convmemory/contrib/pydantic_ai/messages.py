"""Messages of pydantic-ai as rows of a session, and back.

A request of pydantic-ai can hold several chat messages: results of tools, and prompts. So each of them is a row. Its
item is ``{"message": …, "row": 0}``: the request with this row's parts only, and the number of the row in the request.
The rows of a request are stored together, so ``position - row`` is the same for all of them. By it, they are joined
when they are read. The chat message is counted, summarized and found instead of the item.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from django_convmemory import content_parts
from django_convmemory.context.wire import forms
from django_convmemory.contrib import framework_messages
from django_convmemory.contrib.framework_messages import FrameworkMessage, View
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import NO_CALL_ID, REASONING, ChatMessage, as_text, called, dumps, storable, thaw
from django_convmemory.operations.handles import SessionHandle

FORMAT = "pydantic_ai"

Json = dict[str, Any]

# What pydantic-ai notes for itself. Such parts go with the part that follows.
_NOTES = frozenset(
    [
        *("tool-availability-delta", "capability-load-delta", "model-settings-delta"),
        *("instruction-delta", "instruction-baseline"),
    ]
)
_FILES = frozenset({"image-url", "audio-url", "video-url", "document-url", "binary", "uploaded-file"})
_CALLS_AND_RESULTS = frozenset({"tool-call", "tool-return", "retry-prompt"})


def message_history(session: SessionHandle, *, view: View = "context", at: int | None = None) -> list[ModelMessage]:
    """Return the messages of ``session`` for the argument ``message_history`` of an agent.

    ``view="context"`` gives what fits into the budget of the memory: the system prompt, the summary as one request, and
    the exchanges after it as they came. With ``at`` it is the context of a session that ends at this position.
    ``"history"`` gives every message. Raises
    :class:`~django_convmemory.exceptions.InvalidArgument` for another view.
    """
    messages = [message for message, _ in joined(framework_messages.given(session, view, FORMAT, at=at))]
    last: Json = messages[-1] if view == "context" and messages else {"kind": ""}
    if last["kind"] == "response" and last.get("state") in (None, "complete") and _of_kind(last["parts"], "tool-call"):
        # So a new prompt may follow: pydantic-ai then gives the calls a notice as their result. Without a prompt, it
        # waits for the results, as those of calls that need an approval.
        last["state"] = "interrupted"
    return validated(messages)


async def amessage_history(session: SessionHandle, *, view: View = "context") -> list[ModelMessage]:
    """The asynchronous twin of :func:`message_history`."""
    return await sync_to_async(message_history)(session, view=view)


def append_messages(session: SessionHandle, messages: Sequence[ModelMessage]) -> None:
    """Store ``messages``, such as ``result.new_messages()``: all of them, or none. Without any, it does nothing.

    The system prompts with which a session begins are pinned: they stay in the context after they are folded.

    Raises :class:`~django_convmemory.exceptions.InvalidMessage` for messages that pydantic-ai cannot write as JSON, or
    not read again, and for a message with more bytes than the option ``max_message_bytes``.
    """
    framework_messages.store(session, [row for item in items(messages) for row in rows(item)])


async def aappend_messages(session: SessionHandle, messages: Sequence[ModelMessage]) -> None:
    """The asynchronous twin of :func:`append_messages`."""
    await sync_to_async(append_messages)(session, messages)


def items(messages: Sequence[ModelMessage]) -> list[Json]:
    """Return ``messages`` as JSON. Raises InvalidMessage for those that cannot be written and read again."""
    try:
        made: list[Json] = storable(ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))
        for part in [part for item in made for part in item["parts"]]:
            if part["part_kind"] in _CALLS_AND_RESULTS and part.get("tool_call_id") == "":
                part["tool_call_id"] = NO_CALL_ID
        # A message that cannot be read would make the whole session useless.
        validated(made)
    except (ValueError, TypeError) as error:
        raise InvalidMessage(
            f"pydantic-ai cannot write these messages as JSON and read them again: {error!s:.300}"
        ) from error
    return made


def validated(made: Sequence[Json]) -> list[ModelMessage]:
    """Return the messages of pydantic-ai that stand for ``made``."""
    return ModelMessagesTypeAdapter.validate_json(dumps(list(made)))


# Messages of pydantic-ai as chat messages, in the form that ``ModelMessagesTypeAdapter`` writes. Source:
# ``pydantic_ai.messages``.


def rows(message: Json) -> list[ChatMessage]:
    """Return the chat messages that stand for ``message``, with their items."""
    if message["kind"] == "response":
        return [_row(_response(message["parts"]), {"message": message})]
    return [
        _row(_request(parts), {"message": {**message, "parts": parts}, "row": number})
        for number, parts in enumerate(_runs(message["parts"]))
    ]


def joined(given: Iterable[FrameworkMessage]) -> list[tuple[Json, int | None]]:
    """Return the messages for which ``given`` stand, each with the position of its last row.

    A message that has no item is made into one.
    """
    made: list[tuple[Json, int | None]] = []
    start: int | None = None  # the position of the first row of the last request
    names: dict[str, str] = {}  # of the tools that were called, by the ids of the calls
    role = ""
    for each in given:
        item = each.message.item
        if item is None:
            message, row = _made(each, names), None
        else:
            message, row = thaw(item["message"]), item.get("row")
        begins = None if row is None or each.position is None else each.position - row
        is_joined = begins is not None and begins == start
        # All results of a response are in one request.
        is_joined |= item is None and each.message.role == role == "tool"
        if is_joined:
            made[-1][0]["parts"] += message["parts"]
            made[-1] = (made[-1][0], each.position)
        else:
            made.append((message, each.position))
            start = begins
        role = each.message.role
        if message["kind"] == "response":
            names = {part["tool_call_id"]: part["tool_name"] for part in _of_kind(message["parts"], "tool-call")}
    return made


def _row(fields: Json, item: Json) -> ChatMessage:
    return ChatMessage(**fields, format=FORMAT, item=item)  # type: ignore[arg-type]


def _runs(parts: Sequence[Json]) -> list[list[Json]]:
    """Divide the parts of a request into runs that each give one chat message."""
    runs: list[list[Json]] = []
    notes: list[Json] = []
    for part in parts:
        notes.append(part)
        if part["part_kind"] not in _NOTES:
            runs.append(notes)
            notes = []
    if notes and runs:
        runs[-1] += notes
    elif notes or not runs:
        runs.append(notes)
    return runs


def _request(parts: Sequence[Json]) -> Json:
    """Return the fields of the chat message that stands for a run of parts."""
    part = next((part for part in parts if part["part_kind"] not in _NOTES), None)
    if part is None:
        return {"role": "user", "content": ""}
    kind, content = part["part_kind"], _content(part.get("content"))
    if kind == "system-prompt":
        return {"role": "system", "content": content}
    if kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name") is not None):
        return {"role": "tool", "content": content, "tool_call_id": _call_id(part)}
    if kind == "speech":
        content = part.get("transcript") or part.get("text") or "[speech]"
    return {"role": "user", "content": content}


def _response(parts: Sequence[Json]) -> Json:
    """Return the fields of the chat message that stands for a response."""
    told = [
        _part(part["content"]) if part["part_kind"] == "file" else {"type": "text", "text": text}
        for part in parts
        if (text := _told(part))
    ]
    made = _of_kind(parts, "tool-call")
    calls = [forms.call(_call_id(part), part["tool_name"], as_text(part.get("args") or {})) for part in made]
    fields = {"role": "assistant", "content": content_parts.joined(told) or None, "tool_calls": calls}
    return {**fields, "kind": REASONING} if parts and not told and not calls else fields


def _told(part: Json) -> str:
    """Return what a part of a response says, or "". A thought says nothing: only the model can read it."""
    kind = part["part_kind"]
    if kind in ("text", "compaction"):
        return part.get("content") or ""
    if kind == "speech":
        return part.get("transcript") or part.get("text") or "[speech]"
    if kind == "file":
        return "[file]"
    if kind in ("builtin-tool-call", "builtin-tool-return"):  # What the provider did itself.
        value = part.get("args") if kind == "builtin-tool-call" else _content(part.get("content"))
        return f"[{part['tool_name']}] {'' if value is None else as_text(value)}".strip()
    return ""


def _content(content: Any) -> Any:
    """Return texts and parts in the form of chat completions, and anything else as JSON text."""
    if isinstance(content, str):
        return content
    if _is_part(content):
        content = [content]
    if not isinstance(content, list) or not any(isinstance(each, str) or _is_part(each) for each in content):
        return "" if content in (None, []) else dumps(content)
    parts = [_part(each) for each in content if not (isinstance(each, Mapping) and each.get("kind") == "cache-point")]
    return content_parts.joined(parts)


def _is_part(content: Any) -> bool:
    return isinstance(content, Mapping) and (
        content.get("kind") in _FILES or (content.get("kind") == "text-content" and isinstance(content["content"], str))
    )


def _part(content: Any) -> Json:
    if not _is_part(content):
        return {"type": "text", "text": as_text(content)}
    if content["kind"] == "text-content":
        return {"type": "text", "text": content["content"]}
    url, detail = content.get("url"), (content.get("vendor_metadata") or {}).get("detail")
    if content["kind"] == "image-url" and content_parts.web_address(url):
        return content_parts.image(url, detail)
    # The bytes of a file are in the item. They need not be stored twice.
    form = str(content.get("media_type") or content["kind"]).partition("/")[0].removesuffix("-url")
    form = form if form in ("image", "audio", "video") else "document"
    return content_parts.stub(form, data=content.get("data") or url, detail=detail)


def _made(each: FrameworkMessage, names: Mapping[str, str]) -> Json:
    """Return the message that is made from a chat message."""
    message = each.message
    when = {} if each.created_at is None else {"timestamp": each.created_at.isoformat()}
    if message.role == "assistant":
        texts = [{"part_kind": "text", "content": text} for text in _texts(message)]
        return {"kind": "response", "parts": [*texts, *map(_called, message.tool_calls)], **when}
    if message.tool_call_id is not None:
        call = {"tool_name": names.get(message.tool_call_id) or "tool", "tool_call_id": message.tool_call_id}
        part: Json = {"part_kind": "tool-return", "content": "\n".join(_texts(message)), **call}
    elif message.pinned:
        part = {"part_kind": "system-prompt", "content": "\n".join(_texts(message))}
    elif isinstance(message.content, str):
        part = {"part_kind": "user-prompt", "content": message.content}
    else:
        part = {"part_kind": "user-prompt", "content": [_user_content(part) for part in message.content or ()]}
    return {"kind": "request", "parts": [{**part, **when}]}


def _called(call: Mapping[str, Any]) -> Json:
    name, arguments = called(call)
    return {"part_kind": "tool-call", "args": arguments, "tool_name": name or "tool", "tool_call_id": call["id"]}


def _texts(message: ChatMessage) -> list[str]:
    if isinstance(message.content, str):
        return [message.content] if message.content else []
    return [str(part.get("text") or f"[{part['type']}]") for part in message.content or ()]


def _user_content(part: Mapping[str, Any]) -> Any:
    if url := content_parts.web_address(part.get("image_url")):
        return {"kind": "image-url", "url": url}
    return part["text"] if isinstance(part.get("text"), str) else f"[{part['type']}]"


def _of_kind(parts: Iterable[Json], kind: str) -> list[Json]:
    return [part for part in parts if part["part_kind"] == kind]


def _call_id(part: Json) -> str:
    return part.get("tool_call_id") or NO_CALL_ID
