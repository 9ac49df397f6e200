"""Message histories and a conversation store for the agents of pydantic-ai.

::

    from django_convmemory.contrib.pydantic_ai import append_messages, message_history

    session = memories["default"].session("main", owner=user)
    result = agent.run_sync("What is Rust?", message_history=message_history(session))
    append_messages(session, result.new_messages())

The functions work as they are. :class:`ConvMemoryConversationStore` needs this package in INSTALLED_APPS.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_convmemory.contrib.pydantic_ai.context import ConvMemoryContext as ConvMemoryContext
    from django_convmemory.contrib.pydantic_ai.messages import (
        FORMAT as FORMAT,
        aappend_messages as aappend_messages,
        amessage_history as amessage_history,
        append_messages as append_messages,
        message_history as message_history,
        rows as rows,
    )
    from django_convmemory.contrib.pydantic_ai.store import ConvMemoryConversationStore as ConvMemoryConversationStore

_MODULES = {"ConvMemoryConversationStore": "store", "ConvMemoryContext": "context"}


def __getattr__(name: str) -> Any:
    # Imported when it is used: Django imports this package before the apps are ready.
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'messages')}"), name)
