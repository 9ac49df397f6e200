"""tinygent's ``BufferSummaryChatMemory``."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from recorder import Recorder, run
from tinygent.core.datamodels.messages import TinyChatMessage, TinyHumanMessage
from tinygent.memory import BufferSummaryChatMemory


class Model:
    """The two methods of a model that the memory uses: generating a text and counting tokens."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def generate_text(self, llm_input: Any) -> Any:
        text = self.recorder.answer(*(message.content for message in llm_input.messages))
        return SimpleNamespace(to_string=lambda: text)

    def count_tokens_in_messages(self, messages: Iterable[Any]) -> int:
        return sum(self.recorder.count(message.content) for message in messages)


def talk(recorder: Recorder, turns: list[dict[str, Any]], limit: int) -> None:
    memory = BufferSummaryChatMemory(Model(recorder), max_token_limit=limit, return_messages=True)
    for turn in turns:
        kind = TinyHumanMessage if turn["role"] == "user" else TinyChatMessage
        memory.save_context(kind(content=turn["content"]))


if __name__ == "__main__":
    run(talk)
