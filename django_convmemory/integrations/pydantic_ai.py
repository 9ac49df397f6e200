"""Message histories for the agents of pydantic-ai.

::

    from django_convmemory.integrations.pydantic_ai import append_messages, message_history

    session = memories["default"].session("main", owner=user)
    result = agent.run_sync("What is Rust?", message_history=message_history(session))
    append_messages(session, result.new_messages())
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from asgiref.sync import sync_to_async
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter

from django_convmemory.conversation import SessionHandle
from django_convmemory.integrations import framework_messages, pydantic_ai_items
from django_convmemory.integrations.framework_messages import View
from django_convmemory.messages import dumps


def message_history(session: SessionHandle, *, view: View = "context") -> list[ModelMessage]:
    """Return the messages of ``session`` for the argument ``message_history`` of an agent.

    ``view="context"`` gives what fits into the budget of the memory: the system prompt, the summary as one request, and
    the exchanges after it as they came. ``"history"`` gives every message. Raises
    :class:`~django_convmemory.exceptions.InvalidArgument` for another view.
    """
    messages = pydantic_ai_items.messages(framework_messages.given(session, view))
    return ModelMessagesTypeAdapter.validate_json(dumps(messages))


async def amessage_history(session: SessionHandle, *, view: View = "context") -> list[ModelMessage]:
    """The asynchronous twin of :func:`message_history`."""
    return await sync_to_async(message_history)(session, view=view)


def append_messages(session: SessionHandle, messages: Sequence[ModelMessage]) -> None:
    """Store ``messages``, such as ``result.new_messages()``: all of them, or none. Without any, it does nothing.

    The system prompts with which a session begins are pinned: they stay in the context after they are folded.

    Raises :class:`~django_convmemory.exceptions.InvalidMessage` for a text with a NUL character or a lone surrogate,
    and for a message with more bytes than the option ``max_message_bytes``.
    """
    written = json.loads(ModelMessagesTypeAdapter.dump_json(list(messages)))
    framework_messages.store(session, [row for message in written for row in pydantic_ai_items.rows(message)])


async def aappend_messages(session: SessionHandle, messages: Sequence[ModelMessage]) -> None:
    """The asynchronous twin of :func:`append_messages`."""
    await sync_to_async(append_messages)(session, messages)
