"""Real conversations to test on. They are read from a folder beside the project, and not part of it.

``CONVMEMORY_DATA`` names the folder; without it, it is looked for at ``../shared/data``.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

FOLDER = pathlib.Path(os.environ.get("CONVMEMORY_DATA") or pathlib.Path(__file__).parents[2] / "shared" / "data")

needed = pytest.mark.skipif(
    not (FOLDER / "locomo").is_dir(), reason="needs the folder of real conversations (CONVMEMORY_DATA), which is absent"
)


# Yields the key and the messages of each conversation.
Reader = Callable[[], Iterator[tuple[str, list[dict[str, Any]]]]]


def locomo() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """LoCoMo: conversations of two people over months. The first speaker is the user."""
    with gzip.open(FOLDER / "locomo" / "locomo5.json.gz", "rt") as file:
        conversations = json.load(file)
    for sample in conversations:
        talk = sample["conversation"]
        sittings = sorted(int(name.removeprefix("session_")) for name in talk if name[8:].isdigit())
        yield (
            f"locomo-{sample['sample_id']}",
            [
                {"role": "user" if turn["speaker"] == talk["speaker_a"] else "assistant", "content": turn["text"]}
                for number in sittings
                for turn in talk[f"session_{number}"]
            ],
        )


def taubench() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """tau-bench: trajectories of an airline agent, with tool calls."""
    yield from _lines("taubench/airline.jsonl.gz")


def crosswoz() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """CrossWOZ: Chinese dialogues."""
    yield from _lines("crosswoz/crosswoz.jsonl.gz")


def _lines(name: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    with gzip.open(FOLDER / name, "rt") as file:
        for line in file:
            record = json.loads(line)
            yield record["key"], record["messages"]
