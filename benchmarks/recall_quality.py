"""Measures how many of the messages that answer a question a search finds, beside the databases' own searches.

    python -m benchmarks.recall_quality [--data DIR]

The recorded conversations are in the data folder: --data, or CONVMEMORY_DATA, or ../shared/data beside the checkout.

- LoCoMo: conversations of two people, and questions with the turns that answer them. *Recall at k* is the share of
  these turns that are among the first k found. Categories 1 to 4 are the questions that have an answer.
- CrossWOZ: a hundred invented names are planted into Chinese dialogues, all in one session. Each is looked for in a
  question and alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import pathlib
import random
import re
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from django_convmemory.messages import ChatMessage
from django_convmemory.rules import segments
from django_convmemory.search import indexing, ranking, tokenizer
from tests import servers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("CONVMEMORY_DATA") or ROOT.parent / "shared" / "data")

DEPTHS = (5, 10, 25, 50)
ANSWERED = (1, 2, 3, 4)
# Rare characters, so that no planted name is in the dialogues.
NAME_CHARACTERS = "云岚溪柏鹭鸢汐澜朔蘅珂霁琮芷昱淼洛翎瑾珣骊沅苒泠"


class Turn(NamedTuple):
    """A turn of LoCoMo. ``begins`` says whether it is the first one of a sitting."""

    id: str
    begins: bool
    speaker: str
    text: str
    caption: str


class Question(NamedTuple):
    """A question, and the numbers of the turns that answer it."""

    text: str
    category: int
    evidence: frozenset[int]


class Conversation(NamedTuple):
    turns: list[Turn]
    questions: list[Question]


# Returns the numbers of the turns that a question finds, the best first.
Search = Callable[[str], Sequence[int]]
# Makes the search in texts. The flags say which texts begin a sitting.
Searcher = Callable[[Sequence[ChatMessage], Sequence[bool]], contextlib.AbstractContextManager[Search]]


# The conversations.


def locomo(data: pathlib.Path = DATA) -> list[Conversation]:
    """Return the conversations of LoCoMo with the questions that have evidence."""
    with gzip.open(data / "locomo" / "locomo5.json.gz", "rt") as file:
        samples = json.load(file)
    return [_conversation(sample) for sample in samples]


def _conversation(sample: Any) -> Conversation:
    talk = sample["conversation"]
    sittings = sorted(int(name.removeprefix("session_")) for name in talk if name[8:].isdigit())
    turns = [
        Turn(turn["dia_id"], number == 0, turn["speaker"], turn["text"], turn.get("blip_caption") or "")
        for sitting in sittings
        for number, turn in enumerate(talk[f"session_{sitting}"])
    ]
    numbers = {turn.id: number for number, turn in enumerate(turns)}
    questions = [
        Question(question["question"], question["category"], evidence)
        for question in sample["qa"]
        if (evidence := _evidence(question, numbers))
    ]
    return Conversation(turns, questions)


def _evidence(question: Any, numbers: dict[str, int]) -> frozenset[int]:
    # Some fields hold several ids, or one with a colon too many.
    ids = re.findall(r"D:?(\d+:\d+)", " ".join(map(str, question.get("evidence") or [])))
    return frozenset(numbers[f"D{number}"] for number in ids if f"D{number}" in numbers)


def messages(conversation: Conversation, *, text_alone: bool = False) -> list[ChatMessage]:
    """Return the turns as messages: with the speaker's name and the caption of a photo, or the text alone."""
    first = conversation.turns[0].speaker
    result = []
    for turn in conversation.turns:
        role = "user" if turn.speaker == first else "assistant"
        text = turn.text
        if turn.caption and not text_alone:
            text += f" [shares a photo: {turn.caption}]"
        result.append(ChatMessage(role, text, name=None if text_alone else turn.speaker))
    return result


# The searches.


def index(found: Sequence[ChatMessage], begins: Sequence[bool]) -> list[segments.Segment]:
    """Return the segments of messages at the positions 1, 2, 3, …"""
    return segments.extended(
        None,
        1,
        [segments.Document(indexing.document(message), begin) for message, begin in zip(found, begins, strict=True)],
    )


@contextlib.contextmanager
def ours(found: Sequence[ChatMessage], begins: Sequence[bool]) -> Iterator[Search]:
    """The search of this project, without a store."""
    session = index(found, begins)

    def search(question: str) -> list[int]:
        matches = ranking.rank([session], tokenizer.query(question), limit=max(DEPTHS))
        return [match.position - 1 for match in matches]

    yield search


@contextlib.contextmanager
def fts5(found: Sequence[ChatMessage], begins: Sequence[bool]) -> Iterator[Search]:
    """SQLite's FTS5 with its Porter stemmer. Any word of the question may match."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE turn USING fts5(text, tokenize='porter unicode61')")
    rows = [(number, indexing.indexed_text(message)) for number, message in enumerate(found)]
    connection.executemany("INSERT INTO turn (rowid, text) VALUES (?, ?)", rows)

    def search(question: str) -> list[int]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question))
        statement = "SELECT rowid FROM turn WHERE turn MATCH ? ORDER BY rank LIMIT ?"
        return [row[0] for row in connection.execute(statement, (words, max(DEPTHS)))]

    yield search
    connection.close()


@contextlib.contextmanager
def postgresql(found: Sequence[ChatMessage], begins: Sequence[bool]) -> Iterator[Search]:
    """PostgreSQL's ts_rank in English. Any word of the question may match."""
    import psycopg

    with psycopg.connect(servers.POSTGRESQL, dbname="postgres", autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE turn (number integer PRIMARY KEY, words tsvector)")
        for number, message in enumerate(found):
            connection.execute(
                "INSERT INTO turn VALUES (%s, to_tsvector('english', %s))", (number, indexing.indexed_text(message))
            )

        def search(question: str) -> list[int]:
            rows = connection.execute(
                """
                WITH query AS (
                    SELECT replace(plainto_tsquery('english', %s)::text, '&', '|')::tsquery AS any_word)
                SELECT number FROM turn, query WHERE words @@ any_word
                ORDER BY ts_rank(words, any_word) DESC, number DESC LIMIT %s
                """,
                (question, max(DEPTHS)),
            )
            return [row[0] for row in rows]

        yield search


@contextlib.contextmanager
def mariadb(found: Sequence[ChatMessage], begins: Sequence[bool]) -> Iterator[Search]:
    """MariaDB's FULLTEXT in its natural language mode."""
    name = f"bench_recall_{os.getpid()}"
    connection = _mariadb(urlsplit(servers.MARIADB))
    cursor = connection.cursor()
    cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        cursor.execute(f"USE {name}")
        cursor.execute("CREATE TABLE turn (number integer PRIMARY KEY, body text, FULLTEXT (body)) ENGINE=InnoDB")
        rows = [(number, indexing.indexed_text(message)) for number, message in enumerate(found)]
        cursor.executemany("INSERT INTO turn VALUES (%s, %s)", rows)
        connection.commit()

        def search(question: str) -> list[int]:
            cursor.execute(
                "SELECT number FROM turn WHERE MATCH (body) AGAINST (%s) "
                "ORDER BY MATCH (body) AGAINST (%s) DESC, number DESC LIMIT %s",
                (question, question, max(DEPTHS)),
            )
            return [row[0] for row in cursor.fetchall()]

        yield search
    finally:
        cursor.execute(f"DROP DATABASE {name}")
        connection.close()


def _mariadb(parts: SplitResult) -> Any:
    import MySQLdb

    host = unquote(parts.hostname or "")
    return MySQLdb.connect(
        **{"unix_socket" if host.startswith("/") else "host": host},
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        charset="utf8mb4",
    )


# The measures.


class Found(NamedTuple):
    """The share of the evidence of a question among the first found, for each depth."""

    category: int
    shares: tuple[float, ...]


def found_by(
    searcher: Searcher, conversations: Sequence[Conversation], *, text_alone: bool = False
) -> tuple[list[Found], float]:
    """Ask all questions. Return what was found, and the median of the seconds that a search took."""
    found: list[Found] = []
    seconds: list[float] = []
    for conversation in conversations:
        turns = messages(conversation, text_alone=text_alone)
        with searcher(turns, [turn.begins for turn in conversation.turns]) as search:
            for question in conversation.questions:
                start = time.perf_counter()
                numbers = search(question.text)
                seconds.append(time.perf_counter() - start)
                shares = tuple(
                    len(question.evidence.intersection(numbers[:depth])) / len(question.evidence) for depth in DEPTHS
                )
                found.append(Found(question.category, shares))
    return found, statistics.median(seconds)


def recall(found: Sequence[Found], categories: Sequence[int] = ()) -> tuple[float, ...]:
    """Return the mean recall at each depth in per cent, of all questions or of those of the ``categories``."""
    counted = [question.shares for question in found if not categories or question.category in categories]
    return tuple(100 * statistics.fmean(depth) for depth in zip(*counted, strict=True))


class Planted(NamedTuple):
    """A name, and whether it was among the first five: asked for in a question, and alone."""

    name: str
    asked: bool
    alone: bool


def planted(data: pathlib.Path = DATA, seed: int = 5) -> list[Planted]:
    """Plant a hundred names into the dialogues of CrossWOZ, all in one session, and look for them."""
    rng = random.Random(seed)
    texts: list[str] = []
    begins: list[bool] = []
    with gzip.open(data / "crosswoz" / "crosswoz.jsonl.gz", "rt") as file:
        for line in file:
            said = [message["content"] for message in json.loads(line)["messages"] if message.get("content")]
            texts += said
            begins += [number == 0 for number in range(len(said))]
    names: set[str] = set()
    while len(names) < 100:
        names.add("".join(rng.choice(NAME_CHARACTERS) for _ in range(rng.choice((2, 2, 3, 4)))))
    places = dict(zip(sorted(names), rng.sample(range(len(texts)), len(names)), strict=True))
    for name, number in places.items():
        texts[number] += rng.choice(("我的朋友叫{}。", "上次我们去了{}。", "我订了{}。")).format(name)
    with ours([ChatMessage.human(text) for text in texts], begins) as search:
        return [
            Planted(name, number in search(f"你还记得{name}吗？")[:5], number in search(name)[:5])
            for name, number in places.items()
        ]


def bytes_of_message(conversations: Sequence[Conversation], *, text_alone: bool = False) -> float:
    """Return the bytes of the index for each message."""
    size = count = 0
    for conversation in conversations:
        turns = messages(conversation, text_alone=text_alone)
        for segment in index(turns, [turn.begins for turn in conversation.turns]):
            size += len(segment.data.encode())
        count += len(turns)
    return size / count


def searchers() -> dict[str, Searcher]:
    """Return the searches that this machine has."""
    found: dict[str, Searcher] = {"ours": ours, "SQLite FTS5, porter": fts5}
    for server, title, searcher in (
        ("postgresql", "PostgreSQL ts_rank", postgresql),
        ("mariadb", "MariaDB FULLTEXT", mariadb),
    ):
        if reason := servers.why_absent(server):
            print(f"{title} is left out: {reason}", file=sys.stderr)
        else:
            found[title] = searcher
    return found


def rows(conversations: Sequence[Conversation]) -> Iterator[list[str]]:
    """Return the rows of the table of LoCoMo."""
    for texts, text_alone in (("name, text, caption", False), ("text alone", True)):
        for title, searcher in searchers().items():
            found, seconds = found_by(searcher, conversations, text_alone=text_alone)
            kinds: list[tuple[str, Sequence[int]]] = [("1 to 4", ANSWERED), ("all", ())]
            if searcher is ours:
                kinds += [(str(category), [category]) for category in ANSWERED]
            for label, categories in kinds:
                shares = [f"{share:.1f}" for share in recall(found, categories)]
                yield [texts, title, label, *shares, f"{1000 * seconds:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    data = parser.parse_args().data
    if not (data / "locomo").is_dir():
        sys.exit(f"There is no locomo in {data}. Set the data folder with --data or CONVMEMORY_DATA.")
    conversations = locomo(data)
    print("| indexed | search | categories | " + " | ".join(f"R@{depth}" for depth in DEPTHS) + " | ms |")
    print("| --- " * 3 + "| ---: " * (len(DEPTHS) + 1) + "|")
    for row in rows(conversations):
        print("| " + " | ".join(row) + " |", flush=True)
    print()
    for texts, text_alone in (("name, text, caption", False), ("text alone", True)):
        size = bytes_of_message(conversations, text_alone=text_alone)
        print(f"Bytes of the index for each message, {texts}: {size:.0f}")
    results = planted(data)
    short = [result for result in results if len(result.name) == 2]
    for label, some in (("Chinese names", results), ("Those of two characters", short)):
        asked, alone = sum(result.asked for result in some), sum(result.alone for result in some)
        print(f"{label} among the first five: in a question {asked} of {len(some)}, alone {alone} of {len(some)}")


if __name__ == "__main__":
    main()
