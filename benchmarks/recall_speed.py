"""Measures how long indexing and searching take.

    python -m benchmarks.recall_speed [--data DIR]
    python -m benchmarks.recall_speed --database sqlite|postgresql|mariadb [--rows N] [--seconds N] [--data DIR]

Without a database, it measures a search from the text of the query to the matches, in seconds of the processor. With
one, it measures what indexing adds to a fold, whole searches, and whole searches after the tables were filled with ten
million messages of other people. It makes a database of its own on the server of the tests, and drops it at the end.

The messages are turns of LoCoMo with two words of other turns. The data folder is --data, or CONVMEMORY_DATA, or
../shared/data beside the checkout.
"""

from __future__ import annotations

import argparse
import collections
import os
import pathlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks import recall_quality
from django_convmemory.rules import segments
from django_convmemory.search import hits, ranking, tokenizer

# The number of messages in each session.
SIZES = {"1 000": [1_000], "10 000": [10_000], "100 000": [100_000], "500 sessions of 200": [200] * 500}
SITTING = 20
REPETITIONS = 5


def seconds(work: Callable[[], object]) -> float:
    """Return the shortest time that ``work`` took."""
    times = []
    for _ in range(REPETITIONS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def messages(turns: Sequence[str], count: int, rng: random.Random) -> list[str]:
    """Return ``count`` turns, each with two words of another one, so that they differ."""
    mixed = []
    for _ in range(count):
        words, others = rng.choice(turns).split(), rng.choice(turns).split()
        mixed.append(" ".join([*words, *rng.sample(others, min(2, len(others)))]))
    return mixed


def session(documents: Sequence[list[str]]) -> list[segments.Segment]:
    """Return the segments of a session with these messages."""
    found = [segments.Document(terms, number % SITTING == 0) for number, terms in enumerate(documents)]
    return segments.extended(None, 1, found)


def search_seconds(searched: Sequence[Sequence[segments.Segment]], text: str) -> float:
    """Return how long a search for ``text`` takes."""
    return seconds(lambda: ranking.rank(searched, tokenizer.query(text), limit=10))


def with_database(
    data: pathlib.Path, texts: Sequence[str], kinds: dict[str, list[str]], arguments: argparse.Namespace
) -> None:
    """Measure with the database of ``arguments``. Django is not needed before."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "tests.settings", "CONVMEMORY_TEST_DATABASE": arguments.database}
    import django

    django.setup()
    from benchmarks import recall_tables

    usual = {kind: kinds[kind] for kind in ("a question", "32 words")}
    recall_tables.main(data, texts, usual, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=recall_quality.DATA)
    parser.add_argument("--database", choices=("sqlite", "postgresql", "mariadb"), help="measure with this database")
    parser.add_argument("--rows", type=int, default=10_000_000, help="messages in the table at the end")
    parser.add_argument("--seconds", type=float, default=360.0, help="fill the tables for so long at most")
    arguments = parser.parse_args()
    data = arguments.data
    if not (data / "locomo").is_dir():
        sys.exit(f"There is no locomo in {data}. Set the data folder with --data or CONVMEMORY_DATA.")
    rng = random.Random(1)
    conversations = recall_quality.locomo(data)
    texts = messages([turn.text for conversation in conversations for turn in conversation.turns], 20_000, rng)
    documents = [tokenizer.tokenize(text) for text in texts]
    asked = [question.text for conversation in conversations for question in conversation.questions]
    frequent = collections.Counter(word for text in texts for word in text.split() if tokenizer.tokenize(word))
    kinds = {
        "a question": rng.sample(asked, 30),
        "32 words": [" ".join(rng.sample(list(frequent), 32)) for _ in range(5)],
        "the 32 most frequent words": [" ".join(word for word, _ in frequent.most_common(32))],
        "20 000 characters": [" ".join(texts)[: tokenizer.MAX_QUERY_LENGTH]],
    }
    if arguments.database:
        with_database(data, texts, kinds, arguments)
        return
    print(f"Tokenize a message of {statistics.fmean(map(len, texts)):.0f} characters: ", end="")
    print(f"{1e6 * seconds(lambda: [tokenizer.tokenize(text) for text in texts[:2000]]) / 2000:.0f} µs")
    print(f"Add a message to the index: {1e6 * seconds(lambda: session(documents[:1280])) / 1280:.0f} µs")
    page = "\n".join(texts)[:1_000_000]
    print(f"Excerpt from a megabyte: {1e3 * seconds(lambda: hits.excerpt(page, tokenizer.query(asked[0]))):.0f} ms")
    print("\n| messages | " + " | ".join(f"{kind}, ms" for kind in kinds) + " |")
    print("| --- |" + " ---: |" * len(kinds))
    for label, sizes in SIZES.items():
        ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
        searched = [
            session([documents[number % len(documents)] for number in range(end - size, end)])
            for size, end in zip(sizes, ends, strict=True)
        ]

        medians = [statistics.median(search_seconds(searched, text) for text in some) for some in kinds.values()]
        print(f"| {label} | " + " | ".join(f"{1000 * median:.2f}" for median in medians) + " |", flush=True)


if __name__ == "__main__":
    main()
