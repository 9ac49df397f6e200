"""Chat models of the site."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

from django.conf import settings

from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.chat_models.openai import OpenAIChatModel
from tests.chaos import gates, watching

# A turn that contains this text needs more memory than the worker has.
HUGE = "[too much for the worker]"


class GatedChatModel(OpenAIChatModel):
    """The OpenAI chat model, with a gate before its call and one after, and headers that say what the worker did."""

    def _arguments(self, request: ChatRequest) -> dict[str, Any]:
        seen = {"X-Read": f"{watching.Seen.read:.6f}", "X-Lease-Written": f"{watching.Seen.lease_written:.6f}"}
        return super()._arguments(request) | {"extra_headers": seen}

    def chat(self, request: ChatRequest) -> ChatResponse:
        folder = pathlib.Path(settings.SITE["gates"])  # type: ignore[misc]
        gates.pass_through(folder, gates.BEFORE_CALL)
        if any(HUGE in message.text for message in request.messages):
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does
        response = super().chat(request)
        gates.pass_through(folder, gates.AFTER_ANSWER)
        return response
