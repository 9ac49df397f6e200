"""A conversation of 2 000 messages: somebody tells a diary every day for almost three years.

The sentences are put together from lists, always in the same way. On some days there is something to find again.
"""

from __future__ import annotations

from collections.abc import Iterator

from django_convmemory.messages import ChatMessage

DAYS = 1000
_MORNINGS = (
    "Slept badly, the neighbours moved furniture until two",
    "Up at six and ran along the river",
    "Rain all morning, so I took the tram",
    "Breakfast on the balcony for the first time this year",
    "The heating failed again",
    "Late, because the lift was stuck",
    "A quiet morning with the newspaper",
)
_WORK = (
    "the review of the bridge drawings took all day",
    "two meetings, and the second one was about the first",
    "we sent the tender to the city",
    "Petra showed me the new load tables",
    "site visit, and my boots are still wet",
    "I finished the report on the retaining wall",
    "the plotter broke, so we drew by hand",
    "nothing but e-mail",
    "the client wants the railing in green now",
    "a trainee asked questions that I could not answer",
    "we poured the last pillar",
)
_EVENINGS = (
    "Cooked lentils.",
    "Choir until nine.",
    "Called my sister.",
    "Read forty pages and fell asleep.",
    "Chess with Emil; he won.",
    "Repaired the bicycle lamp.",
    "Watched the storm from the kitchen.",
    "Planted basil.",
    "Cinema with Noor.",
    "Ironed shirts and listened to the radio.",
    "Practised the cello, the slow movement.",
    "Went to bed early.",
    "Wrote two letters.",
)
_REPLIES = (
    "Noted.",
    "Thank you, I keep it in mind.",
    "That sounds like a long day.",
    "I have written it down.",
    "A good evening, then.",
)
# What a visitor can ask for, by the day on which it was told.
TOLD = {
    3: "The spare key is with Frau Aigner on the second floor.",
    41: "The doctor says that I must not take penicillin.",
    120: "I lent Emil my copy of The Magic Mountain.",
    207: "Noor's birthday is on 19 October, and she wants a fountain pen.",
    333: "The boiler was serviced by Hofer, telephone 0316 441 190.",
    480: "I promised the choir to bring walnut cake in Advent.",
    612: "We booked the hut at Gosausee for the last week of July.",
    790: "The cello strings are Larsen, medium.",
    951: "The warranty of the bicycle ends in March.",
}


def turns() -> Iterator[list[ChatMessage]]:
    """Yield what was said on each day: an entry, and the reply to it."""
    for day in range(DAYS):
        # The lengths of the lists have no common factor, so that it takes 1 001 days until a day comes again.
        entry = f"{_of(_MORNINGS, day)}. At work {_of(_WORK, day)}. {_of(_EVENINGS, day)}"
        told = f"{entry} {TOLD[day]}" if day in TOLD else entry
        yield [ChatMessage.human(told), ChatMessage.ai(_of(_REPLIES, day))]


def _of(texts: tuple[str, ...], day: int) -> str:
    return texts[day % len(texts)]
