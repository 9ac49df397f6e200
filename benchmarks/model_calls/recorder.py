"""The common part of the contenders: a model that counts its calls, and the conversations from standard input.

It imports nothing of this project, because the environments of the other contenders do not have it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import tiktoken

ENCODING = "cl100k_base"
# Every summary, of 150 tokens. A longer one would cost more for contenders that send it along with every message.
SUMMARY = " ".join(f"In month {month} they spoke of plan {month} and agreed on step {month}." for month in range(11))


class Recorder:
    """Counts a model's calls, and the tokens of prompts and answers, in the same way for all contenders."""

    def __init__(self) -> None:
        self.encoding = tiktoken.get_encoding(ENCODING)
        self.calls = self.prompt_tokens = self.reply_tokens = 0

    def count(self, text: str) -> int:
        return len(self.encoding.encode_ordinary(text))

    def answer(self, *prompt: str) -> str:
        """Record a prompt and return the summary."""
        self.calls += 1
        self.prompt_tokens += sum(map(self.count, prompt))
        self.reply_tokens += self.count(SUMMARY)
        return SUMMARY


def run(talk: Callable[[Recorder, list[dict[str, Any]], int], None]) -> None:
    """Replay every conversation with a new memory, and print the recorder's counts as JSON."""
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
