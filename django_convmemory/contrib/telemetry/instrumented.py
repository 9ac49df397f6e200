"""Whether another instrumentation makes the spans of the openai client's calls already."""

from __future__ import annotations

import sys
import types

from django_convmemory.chat_models.base import ChatModel
from django_convmemory.chat_models.openai import OpenAIChatModel


def is_instrumented(model: ChatModel) -> bool:
    """Whether the method of the client that ``model`` calls was replaced, as instrumentations do."""
    completions = sys.modules.get("openai.resources.chat.completions")
    if completions is None or not isinstance(model, OpenAIChatModel):
        return False
    # An instrumentation puts an object of its own in place of the function. isinstance() would not tell: a wrapper may
    # have the class of what it wraps.
    return any(
        type(vars(cls).get("create")) is not types.FunctionType
        for cls in (completions.Completions, completions.AsyncCompletions)
    )
