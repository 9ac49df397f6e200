"""django_convmemory's summary buffer. Each session is folded as soon as it is due."""

from __future__ import annotations

from typing import Any

from recorder import ENCODING, Recorder, run

from django_convmemory.chat_models.base import ChatRequest, ChatResponse, Usage
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage, coerce
from django_convmemory.scheduling import InlineScheduler
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.tokens import TiktokenCounter


class Model:
    """A chat model that answers with the recorder's summary."""

    name, deadline = "recorder", 60.0

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def chat(self, request: ChatRequest) -> ChatResponse:
        text = self.recorder.answer(*(message.text for message in request.messages))
        return ChatResponse(ChatMessage.ai(text), Usage(prompt_tokens=0, completion_tokens=0))

    async def achat(self, request: ChatRequest) -> ChatResponse:
        return self.chat(request)


def talk(recorder: Recorder, turns: list[dict[str, Any]], limit: int) -> None:
    memory = ConversationSummaryBufferMemory(
        InMemoryStore(), Model(recorder), limit, counter=TiktokenCounter(ENCODING), scheduler=InlineScheduler()
    )
    for turn in turns:
        memory.append("main", coerce(turn))


if __name__ == "__main__":
    run(talk)
