"""The form of chat completions: names that OpenAI accepts, and what servers with strict templates need.

Some templates take one system message only, or roles that alternate.

Sources: the chat templates of Mistral and Gemma, as vLLM and llama.cpp render them, and OpenAI's error for a name that
it refuses: ``Expected a string that matches the pattern '^[^\\s<|\\\\/>]+$'``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from django_convmemory import messages as chat_messages
from django_convmemory.messages import ChatMessage, FrozenDict

# What stands where a strict template wants a message and nobody said anything.
CONTINUES = ChatMessage.human("[The conversation continues.]")
NO_ANSWER = ChatMessage.ai("[No answer yet.]")

# What OpenAI refuses in a name. To some servers, the byte order mark is white space too.
REFUSED_IN_NAME = re.compile(r"[\s\ufeff<|\\/>]+")
LONGEST_NAME = 64


# An assistant's message with one of them may be without content.
_IN_PLACE_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio")


def accepted(messages: Sequence[ChatMessage], wire: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what OpenAI accepts of ``wire``, the ``messages`` in chat-completions form.

    Each message has a content if nothing stands in its place, and no empty lists: some providers and clients put
    ``tool_calls: []`` or null into a reply. A thought without words is left out.
    """
    pairs = [
        (message, fields)
        for message, fields in zip(messages, wire, strict=True)
        if message.kind != chat_messages.REASONING or not _is_wordless_thought(message)
    ]
    names = accepted_names(message for message, _ in pairs)
    for _, fields in pairs:
        if fields.get("name") is not None:
            fields["name"] = names[fields["name"]]
        if not fields.get("tool_calls", True):
            del fields["tool_calls"]
        if fields.get("content") == []:
            fields["content"] = None
        if fields.get("content") is None and not any(fields.get(field) for field in _IN_PLACE_OF_CONTENT):
            fields["content"] = ""
    return [fields for _, fields in pairs]


def _is_wordless_thought(message: ChatMessage) -> bool:
    """Whether a thought is one that only the framework can read from which the item came."""
    return message.content is None and not message.extra


def accepted_names(messages: Iterable[ChatMessage]) -> dict[str, str]:
    """Return the names of ``messages`` as OpenAI accepts them, by the names as they are.

    Different names stay different: some get a number. Which one depends on the messages before only, so the names stay
    the same when messages are added.
    """
    accepted: dict[str, str] = {}
    used: set[str] = set()
    numbers: dict[str, int] = {}
    for message in messages:
        name = message.name
        if name is None or name in accepted:
            continue
        whole = REFUSED_IN_NAME.sub("_", name)[:LONGEST_NAME]
        unique = whole
        while unique in used:
            numbers[whole] = numbers.get(whole, 1) + 1
            suffix = f"_{numbers[whole]}"
            unique = whole[: LONGEST_NAME - len(suffix)] + suffix
        used.add(unique)
        accepted[name] = unique
    return accepted


def merged_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return ``messages`` with one system message, the first, into which system and developer messages are merged."""
    system = [message for message in messages if message.pinned]
    others = [message for message in messages if not message.pinned]
    if not system:
        return others
    if len(system) == 1 and system[0].role == "system":
        return [system[0], *others]
    return [ChatMessage.system(_joined(system)), *others]


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


def _filled(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    filled: list[ChatMessage] = []
    for message in messages:
        filled += [*_between(filled[-1] if filled else None, message), message]
    return filled


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
    return ChatMessage(
        run[0].role,
        content if content or run[0].role == "user" else None,  # type: ignore[arg-type]
        name=run[0].name if len(names) == 1 else None,
        tool_calls=run[-1].tool_calls,
        extra=FrozenDict(itertools.chain.from_iterable(message.extra.items() for message in run)),
    )


def _with_name(message: ChatMessage) -> ChatMessage:
    """Return a message with its speaker's name before its text."""
    if message.name is None:
        return message
    label = f"{message.name}: "
    content = message.content
    if isinstance(content, tuple):
        content = (FrozenDict(type="text", text=label), *content)
    return ChatMessage.restore(
        message.role, content if content is None or isinstance(content, tuple) else label + content, message.kind
    )


def _joined(messages: Sequence[ChatMessage]) -> str | list[dict[str, Any]]:
    """Return the contents of ``messages`` as one: texts with blank lines between them, or a list of all parts."""
    if all(isinstance(message.content, str) for message in messages):
        return "\n\n".join(message.text for message in messages if message.text)
    parts: list[dict[str, Any]] = []
    for message in messages:
        content = chat_messages.thaw(message.content)
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return parts
