"""The form of chat completions: names that OpenAI accepts, and what servers with strict templates need.

Some templates take one system message only, or roles that alternate.

Sources: the chat templates of Mistral and Gemma, as vLLM and llama.cpp render them, and OpenAI's error for a name that
it refuses: ``Expected a string that matches the pattern '^[^\\s<|\\\\/>]+$'``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django_convmemory import content_parts, messages as chat_messages
from django_convmemory.context.wire import calls
from django_convmemory.messages import ChatMessage, FrozenDict

# What stands where a strict template wants a message and nobody said anything.
CONTINUES = ChatMessage.human("[The conversation continues.]")
NO_ANSWER = ChatMessage.ai("[No answer yet.]")

# What OpenAI refuses in a name. To some servers, the byte order mark is white space too.
REFUSED_IN_NAME = re.compile(r"[\s\ufeff<|\\/>]+")
LONGEST_NAME = 64


# An assistant's message with one of them may be without content.
_IN_PLACE_OF_CONTENT = ("function_call", "refusal", "audio")
# The parts of chat completions besides texts. Servers for open models have the last two.
_READ_PARTS = ("image_url", "file", "input_audio")
_OWN_PARTS = (*_READ_PARTS, "video_url", "audio_url")


def are_plain(messages: Sequence[ChatMessage]) -> bool:
    """Whether each message is a role and a text, as usually. Every server accepts these as they are."""
    # This is no function of a message, because each load asks it of each one.
    return not [
        message
        for message in messages
        if type(message.content) is not str
        or not message.content
        or message.content.isspace()
        or message.extra
        or message.tool_calls
        or message.name is not None
        or message.tool_call_id is not None
    ]


def sendable(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return what chat completions can say of well-formed ``messages``.

    A part that they do not have is its type in brackets. The files in results of tools are in a message of the user
    after them. A message without a word, a call or a file is left out, as is a thought that only one provider reads.
    """
    made: list[ChatMessage] = []
    files: list[dict[str, Any]] = []
    for message in messages:
        if files and message.role != "tool":
            made.append(ChatMessage.human(files))
            files = []
        if isinstance(message.content, tuple):
            parts = [part for original in message.content for part in _part(original, message.role)]
            if message.role == "tool":
                files += [part for part in parts if part["type"] != "text"]
                parts = [part if part["type"] == "text" else _text(f"[{part['type']}: see below]") for part in parts]
            content: Any = parts or (None if message.role == "assistant" else "")
            message = dataclasses.replace(message, content=content)
        if message.role == "assistant" and message.extra.get("audio"):
            message = _with_speech(message)
        if message.role == "tool" or not _says_nothing(message):
            made.append(message)
    return [*made, ChatMessage.human(files)] if files else made


def _says_nothing(message: ChatMessage) -> bool:
    if message.tool_calls or any(message.extra.get(field) for field in _IN_PLACE_OF_CONTENT):
        return False
    if message.kind == chat_messages.REASONING and message.extra:
        return False  # A thought in a field of the server.
    return not message.content or (isinstance(message.content, str) and message.content.isspace())


def _with_speech(message: ChatMessage) -> ChatMessage:
    """Return a spoken reply with the id of its sound. Once the provider has forgotten the sound, with its words."""
    audio = message.extra["audio"]
    extra = {field: value for field, value in message.extra.items() if field != "audio"}
    expires_at = audio.get("expires_at") if isinstance(audio, Mapping) and audio.get("id") else None
    if isinstance(expires_at, (int, float)) and expires_at > time.time():
        return dataclasses.replace(message, extra={**extra, "audio": {"id": audio["id"]}})  # type: ignore[arg-type]
    words = "\n".join(chat_messages.said_elsewhere({"audio": audio}))
    return dataclasses.replace(message, content=message.content or words or None, extra=extra)  # type: ignore[arg-type]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _part(part: Mapping[str, Any], role: str) -> list[dict[str, Any]]:
    """Return a content part as chat completions have it, in a message with this role."""
    form, read = part["type"], content_parts.read(part)
    if read.kind == "text":
        if form == "refusal" and role == "assistant":
            return [chat_messages.thaw(part)]
        if not read.text.strip():
            return []
        return [chat_messages.thaw(part) if form == "text" else _text(read.text)]
    if role in ("user", "tool"):
        if isinstance(part.get(form), Mapping) and form in _OWN_PARTS and (read.has_content or form not in _READ_PARTS):
            return [chat_messages.thaw(part)]
        if read.kind == "image" and read.address:
            return [content_parts.image(read.address, read.detail or None)]
        if read.kind == "file" and read.data:
            return [{"type": "file", "file": {"filename": read.name or "file", "file_data": read.address}}]
    elif isinstance(part.get("thinking"), list):  # Mistral's
        return [chat_messages.thaw(part)]
    return [_text(f"[{form}]")]


def accepted(messages: Sequence[ChatMessage], *, plain: bool) -> list[dict[str, Any]]:
    """Return ``messages`` in chat-completions form, with names that OpenAI accepts and without empty fields."""
    if plain:
        return [{"role": message.role, "content": message.content} for message in messages]
    wire = [message.as_stored() for message in messages]
    names = accepted_names(messages)
    for fields in wire:
        if name := fields.pop("name", None):
            fields["name"] = names[name]
        if not fields.get("tool_calls", True):
            del fields["tool_calls"]
        for form in chat_messages.OWN_FORMS:
            fields.pop(form, None)
        for call in fields.get("tool_calls", ()):
            form = "custom" if isinstance(call.get("custom"), dict) else "function"
            name, arguments = calls.name_and_arguments(call)
            details = call[form] if isinstance(call.get(form), dict) else {}
            call[form] = details | {"name": name, "input" if form == "custom" else "arguments": arguments}
            call["type"] = form
        if fields["role"] == "assistant" and not str(fields.get("content", "?") or "").strip():
            fields["content"] = None  # Some providers refuse a blank text.
    return wire


def accepted_names(messages: Iterable[ChatMessage]) -> dict[str, str]:
    """Return the names of ``messages`` as OpenAI accepts them, by the names as they are.

    Different names stay different: some get a number. Which one depends on the messages before only, so the names stay
    the same when messages are added.
    """
    accepted: dict[str, str] = {}
    names = calls.UniqueNames(LONGEST_NAME)
    for message in messages:
        name = message.name
        if name is not None and name not in accepted:
            accepted[name] = names.unique(REFUSED_IN_NAME.sub("_", name)[:LONGEST_NAME])
    return accepted


def merged_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return ``messages`` with one system message, the first, into which system and developer messages are merged."""
    system, others = _split(messages)
    if len(system) > 1 or (system and system[0].role != "system"):
        system = [ChatMessage.system(_joined(system))]
    return [*system, *others]


def alternating(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return ``messages`` in the order that strict templates want.

    First comes one system message, if there is any. Then the user and the assistant alternate, except for tool calls
    and results, and the user begins. Neighbours of one role are merged. :func:`fillers` are added. Applied twice, this
    changes nothing more.
    """
    system, others = _split(merged_system(messages))
    runs = itertools.groupby(_filled(others), key=lambda message: message.role)
    alternate: list[ChatMessage] = []
    for role, run in runs:
        neighbours = list(run)
        alternate += neighbours if role == "tool" or len(neighbours) == 1 else [_merged(neighbours)]
    return [*system, *alternate]


def fillers(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages that :func:`alternating` adds."""
    _, others = _split(messages)
    pairs = zip([None, *others], others, strict=False)
    return [filler for before, after in pairs for filler in _between(before, after)]


def last_run(messages: Sequence[ChatMessage]) -> int:
    """Return how many messages at the end :func:`alternating` merges into its last one. 0: there are none."""
    last_role = messages[-1].role if messages else "tool"
    if last_role == "tool":
        return 0
    return len(list(itertools.takewhile(lambda message: message.role == last_role, reversed(messages))))


def _split(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], list[ChatMessage]]:
    return [message for message in messages if message.pinned], [message for message in messages if not message.pinned]


def _filled(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    pairs = zip([None, *messages], messages, strict=False)
    return [message for before, after in pairs for message in (*_between(before, after), after)]


def _between(before: ChatMessage | None, after: ChatMessage) -> list[ChatMessage]:
    """Return what must stand between two messages. ``before`` is None at the beginning."""
    if before is None:
        return [] if after.role == "user" else [CONTINUES]
    return [NO_ANSWER] if (before.role, after.role) == ("tool", "user") else []


def _merged(run: Sequence[ChatMessage]) -> ChatMessage:
    """Return neighbours of one role as one message. Only the last one may have tool calls."""
    names = {message.name for message in run}
    named = run if len(names) == 1 else [_with_name(message) for message in run]
    content = _joined([message for message in named if message.content is not None])
    fields = itertools.chain.from_iterable(message.extra.items() for message in run)
    return ChatMessage(
        run[0].role,
        content if content or run[0].role == "user" else None,  # type: ignore[arg-type]
        name=run[0].name if len(names) == 1 else None,
        tool_calls=run[-1].tool_calls,
        # What one provider said in its own form is not joined.
        extra=FrozenDict((field, value) for field, value in fields if field not in chat_messages.OWN_FORMS),
    )


def _with_name(message: ChatMessage) -> ChatMessage:
    """Return a message with its speaker's name before its text."""
    if message.name is None or message.content is None:
        return message
    label, content = f"{message.name}: ", message.content
    labelled = label + content if isinstance(content, str) else (FrozenDict(type="text", text=label), *content)
    return ChatMessage.restore(message.role, labelled, message.kind)


def _joined(messages: Sequence[ChatMessage]) -> str | list[dict[str, Any]]:
    """Return the contents of ``messages`` as one: texts with blank lines between them, or a list of all parts."""
    if all(isinstance(message.content, str) for message in messages):
        return "\n\n".join(message.text for message in messages if message.text.strip())
    parts: list[dict[str, Any]] = []
    for message in messages:
        content = message.content
        if isinstance(content, tuple):
            parts += chat_messages.thaw(content)
        elif content and content.strip():
            parts.append(_text(content))
    return parts
