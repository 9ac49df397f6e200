"""Measures which share of the prompts' tokens a provider's cache can serve, for each memory and limit.

``python benchmarks/prompt_caches.py [FOLDER]`` talks the conversations of LoCoMo again. Before each reply it loads the
context, behind a system prompt of 280 tokens. A provider's cache serves what a prompt has in common with the one before
it: 1 024 tokens or more, in steps of 128. Tokens are those of the vocabulary o200k_base.

``price`` is what the prompts cost in all, compared with the same prompts without a cache, if cached tokens cost a
tenth. ``shown`` is how many tokens a prompt has on average.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_convmemory.operations.handles import ConversationMemory
    from django_convmemory.tokens import TiktokenCounter

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SYSTEM_TOKENS = 280
LEAST, STEP = 1024, 128
# A worker folds while the site goes on: so many messages later.
LAG = 2


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
    from django_convmemory import tokens
    from tests import dialogues

    vocabulary = tokens.TiktokenCounter("o200k_base")
    system = "You are a friendly assistant. " * 100
    while vocabulary.count_text(system) > SYSTEM_TOKENS:
        system = system[:-8]
    talks = [turns for _, turns in dialogues.locomo()]
    print(f"{'':36}{'prompts':>9}{'shown':>9}{'cached':>9}{'price':>9}")
    for name, memory in memories():
        number = total = cached = 0
        for key, turns in enumerate(talks):
            for size, common in shared(list(prompts(memory, str(key), turns, system)), vocabulary):
                number += 1
                total += size
                cached += common // STEP * STEP if common >= LEAST else 0
        price = (total - 0.9 * cached) / total
        print(f"{name:36}{number:9}{total / number:9.0f}{cached / total:9.1%}{price:9.2f}")


def memories() -> Iterator[tuple[str, ConversationMemory]]:
    """Yield the memories to measure, each with its name."""
    from django_convmemory import memory as classes, tokens
    from django_convmemory.chat_models.extractive import ExtractiveChatModel
    from django_convmemory.scheduling import NullScheduler
    from django_convmemory.store.in_memory import InMemoryStore

    options = {"counter": tokens.Utf8TokenCounter(), "scheduler": NullScheduler()}

    for limit in (1000, 2000, 4000):
        model = ExtractiveChatModel()
        yield (
            f"summary buffer, {limit}",
            classes.ConversationSummaryBufferMemory(InMemoryStore(), model, limit, **options),
        )
    for size in (10, 20, 40):
        model = ExtractiveChatModel()
        yield f"summary, {size}", classes.ConversationSummaryMemory(InMemoryStore(), model, size, **options)
    for share in (1.0, 0.75, 0.5):
        for limit in (2000, 4000):
            yield (
                f"token buffer, {limit}, evict_to={share}",
                classes.ConversationTokenBufferMemory(InMemoryStore(), limit, share, **options),
            )
    for share in (1.0, 0.75, 0.5):
        for size in (40, 80):
            yield (
                f"window, {size}, evict_to={share}",
                classes.ConversationWindowMemory(InMemoryStore(), size, share, **options),
            )


def prompts(
    memory: ConversationMemory, key: str, turns: Sequence[dict[str, Any]], system: str
) -> Iterator[tuple[str, ...]]:
    """Talk a conversation again, and yield the texts of the prompt before each reply."""
    session = memory.session(key)
    for position, turn in enumerate(turns, 1):
        session.append(turn)
        if memory.summarizes and position % LAG == 0:
            session.compact()
        if turn["role"] == "user":
            yield tuple(message.text for message in session.load(system=system))


def shared(talk: Sequence[tuple[str, ...]], vocabulary: TiktokenCounter) -> Iterator[tuple[int, int]]:
    """Yield the tokens of each prompt of a conversation, and how many it has in common with the one before it."""
    for before, prompt in itertools.pairwise([(), *talk]):
        sizes = [vocabulary.count_text(text) + 4 for text in prompt]
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, prompt, strict=False))
        yield sum(sizes), sum(sizes[: len(list(pairs))])


if __name__ == "__main__":
    main()
