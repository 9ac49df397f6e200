"""LangChain's ``ConversationSummaryBufferMemory``, pruned after each reply, as ``save_context`` does."""

from __future__ import annotations

import warnings
from typing import Any

from langchain_classic.memory import ConversationSummaryBufferMemory
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from recorder import Recorder, run

# The class is deprecated.
warnings.simplefilter("ignore")


class Model(BaseChatModel):
    """A chat model that answers with the recorder's summary and counts with the recorder."""

    recorder: Any

    @property
    def _llm_type(self) -> str:
        return "recorder"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        text = self.recorder.answer(*(str(message.content) for message in messages))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:
        return sum(self.recorder.count(str(message.content)) for message in messages)


def talk(recorder: Recorder, turns: list[dict[str, Any]], limit: int) -> None:
    memory = ConversationSummaryBufferMemory(llm=Model(recorder=recorder), max_token_limit=limit, return_messages=True)
    for turn in turns:
        kind = HumanMessage if turn["role"] == "user" else AIMessage
        memory.chat_memory.add_message(kind(turn["content"]))
        if turn["role"] == "assistant":
            memory.prune()


if __name__ == "__main__":
    run(talk)
