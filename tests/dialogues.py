"""Real conversations to test on. They are read from a folder beside the project, and not part of it.

``CONVMEMORY_DATA`` names the folder; without it, it is looked for at ``../shared/data``.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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
    with gzip.open(FOLDER / "locomo" / "locomo5.json.gz", "rt") as file:
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
