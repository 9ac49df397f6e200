"""What the contenders have in common: a model that counts what it is asked, and the conversations, from standard input.

It imports nothing of this project, for the environments of the others do not have it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import tiktoken

ENCODING = "cl100k_base"
# What every summary reads, 150 tokens of it: longer ones cost those more who send it along with every message.
SUMMARY = " ".join(f"In month {month} they spoke of plan {month} and agreed on step {month}." for month in range(11))


class Recorder:
    """A model's calls: how many, and the tokens of the prompts and of the answers, all counted alike."""

    def __init__(self) -> None:
        self.encoding = tiktoken.get_encoding(ENCODING)
        self.calls = self.prompt_tokens = self.reply_tokens = 0

    def count(self, text: str) -> int:
        return len(self.encoding.encode_ordinary(text))

    def answer(self, *prompt: str) -> str:
        """Note a prompt, and return the summary."""
        self.calls += 1
        self.prompt_tokens += sum(map(self.count, prompt))
        self.reply_tokens += self.count(SUMMARY)
        return SUMMARY


def run(talk: Callable[[Recorder, list[dict[str, Any]], int], None]) -> None:
    """Have every conversation with a memory of its own, and print what the model was asked, as JSON."""
    order = json.load(sys.stdin)
    recorder = Recorder()
    for turns in order["conversations"]:
        talk(recorder, turns, order["limit"])
    print(
        json.dumps(
            {
                "calls": recorder.calls,
                "prompt_tokens": recorder.prompt_tokens,
                "reply_tokens": recorder.reply_tokens,
            }
        )
    )
