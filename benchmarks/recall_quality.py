"""Measures how many of the messages that answer a question a search finds, beside other searches.

    python -m benchmarks.recall_quality [--data DIR] [--beam DIR] [--embeddings URL]

The recorded conversations are in the data folder: --data, or CONVMEMORY_DATA, or ../shared/data beside the checkout.

- LoCoMo: conversations of two people, and questions with the turns that answer them. *Recall at k* is the share of
  these turns that are among the first k found. Categories 1 to 4 are the questions that have an answer.
- BEAM-100K: chats with a model, whose replies are long. --beam is the folder of a clone of the public repository
  mohammadtavakoli78/BEAM. While the ranking was made, only the even chats were looked at.
- With --embeddings, the address of an embedding model, our search is measured with it, too: see embedding_server.py.
- CrossWOZ: a hundred invented names are planted into Chinese dialogues, all in one session. Each is looked for in a
  question and alone.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime as dt
import gzip
import heapq
import itertools
import json
import math
import os
import pathlib
import random
import re
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import SplitResult, unquote, urlsplit

from django_convmemory.messages import ChatMessage
from django_convmemory.rules import segments
from django_convmemory.rules.segments import Indexable
from django_convmemory.search import indexing, ranking, tokenizer
from tests import servers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = pathlib.Path(os.environ.get("CONVMEMORY_DATA") or ROOT.parent / "shared" / "data")

DEPTHS = (5, 10, 25, 50)
ANSWERED = ("1", "2", "3", "4")
UNANSWERED = "abstention"
# Rare characters, so that no planted name is in the dialogues.
NAME_CHARACTERS = "云岚溪柏鹭鸢汐澜朔蘅珂霁琮芷昱淼洛翎瑾珣骊沅苒泠"


class Question(NamedTuple):
    """A question, and the numbers of the turns that answer it: none if the conversation does not answer it."""

    text: str
    category: str
    evidence: frozenset[int]


class Conversation(NamedTuple):
    """Turns with their times, and questions that are asked after the last one."""

    turns: list[Indexable]
    questions: list[Question]

    @property
    def asked_at(self) -> dt.datetime:
        """A day after the last turn."""
        return self.turns[-1].created_at + dt.timedelta(days=1)


# Returns the numbers of the turns that a question finds, the best first.
Search = Callable[[str], Sequence[int]]
# Makes the search in a conversation.
Searcher = Callable[[Conversation], contextlib.AbstractContextManager[Search]]


# The conversations.


def turns_of(sittings: Iterable[tuple[dt.datetime, Iterable[ChatMessage]]]) -> list[Indexable]:
    """Return the messages of sittings, one a minute from the time at which each begins."""
    positions = itertools.count(1)
    return [
        Indexable(next(positions), begins + dt.timedelta(minutes=number), message, redacted=False)
        for begins, messages in sittings
        for number, message in enumerate(messages)
    ]


def locomo(data: pathlib.Path = DATA, *, text_alone: bool = False) -> list[Conversation]:
    """Return the conversations of LoCoMo with the questions that have evidence.

    A turn is a message with the speaker's name and the caption of a photo, or with the text alone.
    """
    with gzip.open(data / "locomo" / "locomo5.json.gz", "rt") as file:
        samples = json.load(file)
    return [_of_two_people(sample, text_alone=text_alone) for sample in samples]


def _of_two_people(sample: Any, *, text_alone: bool) -> Conversation:
    talk = sample["conversation"]
    numbers = sorted(int(name.removeprefix("session_")) for name in talk if name[8:].isdigit())
    spoken = [turn for number in numbers for turn in talk[f"session_{number}"]]

    def message(turn: Any) -> ChatMessage:
        role = "user" if turn["speaker"] == spoken[0]["speaker"] else "assistant"
        if text_alone:
            return ChatMessage(role, turn["text"])
        caption = turn.get("blip_caption")
        text = f"{turn['text']} [shares a photo: {caption}]" if caption else turn["text"]
        return ChatMessage(role, text, name=turn["speaker"])

    turns = turns_of(
        # As in "1:56 pm on 8 May, 2023".
        (_time(talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y"), map(message, talk[f"session_{number}"]))
        for number in numbers
    )
    ids = {turn["dia_id"]: number for number, turn in enumerate(spoken)}
    questions = [Question(each["question"], str(each["category"]), _evidence(each, ids)) for each in sample["qa"]]
    return Conversation(turns, [question for question in questions if question.evidence])


def _time(text: str, form: str) -> dt.datetime:
    return dt.datetime.strptime(text, form).replace(tzinfo=dt.UTC)


def _evidence(question: Any, numbers: dict[str, int]) -> frozenset[int]:
    # Some fields hold several ids, or one with a colon too many.
    ids = re.findall(r"D:?(\d+:\d+)", " ".join(map(str, question.get("evidence") or [])))
    return frozenset(numbers[f"D{number}"] for number in ids if f"D{number}" in numbers)


def beam(folder: pathlib.Path, *, odd: bool) -> list[Conversation]:
    """Return the even or the odd chats of BEAM-100K."""
    return [_with_a_model(folder / "chats" / "100K" / str(number)) for number in range(1 if odd else 2, 21, 2)]


def _with_a_model(folder: pathlib.Path) -> Conversation:
    batches = json.loads((folder / "chat.json").read_text(encoding="utf-8"))
    sittings = [[message for turn in batch["turns"] for message in turn] for batch in batches]
    # As in "March-15-2024".
    begins = [_time(sitting[0]["time_anchor"], "%B-%d-%Y") for sitting in sittings]
    said = ([ChatMessage(each["role"], each["content"]) for each in sitting] for sitting in sittings)
    ids = {message["id"]: number for number, message in enumerate(itertools.chain.from_iterable(sittings))}
    probes = json.loads((folder / "probing_questions" / "probing_questions.json").read_text(encoding="utf-8"))
    questions = [
        Question(probe["question"], category, frozenset(ids[i] for i in _ids(probe.get("source_chat_ids")) if i in ids))
        for category, of_category in probes.items()
        for probe in of_category
    ]
    answered = [question for question in questions if question.evidence or question.category == UNANSWERED]
    return Conversation(turns_of(zip(begins, said, strict=True)), answered)


def _ids(value: Any) -> list[int]:
    """Return the numbers in a field that has a list, or lists by name, or a text."""
    return [int(number) for number in re.findall(r"\d+", json.dumps(value))]


# The searches.


def index(turns: Sequence[Indexable]) -> list[segments.Segment]:
    """Return the segments of turns."""
    return segments.extended(None, 1, list(indexing.documents(turns, None)))


@contextlib.contextmanager
def ours(conversation: Conversation) -> Iterator[Search]:
    """The search of this project, without a store."""
    session = index(conversation.turns)

    def search(question: str) -> list[int]:
        query = tokenizer.query(question, conversation.asked_at)
        return [match.position - 1 for match in ranking.rank([session], query, limit=max(DEPTHS))]

    yield search


def with_embeddings(url: str) -> Searcher:
    """Return our search with the embedding model at an address, whose vectors are kept in this process."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django

    django.setup()
    from django_convmemory.contrib.embeddings import reranker, vectors
    from django_convmemory.search import reranking

    @contextlib.contextmanager
    def searcher(conversation: Conversation) -> Iterator[Search]:
        session, texts = index(conversation.turns), [vectors.text_of(turn) for turn in conversation.turns]
        judge = reranker.EmbeddingReranker(model="all-MiniLM-L6-v2", base_url=url, api_key="none", timeout=30.0)
        batches = [texts[at : at + reranker.BATCH] for at in range(0, len(texts), reranker.BATCH)]
        embedded = [vector for batch in batches for vector in judge.embed_all(batch)]
        stored = {(0, position): vector for position, vector in enumerate(embedded, 1)}

        def search(question: str) -> list[int]:
            query = tokenizer.query(question, conversation.asked_at)
            matches = ranking.rank([session], query, limit=reranking.MOST)
            with mock.patch.object(vectors, "at", return_value=stored):
                return [match.position - 1 for match in reranking.reranked(judge, question, matches, [0])]

        yield search

    return searcher


@contextlib.contextmanager
def bm25(conversation: Conversation) -> Iterator[Search]:
    """BM25 with the terms of this project. Half of each neighbour's score in the same sitting is added."""
    documents = list(indexing.documents(conversation.turns, None))
    counts = [collections.Counter(document.terms) for document in documents]
    average = statistics.fmean(counter.total() for counter in counts)

    def own(words: Sequence[tuple[str, ...]]) -> list[float]:
        scores = [0.0] * len(counts)
        for forms in words:
            having = {number: count for number, of in enumerate(counts) if (count := max(of[form] for form in forms))}
            idf = math.log(1 + (len(counts) - len(having) + 0.5) / (len(having) + 0.5))
            for number, count in having.items():
                norm = 0.9 * (0.6 + 0.4 * counts[number].total() / average)
                scores[number] += idf * 1.9 * count / (count + norm)
        return scores

    def search(question: str) -> list[int]:
        scores = own(list(tokenizer.query(question).terms))
        shared = list(scores)
        for number in range(1, len(scores)):
            if not documents[number].begins_sitting:
                shared[number] += scores[number - 1] / 2
                shared[number - 1] += scores[number] / 2
        best = heapq.nsmallest(max(DEPTHS), range(len(shared)), key=lambda number: (-shared[number], -number))
        return [number for number in best if shared[number]]

    yield search


@contextlib.contextmanager
def fts5(conversation: Conversation) -> Iterator[Search]:
    """SQLite's FTS5 with its Porter stemmer. Any word of the question may match, stop words left out."""
    stop_words = tokenizer.LANGUAGES[0].stop_words
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE turn USING fts5(text, tokenize='porter unicode61')")
    rows = [(number, indexing.indexed_text(turn.message)) for number, turn in enumerate(conversation.turns)]
    connection.executemany("INSERT INTO turn (rowid, text) VALUES (?, ?)", rows)

    def search(question: str) -> list[int]:
        telling = [word for word in re.findall(r"\w+", question) if word.lower() not in stop_words]
        words = " OR ".join(f'"{word}"' for word in telling) or '""'
        statement = "SELECT rowid FROM turn WHERE turn MATCH ? ORDER BY rank LIMIT ?"
        return [row[0] for row in connection.execute(statement, (words, max(DEPTHS)))]

    yield search
    connection.close()


@contextlib.contextmanager
def postgresql(conversation: Conversation) -> Iterator[Search]:
    """PostgreSQL's ts_rank in English. Any word of the question may match."""
    import psycopg

    with psycopg.connect(servers.POSTGRESQL, dbname="postgres", autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE turn (number integer PRIMARY KEY, words tsvector)")
        for number, turn in enumerate(conversation.turns):
            row = number, indexing.indexed_text(turn.message)
            connection.execute("INSERT INTO turn VALUES (%s, to_tsvector('english', %s))", row)

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
def mariadb(conversation: Conversation) -> Iterator[Search]:
    """MariaDB's FULLTEXT in its natural language mode."""
    name = f"bench_recall_{os.getpid()}"
    connection = _mariadb(urlsplit(servers.MARIADB))
    cursor = connection.cursor()
    cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        cursor.execute(f"USE {name}")
        cursor.execute("CREATE TABLE turn (number integer PRIMARY KEY, body text, FULLTEXT (body)) ENGINE=InnoDB")
        rows = [(number, indexing.indexed_text(turn.message)) for number, turn in enumerate(conversation.turns)]
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

    category: str
    shares: tuple[float, ...]


def found_by(searcher: Searcher, conversations: Sequence[Conversation]) -> tuple[list[Found], float]:
    """Ask all questions that have an answer. Return what was found, and the median of the seconds of a search."""
    found: list[Found] = []
    seconds: list[float] = []
    for conversation in conversations:
        with searcher(conversation) as search:
            for question in conversation.questions:
                if not question.evidence:
                    continue
                start = time.perf_counter()
                numbers = search(question.text)
                seconds.append(time.perf_counter() - start)
                shares = tuple(
                    len(question.evidence.intersection(numbers[:depth])) / len(question.evidence) for depth in DEPTHS
                )
                found.append(Found(question.category, shares))
    return found, statistics.median(seconds)


def recall(found: Sequence[Found], categories: Collection[str] = ()) -> tuple[float, ...]:
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
    with gzip.open(data / "crosswoz" / "crosswoz.jsonl.gz", "rt") as file:
        dialogues = [[each for each in json.loads(line)["messages"] if each.get("content")] for line in file]
    said = list(itertools.chain.from_iterable(dialogues))
    names: set[str] = set()
    while len(names) < 100:
        names.add("".join(rng.choice(NAME_CHARACTERS) for _ in range(rng.choice((2, 2, 3, 4)))))
    places = dict(zip(sorted(names), rng.sample(range(len(said)), len(names)), strict=True))
    for name, number in places.items():
        said[number]["content"] += rng.choice(("我的朋友叫{}。", "上次我们去了{}。", "我订了{}。")).format(name)
    turns = turns_of(
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=3 * number), map(_said, dialogue))
        for number, dialogue in enumerate(dialogues)
    )
    with ours(Conversation(turns, [])) as search:
        return [
            Planted(name, number in search(f"你还记得{name}吗？")[:5], number in search(name)[:5])
            for name, number in places.items()
        ]


def _said(message: Any) -> ChatMessage:
    return ChatMessage(message["role"], message["content"])


def bytes_of_message(conversations: Sequence[Conversation]) -> float:
    """Return the bytes of the index for each message."""
    found = [segment for conversation in conversations for segment in index(conversation.turns)]
    return sum(len(segment.data.encode()) for segment in found) / sum(map(len, (each.turns for each in conversations)))


def searchers(embeddings: str = "") -> dict[str, Searcher]:
    """Return the searches that this machine has."""
    found: dict[str, Searcher] = {"ours": ours, "BM25 with neighbours": bm25, "SQLite FTS5, porter": fts5}
    if embeddings:
        found["ours, with embeddings"] = with_embeddings(embeddings)
    for server, title, searcher in (
        ("postgresql", "PostgreSQL ts_rank", postgresql),
        ("mariadb", "MariaDB FULLTEXT", mariadb),
    ):
        if reason := servers.why_absent(server):
            print(f"{title} is left out: {reason}", file=sys.stderr)
        else:
            found[title] = searcher
    return found


def rows(corpora: Mapping[str, Sequence[Conversation]], searchers: Mapping[str, Searcher]) -> Iterator[list[str]]:
    """Return the rows of the table."""
    for name, conversations in corpora.items():
        for title, searcher in searchers.items():
            found, seconds = found_by(searcher, conversations)
            kinds: dict[str, Collection[str]] = {name: ()}
            if name.startswith("LoCoMo"):
                kinds = {f"{name}, 1 to 4": ANSWERED}
                if searcher is ours:
                    kinds |= {f"{name}, {category}": [category] for category in ANSWERED}
            for label, categories in kinds.items():
                shares = [f"{share:.1f}" for share in recall(found, categories)]
                yield [label, title, *shares, f"{1000 * seconds:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=DATA)
    parser.add_argument("--beam", type=pathlib.Path, help="the folder of a clone of mohammadtavakoli78/BEAM")
    parser.add_argument("--embeddings", default="", help="the address of an embedding model")
    arguments = parser.parse_args()
    data = arguments.data
    if not (data / "locomo").is_dir():
        sys.exit(f"There is no locomo in {data}. Set the data folder with --data or CONVMEMORY_DATA.")
    corpora = {"LoCoMo": locomo(data), "LoCoMo, text alone": locomo(data, text_alone=True)}
    if arguments.beam:
        corpora["BEAM-100K, even"] = beam(arguments.beam, odd=False)
        corpora["BEAM-100K, odd"] = beam(arguments.beam, odd=True)
    print("| conversations | search | " + " | ".join(f"R@{depth}" for depth in DEPTHS) + " | ms |")
    print("| --- " * 2 + "| ---: " * (len(DEPTHS) + 1) + "|")
    for row in rows(corpora, searchers(arguments.embeddings)):
        print("| " + " | ".join(row) + " |", flush=True)
    print()
    for name, conversations in corpora.items():
        print(f"Bytes of the index for each message, {name}: {bytes_of_message(conversations):.1f}")
    results = [result for seed in (5, 6, 7) for result in planted(data, seed)]
    short = [result for result in results if len(result.name) == 2]
    for label, some in (("Chinese names", results), ("Those of two characters", short)):
        asked, alone = sum(result.asked for result in some), sum(result.alone for result in some)
        print(f"{label} among the first five: in a question {asked} of {len(some)}, alone {alone} of {len(some)}")


if __name__ == "__main__":
    main()
