"""Measures how often the messages that answer a question are in the context, with recall and without.

``python -m benchmarks.recall_context [FOLDER]`` talks the conversations of LoCoMo, which come with questions and the
messages that answer them. The summary buffer folds them with default options.

- ``evidence``: the share of the messages that answer a question that are in the context, as messages or as quotes,
  when the question is asked at the end. ``questions``: the share of questions of which all of them are there.
- ``fires``: the share of ordinary user messages that bring quotes. ``added``: the tokens that quotes add to a prompt on
  average.
- ``cached``: the share of the prompts' tokens that a provider's cache can serve, as in benchmarks/prompt_caches.py.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gzip
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# Questions of this category have no answer in the conversation.
_ADVERSARIAL = 5


class Question(NamedTuple):
    """A question about a conversation, and the positions of the messages that answer it.

    The categories are those of LoCoMo: 1 multi hop, 2 temporal, 3 open domain, 4 single hop, 5 adversarial.
    """

    text: str
    category: int
    evidence: frozenset[int]


class Dialogue(NamedTuple):
    """A conversation of LoCoMo with the names of its speakers, the captions of photos, its times and its questions."""

    name: str
    turns: list[dict[str, Any]]
    times: list[dt.datetime]
    questions: list[Question]


def locomo_with_questions() -> Iterator[Dialogue]:
    """LoCoMo with its questions. The turns of a sitting are a minute apart."""
    from tests import dialogues

    with gzip.open(dialogues.FOLDER / "locomo" / "locomo5.json.gz", "rt") as file:
        conversations = json.load(file)
    for sample in conversations:
        talk = sample["conversation"]
        turns: list[dict[str, Any]] = []
        times: list[dt.datetime] = []
        positions: dict[str, int] = {}
        for number in sorted(int(name.removeprefix("session_")) for name in talk if name[8:].isdigit()):
            written = f"{talk[f'session_{number}_date_time']} +0000"
            began = dt.datetime.strptime(written, "%I:%M %p on %d %B, %Y %z")
            for minute, turn in enumerate(talk[f"session_{number}"]):
                caption = turn.get("blip_caption")
                text = turn["text"] + (f" [shares a photo: {caption}]" if caption else "")
                role = "user" if turn["speaker"] == talk["speaker_a"] else "assistant"
                turns.append({"role": role, "name": turn["speaker"], "content": text})
                times.append(began + dt.timedelta(minutes=minute))
                positions[turn["dia_id"]] = len(turns)
        questions = []
        for question in sample["qa"]:
            named = re.findall(r"D:?(\d+:\d+)", " ".join(map(str, question.get("evidence") or [])))
            evidence = frozenset(positions[f"D{each}"] for each in named if f"D{each}" in positions)
            questions.append(Question(question["question"], question["category"], evidence))
        yield Dialogue(f"locomo-{sample['sample_id']}", turns, times, questions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder",
        type=pathlib.Path,
        nargs="?",
        default=os.environ.get("CONVMEMORY_DATA", "."),
        help="the folder of the conversations, with the vocabulary in tiktoken/ (default: CONVMEMORY_DATA)",
    )
    folder = parser.parse_args().folder
    if not (folder / "tiktoken").is_dir():
        parser.error(f"There is no folder {folder}/tiktoken.")
    os.environ["CONVMEMORY_DATA"] = str(folder)
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder / "tiktoken")
    print(f"{'':24}{'evidence':>9}{'questions':>10}{'fires':>8}{'added':>8}{'cached':>8}")
    for name, options in (
        ("without recall", {}),
        # The quotes have a tenth of the context at most.
        ("recall, 400 tokens", {"recall": True, "max_context_tokens": 4000}),
        ("recall, 600 tokens", {"recall": True, "max_context_tokens": 6000}),
        ("recall, 1 200 tokens", {"recall": True, "max_context_tokens": 12_000}),
    ):
        print(f"{name:24}{row(options)}")


def row(options: dict[str, Any]) -> str:
    """Return the figures of a memory with these options."""
    from benchmarks.prompt_caches import LAG, LEAST, STEP, SYSTEM_TOKENS, shared
    from django_convmemory import tokens
    from django_convmemory.chat_models.extractive import ExtractiveChatModel
    from django_convmemory.memory import ConversationSummaryBufferMemory
    from django_convmemory.scheduling import NullScheduler
    from django_convmemory.store.in_memory import InMemoryStore

    vocabulary = tokens.TiktokenCounter("o200k_base")
    system = "You are a friendly assistant. " * 100
    while vocabulary.count_text(system) > SYSTEM_TOKENS:
        system = system[:-8]
    memory = ConversationSummaryBufferMemory(
        InMemoryStore(),
        ExtractiveChatModel(),
        2000,
        counter=tokens.Utf8TokenCounter(),
        scheduler=NullScheduler(),
        **options,
    )
    shares: list[float] = []
    turns_asked = fired = added = total = cached = 0
    for dialogue in locomo_with_questions():
        session = memory.session(dialogue.name)
        prompts = []
        for position, turn in enumerate(dialogue.turns, 1):
            session.append(turn, created_at=dialogue.times[position - 1])
            if position % LAG == 0:
                session.compact()
            if turn["role"] == "user":
                context = session.load(system=system)
                prompts.append(tuple(message.text for message in context))
                quoted = [part.tokens for part in context.parts if part.name == "recalled"]
                # Before the first fold everything is shown.
                turns_asked += context.covered > 0
                fired += bool(quoted)
                added += sum(quoted)
        for size, common in shared(prompts, vocabulary):
            total += size
            cached += common // STEP * STEP if common >= LEAST else 0
        for question in dialogue.questions:
            if question.category == _ADVERSARIAL or not question.evidence:
                continue
            context = session.load(system=system, recall=question.text if options else None)
            there = {part.position for part in context.parts} | {hit.position for hit in context.recalled}
            shares.append(len(question.evidence & there) / len(question.evidence))
    whole = sum(share == 1 for share in shares) / len(shares)
    return (
        f"{sum(shares) / len(shares):9.1%}{whole:10.1%}{fired / turns_asked:8.1%}{added / turns_asked:8.0f}"
        f"{cached / total:8.1%}"
    )


if __name__ == "__main__":
    main()
