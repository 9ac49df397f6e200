"""What a model is sent of a stored conversation: the summary and the newest messages, instead of the whole history."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from asgiref.sync import sync_to_async
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart, repair_messages
from pydantic_ai.models import ModelRequestContext

from django_convmemory.contrib.pydantic_ai import entries, messages
from django_convmemory.contrib.pydantic_ai.store import ConvMemoryConversationStore


@dataclasses.dataclass
class ConvMemoryContext(AbstractCapability[Any]):
    """Sends a model the context of the memory in the place of the history that was loaded from ``store``.

    Pass it as a capability to each run. What the run returns and saves has the whole history. If a new prompt follows
    calls that nobody answered, a notice is sent as their result, unless the conversation waits for their results.
    """

    store: ConvMemoryConversationStore
    _context: list[ModelMessage] = dataclasses.field(default_factory=list, init=False, repr=False)
    # The last response that the context has. What follows it is sent as it is.
    _last: ModelMessage | None = dataclasses.field(default=None, init=False, repr=False)

    async def for_run(self, ctx: RunContext[Any]) -> ConvMemoryContext:
        """Return a capability that has the context of one run."""
        return dataclasses.replace(self)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Read the context for the history with which the run begins."""
        record = await self.store.read_record(ctx.conversation_id) if ctx.conversation_id else None
        if record is None:
            return
        self._last, self._context = await sync_to_async(self._read)(record.conversation_id, list(ctx.messages))
        if ctx.prompt is not None and record.deferred_tool_requests is None:
            ctx.messages[:] = repair_messages(ctx.messages)

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Replace the history in what is sent."""
        sent = request_context.messages
        after = next((number for number, each in enumerate(sent, 1) if each is self._last or each == self._last), 0)
        if after:
            # The agent's system prompt may not be stored: an adapter adds it to each request.
            known = {part.content for part in _system_prompts(self._context)}
            added = [part for part in _system_prompts(sent[:1]) if part.content not in known]
            prompt: list[ModelMessage] = [ModelRequest(parts=added)] if added else []
            request_context.messages = [*prompt, *self._context, *sent[after:]]
        return request_context

    def _read(self, conversation_id: str, own: list[ModelMessage]) -> tuple[ModelMessage | None, list[ModelMessage]]:
        session = self.store.rows(conversation_id).first()
        if session is None:
            return None, []
        memory = self.store.memory
        items = entries.history(memory, session, through=session.last_position)
        last, at = None, 0
        kept = messages.validated([item.message for item in items])
        for message, stored, item in zip(own, kept, items, strict=False):
            if message != stored:
                break
            if isinstance(message, ModelResponse):
                last, at = message, item.position or 0
        return (None, []) if last is None else (last, messages.message_history(memory.session(session), at=at))


def _system_prompts(sent: Sequence[ModelMessage]) -> list[SystemPromptPart]:
    return [part for message in sent for part in message.parts if isinstance(part, SystemPromptPart)]
