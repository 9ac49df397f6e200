"""Measures how much of real conversations the extractive chat model keeps, compared with simple baselines.

    python benchmarks/extractive.py [--data DIR] [--only MEASURE]

The recorded conversations are in the data folder: --data, or CONVMEMORY_DATA, or ../shared/data beside the checkout.
Without it, everyday facts are planted into generated chat, and the rest is left out. ROUGE needs the packages
rouge-score and summa. The weights of facts were chosen on the part "dev".
"""

from __future__ import annotations

import argparse
import collections
import gzip
import itertools
import json
import os
import pathlib
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import everyday_facts  # noqa: E402
from django_convmemory.chat_models import base, extractive  # noqa: E402
from django_convmemory.messages import ChatMessage  # noqa: E402
from django_convmemory.tokens import Utf8TokenCounter  # noqa: E402

WORDS = 100
CAP = 500
PARTS = ("dev", "held out")

Turn = tuple[str, str]


def words(text: str) -> int:
    """Count words, as the cut to 100 words for ROUGE does."""
    return len(text.split())


def quarter_bytes(text: str) -> int:
    """Count tokens of four UTF-8 bytes."""
    return -(-len(text.encode()) // 4)


def summarize(turns: Sequence[ChatMessage], cap: int, count: Callable[[str], int], previous: str = "") -> str:
    """Return the model's summary. Asserts that it is within the token limit."""
    fold = base.FoldData(previous=previous, turns=turns, max_tokens=cap, count=count)
    text = extractive.ExtractiveChatModel().chat(base.ChatRequest([], fold)).message.text
    assert text.strip()
    assert count(text) <= cap
    return text


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print ``rows`` under ``head`` in columns."""
    print(f"\n{title}\n")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        first, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first, *others]).rstrip())


# LoCoMo: sittings and conversations.


def conversations(data: pathlib.Path, part: str) -> list[Any]:
    """Return the conversations of a part: the first three, or the others."""
    with gzip.open(data / "locomo" / "locomo5.json.gz") as file:
        all_conversations = json.load(file)
    return list(all_conversations[:3] if part == "dev" else all_conversations[3:])


def sittings(conversation: Any) -> list[tuple[list[Turn], str]]:
    """Return the turns of each sitting of a conversation, and its reference summary."""
    result = []
    for number in range(1, 100):
        turns = conversation["conversation"].get(f"session_{number}")
        if turns:
            reference = conversation["session_summary"].get(f"session_{number}_summary", "")
            result.append(([(turn["speaker"], turn["text"]) for turn in turns], reference))
    return result


def chat(conversation: Any, turns: Sequence[Turn]) -> list[ChatMessage]:
    """Return turns as messages. ``speaker_a`` is the user."""
    user = conversation["conversation"]["speaker_a"]
    return [(ChatMessage.human if who == user else ChatMessage.ai)(text, name=who) for who, text in turns]


def plain(turns: Sequence[Turn]) -> str:
    """Return the texts of the turns, a line each."""
    return "\n".join(text for _, text in turns)


def named(turns: Sequence[Turn]) -> str:
    """Return the speakers and texts of the turns, a line each."""
    return "\n".join(f"{who}: {text}" for who, text in turns)


def rouge(data: pathlib.Path) -> None:
    """Print the ROUGE scores of 100 words of each sitting against its reference summary."""
    from rouge_score import rouge_scorer
    from summa import summarizer

    systems: dict[str, Callable[[Any, list[Turn]], str]] = {
        "lead": lambda _, turns: plain(turns),
        "lead, with names": lambda _, turns: named(turns),
        "TextRank": lambda _, turns: summarizer.summarize(plain(turns), words=WORDS),
        "TextRank, with names": lambda _, turns: summarizer.summarize(named(turns), words=WORDS),
        "extractive": lambda whole, turns: summarize(chat(whole, turns), WORDS, words),
    }
    measures = {"R-1 F": ("rouge1", 2), "R-1 recall": ("rouge1", 1), "R-2 F": ("rouge2", 2), "R-L F": ("rougeL", 2)}
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    rows = []
    for part in PARTS:
        cases = [
            (whole, turns, reference)
            for whole in conversations(data, part)
            for turns, reference in sittings(whole)
            if reference
        ]
        for name, system in systems.items():
            scores = [
                scorer.score(reference, " ".join(system(whole, turns).split()[:WORDS]))
                for whole, turns, reference in cases
            ]
            means = (statistics.mean(100 * score[key][at] for score in scores) for key, at in measures.values())
            rows.append([part, str(len(cases)), name, *(f"{mean:.1f}" for mean in means)])
    table(f"LoCoMo, {WORDS} words of a sitting", ["part", "sittings", "system", *measures], rows)


def phrases(text: str, length: int = 4) -> set[tuple[str, ...]]:
    """Return the runs of ``length`` words in ``text``."""
    tokens = re.findall(r"\w+", text.lower())
    return {tuple(tokens[start : start + length]) for start in range(len(tokens) - length + 1)}


def folds(data: pathlib.Path) -> None:
    """Print the number of sittings that the last summary covers, if a conversation is folded sitting by sitting.

    A summary covers a sitting if it has four words in a row that occur in that sitting only.
    """
    rows = []
    for part in PARTS:
        for conversation in conversations(data, part):
            parts = sittings(conversation)
            spoken = [phrases(plain(turns)) for turns, _ in parts]
            counts = collections.Counter(phrase for sitting in spoken for phrase in sitting)
            summary = first = ""
            for turns, _ in parts:
                summary = summarize(chat(conversation, turns), CAP, quarter_bytes, summary)
                first = f"{first}\n{named(turns)}".encode()[: CAP * 4].decode(errors="ignore")
            last = "\n".join(named(turns) for turns, _ in parts).encode()[-CAP * 4 :].decode(errors="ignore")
            covered = [
                sum(any(counts[phrase] == 1 for phrase in sitting & phrases(text)) for sitting in spoken)
                for text in (first, last, summary)
            ]
            rows.append([part, conversation["sample_id"], str(len(parts)), *map(str, covered)])
    head = ["part", "conversation", "sittings", "first words kept", "last words kept", "extractive"]
    table(f"LoCoMo, sittings covered by the last summary of {CAP} tokens", head, rows)


# Everyday facts.

SEEDS = 5
FACTS = 20
MESSAGES = 300
# What the default limit of 2 000 tokens folds at a time.
CHUNK = 1000


def real_chat(data: pathlib.Path, seed: int, *, chinese: bool) -> list[tuple[str, str]]:
    """Return recorded turns, role and text: of one conversation of LoCoMo, or of many dialogues of CrossWOZ."""
    if chinese:
        chosen = dialogues(data)
        random.Random(seed).shuffle(chosen)
        return [(message["role"], message["content"]) for dialogue in chosen for message in dialogue][:MESSAGES]
    everything = [conversation for part in PARTS for conversation in conversations(data, part)]
    conversation = everything[seed % len(everything)]
    user = conversation["conversation"]["speaker_a"]
    turns = [turn for sitting, _ in sittings(conversation) for turn in sitting if turn[1].strip()]
    return [("user" if who == user else "assistant", text) for who, text in turns[:MESSAGES]]


def chunks(turns: Sequence[tuple[str, str]]) -> Iterator[list[ChatMessage]]:
    """Yield the messages that are folded together."""
    counter = Utf8TokenCounter()
    chunk: list[ChatMessage] = []
    for role, text in turns:
        chunk.append(ChatMessage.human(text) if role == "user" else ChatMessage.ai(text))
        if sum(map(counter.count, chunk)) > CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def surviving(turns: Sequence[tuple[str, str]], facts: Sequence[everyday_facts.Fact]) -> int:
    """Return how many of ``facts`` are in the last summary after all ``turns`` are folded."""
    summary = ""
    for chunk in chunks(turns):
        summary = summarize(chunk, CAP, Utf8TokenCounter().count_text, summary)
    text = summary.lower()
    return sum(all(word.lower() in text for word in fact.words) for fact in facts)


def facts(data: pathlib.Path | None) -> None:
    """Print how many everyday facts are in the last summary, of 20 in 300 messages, five times."""
    rows = []
    for part in PARTS:
        for language, known in (("English", everyday_facts.ENGLISH), ("Chinese", everyday_facts.CHINESE)):
            chinese = language == "Chinese"
            for filler in ("recorded", "generated") if data else ("generated",):
                kept = 0
                for seed in range(SEEDS):
                    generator = random.Random(seed)
                    if data and filler == "recorded":
                        chat_turns = real_chat(data, seed, chinese=chinese)
                    else:
                        chat_turns = everyday_facts.small_talk(generator, MESSAGES, chinese=chinese)
                    kept += surviving(*everyday_facts.planted(generator, chat_turns, known[part], FACTS))
                rows.append([part, language, filler, f"{kept} of {SEEDS * FACTS}"])
    table(f"Facts kept in {CAP} tokens, of {FACTS} in {MESSAGES} messages", ["part", "language", "chat", "kept"], rows)


# CrossWOZ: names, numbers and times.

NUMBER = re.compile(r"\d+(?:[-:.]\d+)*")


def dialogues(data: pathlib.Path) -> list[list[dict[str, Any]]]:
    """Return the messages of each dialogue."""
    with gzip.open(data / "crosswoz" / "crosswoz.jsonl.gz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["messages"] for line in file]


def enumerated(dialogues: Sequence[Sequence[dict[str, Any]]]) -> set[str]:
    """Return the inner items of the assistants' lists of three or more items: "甲、乙、丙" gives 乙.

    These are the names of hotels, restaurants, sights, dishes and services. The first and last items are left out,
    because nothing separates them from the sentence around the list.
    """
    items: set[str] = set()
    for dialogue in dialogues:
        for message in dialogue:
            if message["role"] == "assistant":
                for clause in re.split(r"[，。！？；：,!?;:\s]", message["content"]):
                    items.update(clause.split("、")[1:-1])
    return {name for name in items if 2 <= len(name) <= 25 and not NUMBER.search(name)}


def entities(text: str, names: set[str]) -> set[str]:
    """Return the numbers (prices, ratings, phone numbers, times) and the names in ``text``."""
    return {f"#{number}" for number in NUMBER.findall(text)} | {name for name in names if name in text}


def retention(data: pathlib.Path) -> None:
    """Print the share of a dialogue's entities in a summary of a quarter, and of a half, of its length."""
    crosswoz = dialogues(data)
    names = enumerated(crosswoz)
    half = len(crosswoz) // 2
    rows = []
    for part, chosen in zip(PARTS, (crosswoz[:half], crosswoz[half:]), strict=True):
        for share in (0.25, 0.5):
            total = kept = lead = 0
            for dialogue in chosen:
                text = "\n".join(message["content"] for message in dialogue)
                turns = [ChatMessage.from_openai(message) for message in dialogue]
                summary = summarize(turns, int(len(text) * share), len)
                wanted = entities(text, names)
                total += len(wanted)
                kept += len(wanted & entities(summary, names))
                lead += len(wanted & entities(text[: len(summary)], names))
            rows.append([part, str(len(chosen)), f"{share:.0%}", f"{lead / total:.1%}", f"{kept / total:.1%}"])
    head = ["part", "dialogues", "of the length", "lead of equal length", "extractive"]
    table(f"CrossWOZ, names ({len(names)} known), numbers and times kept", head, rows)


# Time.


def texts(data: pathlib.Path) -> Iterator[tuple[str, list[ChatMessage]]]:
    """Yield the inputs to time: a description and the turns to fold."""
    turns = [
        (conversation, turn)
        for part in PARTS
        for conversation in conversations(data, part)
        for sitting, _ in sittings(conversation)
        for turn in sitting
    ]
    some: list[ChatMessage] = []
    total = 0
    for conversation, turn in turns:
        if total < 10_000:
            total += words(turn[1])
            some += chat(conversation, [turn])
    yield "10 000 words of English, in turns", some
    prose = " ".join(text for _, (_, text) in turns)
    yield "1 MB of English, one line", [ChatMessage.human((prose * (1 + 1_000_000 // len(prose)))[:1_000_000])]
    chinese = "".join(message["content"] for dialogue in dialogues(data) for message in dialogue)
    yield "1 MB of Chinese, one line", [ChatMessage.human((chinese * 4)[:333_333])]
    yield "1 MB without a space", [ChatMessage.human("x" * 1_000_000)]
    yield "1 MB of one sentence", [ChatMessage.human("The cat sat on the mat. " * 42_000)]
    yield '1 MB of "a:" lines', [ChatMessage.human("a: b\n" * 200_000)]
    generator = random.Random(1)
    yield "1 MB of digits", [ChatMessage.human("".join(generator.choices("0123456789", k=1_000_000)))]
    yield "1 MB of numbers", [ChatMessage.human(" ".join(str(generator.randrange(10**6)) for _ in range(145_000)))]
    vocabulary = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(5000)]
    sentences = [" ".join(generator.choices(vocabulary, k=10)).capitalize() + "." for _ in range(14_000)]
    yield "1 MB of distinct sentences, one line", [ChatMessage.human(" ".join(sentences))]
    yield "1 MB of distinct sentences, in turns", [ChatMessage.human(sentence) for sentence in sentences]


def duration(data: pathlib.Path) -> None:
    """Print the time of a fold, the best of three."""
    rows = []
    for name, turns in texts(data):
        durations = []
        for _ in range(3):
            started = time.perf_counter()
            summarize(turns, CAP, quarter_bytes)
            durations.append(time.perf_counter() - started)
        rows.append([name, f"{min(durations):.2f} s"])
    table("Time for a fold", ["turns", "time"], rows)


def asked_for(data: pathlib.Path) -> None:
    """Print the share of the phone numbers that were asked for that are in a summary, by its length."""
    crosswoz = dialogues(data)
    half = len(crosswoz) // 2
    rows = []
    for part, chosen in zip(PARTS, (crosswoz[:half], crosswoz[half:]), strict=True):
        for share in (0.25, 0.5):
            numbers = kept = 0
            for dialogue in chosen:
                length = sum(len(message["content"]) for message in dialogue)
                summary = summarize(
                    [ChatMessage.from_openai(message) for message in dialogue], int(length * share), len
                )
                for question, answer in itertools.pairwise(dialogue):
                    if question["role"] == "user" and "电话" in question["content"]:
                        for number in re.findall(r"\d{3,4}-\d{7,8}|\d{8,11}", answer["content"]):
                            numbers += 1
                            kept += number in summary
            rows.append([part, f"{share:.0%}", str(numbers), f"{kept / numbers:.1%}"])
    table("CrossWOZ, phone numbers that were asked for", ["part", "of the length", "numbers", "kept"], rows)


MEASURES: dict[str, Callable[[Any], None]] = {
    "rouge": rouge,
    "retention": retention,
    "asked": asked_for,
    "folds": folds,
    "facts": facts,
    "duration": duration,
}


def main() -> int:
    """Print the tables. Return the exit status: 2 if a package is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("CONVMEMORY_DATA") or ROOT.parent / "shared" / "data"
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path(default), metavar="DIR")
    parser.add_argument("--only", choices=MEASURES, action="append", metavar="MEASURE")
    arguments = parser.parse_args()
    data = arguments.data
    measures = arguments.only or list(MEASURES)
    needed = ("locomo/locomo5.json.gz", "crosswoz/crosswoz.jsonl.gz")
    if missing := [name for name in needed if not (data / name).is_file()]:
        print(
            f"There is no {missing[0]} in {data}. Set the data folder with --data or CONVMEMORY_DATA.", file=sys.stderr
        )
        facts(None)
        return 0 if measures == ["facts"] else 2
    if "rouge" in measures:
        try:
            import rouge_score  # noqa: F401
            import summa  # noqa: F401
        except ImportError as error:
            print(f"{error}. Install the packages to compare with: pip install rouge-score summa", file=sys.stderr)
            return 2
    for measure in measures:
        MEASURES[measure](data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
