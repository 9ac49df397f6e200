"""Message histories for the agents of pydantic-ai.

::

    from django_convmemory.contrib.pydantic_ai import append_messages, message_history

    session = memories["default"].session("main", owner=user)
    result = agent.run_sync("What is Rust?", message_history=message_history(session))
    append_messages(session, result.new_messages())
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from asgiref.sync import sync_to_async
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from django_convmemory.contrib import framework_messages, pydantic_ai_items
from django_convmemory.contrib.framework_messages import View
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import dumps
from django_convmemory.operations.handles import SessionHandle


def message_history(session: SessionHandle, *, view: View = "context") -> list[ModelMessage]:
    """Return the messages of ``session`` for the argument ``message_history`` of an agent.

    ``view="context"`` gives what fits into the budget of the memory: the system prompt, the summary as one request, and
    the exchanges after it as they came. ``"history"`` gives every message. Raises
    :class:`~django_convmemory.exceptions.InvalidArgument` for another view.
    """
    messages = pydantic_ai_items.messages(framework_messages.given(session, view, pydantic_ai_items.FORMAT))
    return ModelMessagesTypeAdapter.validate_json(dumps(messages))


async def amessage_history(session: SessionHandle, *, view: View = "context") -> list[ModelMessage]:
    """The asynchronous twin of :func:`message_history`."""
    return await sync_to_async(message_history)(session, view=view)


def append_messages(session: SessionHandle, messages: Sequence[ModelMessage]) -> None:
    """Store ``messages``, such as ``result.new_messages()``: all of them, or none. Without any, it does nothing.

    The system prompts with which a session begins are pinned: they stay in the context after they are folded.

    Raises :class:`~django_convmemory.exceptions.InvalidMessage` for messages that pydantic-ai cannot write as JSON, or
    not read again, for a text with a NUL character or a lone surrogate, and for a message with more bytes than the
    option ``max_message_bytes``.
    """
    framework_messages.store(session, [row for item in _items(messages) for row in pydantic_ai_items.rows(item)])


async def aappend_messages(session: SessionHandle, messages: Sequence[ModelMessage]) -> None:
    """The asynchronous twin of :func:`append_messages`."""
    await sync_to_async(append_messages)(session, messages)


def _items(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    try:
        written = ModelMessagesTypeAdapter.dump_json(list(messages))
        # A message that cannot be read would make the whole session useless.
        ModelMessagesTypeAdapter.validate_json(written)
        items: list[dict[str, Any]] = json.loads(written)
    except (ValueError, TypeError) as error:
        raise InvalidMessage(
            f"pydantic-ai cannot write these messages as JSON and read them again: {error!s:.300}"
        ) from error
    return items
