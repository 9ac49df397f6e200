"""Searches whose question names a day: its words are no words, its messages come first, and it may stand alone."""

from __future__ import annotations

import datetime as dt

import pytest

from django_convmemory.memory import ConversationWindowMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.rules import segments
from django_convmemory.rules.segments import Document
from django_convmemory.search import ranking, tokenizer
from django_convmemory.search.hits import Hits
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.tokens import Utf8TokenCounter

# A Wednesday.
NOW = dt.datetime(2026, 11, 25, 12, tzinfo=dt.UTC)


def memory_of(*said: tuple[str, str]) -> ConversationWindowMemory:
    """A memory whose session "s" has these texts of these days, said by the user at noon. It shows the last one."""
    memory = ConversationWindowMemory(InMemoryStore(), 1, counter=Utf8TokenCounter(), zone=dt.UTC)
    for day, text in said:
        at = dt.datetime.fromisoformat(f"{day}T12:00:00+00:00")
        memory.append("s", ChatMessage.human(text), created_at=at)
    return memory


def positions(hits: Hits) -> list[int]:
    return [hit.position for hit in hits]


@pytest.mark.parametrize(
    ("question", "shelter", "roof"),
    [
        ("What did I repair on 5 October 2024?", "The shelter is in Keplerstrasse 5.", "I repaired the roof."),
        ("¿Qué he reparado hace dos semanas?", "Hoy empieza la semana dos.", "He reparado el tejado."),
    ],
)
def test_the_words_of_a_date_are_no_words_of_the_question(question: str, shelter: str, roof: str) -> None:
    memory = memory_of(("2024-09-14", roof), ("2024-09-20", shelter), ("2024-09-25", "Hello!"))

    assert positions(memory.search(question, session="s")) == [1]
    # Nor do they count as words that the message lacks.
    assert [hit.position for hit in memory.load("s", recall=question).recalled] == [1]


def test_a_message_of_the_day_is_found_among_many_better_ones() -> None:
    question, often = "what happened at work on 3 June 2024", "It happened at work."
    once = "At work, the printer broke, and we laughed."
    said_on = dt.date(2024, 6, 3).toordinal() - dt.date(1970, 1, 1).toordinal()
    texts = [once if day == 0 else often if day % 5 == 0 else "Hello!" for day in range(-1000, 1000)]
    documents = [Document(tokenizer.tokenize(text), True, 24 * day) for day, text in enumerate(texts, said_on - 1000)]

    found = ranking.rank([segments.extended(None, 1, documents)], tokenizer.query(question, NOW), limit=8)

    assert found[0].position == 1001


def test_the_day_comes_before_the_days_beside_it_and_these_before_others() -> None:
    days = ("2024-06-01", "2024-06-02", "2024-06-03", "2024-06-04", "2024-06-05")
    memory = memory_of(*((day, "The printer broke.") for day in days))

    assert positions(memory.search("Did the printer break on 3 June 2024?", session="s")) == [3, 4, 2, 5, 1]
    assert positions(memory.search("Ist der printer am 3.6.2024 kaputt?", session="s")) == [3, 4, 2, 5, 1]


@pytest.mark.parametrize(
    "question",
    ["What did we do on 3 May 2024?", "2024-05-03", "am Freitag, den 3. Mai 2024", "¿Qué fue el 03/05/2024?"],
)
def test_a_date_alone_finds_the_messages_of_the_day_the_newest_first(question: str) -> None:
    said = [("2024-05-02", "Three cats."), *[("2024-05-03", f"Dog {number} barks.") for number in range(4)]]
    memory = memory_of(*said, ("2024-05-04", "On 3 May we met."), ("2024-06-01", "Hello!"))

    assert positions(memory.search(question, session="s")) == [5, 4, 3, 2]
    assert positions(memory.search(question, session="s", limit=2, offset=1)) == [4, 3]
    assert [hit.position for hit in memory.load("s", recall=question).recalled] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("question", "day"),
    [
        ("yesterday", dt.date(2026, 11, 24)),
        ("hace dos semanas", dt.date(2026, 11, 11)),
    ],
)
@pytest.mark.parametrize("hours", [-8, 0, 8])
def test_a_time_before_the_question_stands_alone_too(question: str, day: dt.date, hours: int) -> None:
    zone = dt.timezone(dt.timedelta(hours=hours))
    said_at = [
        dt.datetime(2026, 10, 20, 12, tzinfo=zone),
        dt.datetime.combine(day, dt.time(0), zone),
        dt.datetime.combine(day, dt.time(23), zone),
        dt.datetime(2026, 11, 25, 9, tzinfo=zone),
    ]
    documents = [Document(["cat"], begins_sitting=True, hour=int(at.timestamp()) // 3600) for at in said_at]

    query = tokenizer.query(question, NOW.replace(tzinfo=zone))
    found = ranking.rank([segments.extended(None, 1, documents)], query, limit=10)

    assert [match.position for match in found] == [3, 2]


def test_a_date_on_which_nothing_was_said_finds_nothing() -> None:
    memory = memory_of(("2024-05-02", "Three cats."), ("2024-05-04", "A dog."))

    assert memory.search("2024-05-03", session="s") == []
