"""The index of recall: its rows, the segments, and what a store reads to extend them and to search them.

A segment holds the terms of up to 128 neighbouring messages as one text.

A message is written as one character, its *place*, which stands for its number in the segment. The length of a message
is the number of its terms. It is one character as well: above 60, it is rounded down by up to 6 %.

The text begins with a line that has fields, separated by tabs: the version of this format, the sum of the lengths, the
length of each message, the hour of the first message, and the place and the hour of each message that begins a sitting.

Lines for the speakers follow. Each has terms, separated by spaces, a tab, and the places of the messages whose speaker
has all these terms.

The terms of the texts come last, in buckets. A bucket begins with "¶" and a line feed. Each line has a term, a tab, and
the places of the messages that have the term, in order. If some of them have it more than once, a space follows, and
their places once more for each repetition. The bucket of a term is chosen by its checksum, so that a search looks at a
few terms only. The number of buckets depends on that of the terms.

A segment of another version is not read. Its session counts as not indexed. A worker indexes it anew if the version is
an older one. During a deploy an old worker leaves a newer one alone.
"""

from __future__ import annotations

import bisect
import collections
import datetime as dt
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from django_convmemory.messages import ChatMessage
from django_convmemory.rules.values import SessionName

# So many characters of a text are indexed.
MAX_CHARACTERS = 50_000
# A search reads so many messages that are not indexed yet, the newest ones.
MOST_UNINDEXED = 512

MAX_MESSAGES = 128
# In UTF-8. A message that needs more has a segment of its own.
MAX_BYTES = 65_536
SITTING_ENDS_AFTER = dt.timedelta(hours=1)

# The places of the messages, in order. Each is one byte in Latin-1. ":" is not one: it is in terms with a tag only.
PLACES = "".join(map(chr, [*range(0x21, 0x3A), *range(0x3B, 0x7F), *range(0xC0, 0xE3)]))
# The length that each character stands for, in the same order.
LENGTHS = tuple(range(61)) + tuple(math.ceil(60 * 1.0545**step) for step in range(1, 68))
BUCKET = "¶"
REPEATED = " "
# Begins the terms of a speaker, and nothing else that is indexed. A name follows, or this again for the user.
SPEAKER = "="
USER = SPEAKER * 2
# Hexadecimal, until the year 2089.
_HOUR_DIGITS = 5
# Of the place and the hour of a sitting.
TIME_WIDTH = 1 + _HOUR_DIGITS
# The version that is read and written. It rises whenever the form or the terms change.
VERSION = 2
_VERSION_OF = re.compile(r"v([0-9]{1,4})\t")

_PLACE_BYTES = [len(place.encode()) for place in PLACES]
_TERMS_OF_BUCKET = 16
# All but the lines of the terms takes less.
_MOST_HEAD_BYTES = 4_096
# What would break the text, or what a database or XML refuses.
_HARMFUL = re.compile(f"[\0-\x1f{BUCKET}\ud800-\udfff]")


class Document(NamedTuple):
    """What is indexed of a message.

    - ``terms``: repeated ones included.
    - ``begins_sitting``: whether the message begins a sitting.
    - ``hour``: when it was said, in hours since 1970.
    - ``speakers``: ``SPEAKER`` with each word of the speaker's name, and ``USER`` if the user says it.
    """

    terms: Sequence[str]
    begins_sitting: bool
    hour: int = 0
    speakers: frozenset[str] = frozenset()


class Segment(NamedTuple):
    """The terms of the messages from the position ``first`` to ``last``. Messages without terms count too."""

    first: int
    last: int
    data: str

    @property
    def version(self) -> int:
        """The version of its form: 0 if the text does not say it."""
        found = _VERSION_OF.match(self.data)
        return int(found[1]) if found else 0


class Head(NamedTuple):
    """What a segment says of its messages, before the terms.

    ``lengths`` are places. ``sittings`` has a place and an hour for each one. ``speakers`` are lines.
    """

    terms: int
    lengths: str
    hour: str
    sittings: str
    speakers: str

    def by_speaker(self) -> Iterator[tuple[str, str]]:
        """Return the terms of speakers, with the places of their messages."""
        for line in self.speakers.split("\n")[:-1]:
            terms, places = line.split("\t")
            yield from ((term, places) for term in terms.split(" "))

    def times(self) -> Iterator[tuple[int, int]]:
        """Return the numbers in the segment of its first message and of those that begin a sitting, and their hours."""
        sittings = _sittings(self.sittings)
        for place, hour in {PLACES[0]: self.hour, **sittings}.items():
            yield PLACES.index(place), int(hour, 16)


def divided(data: str) -> tuple[Head, list[str]]:
    """Return the head of a segment and its buckets, each with a line feed before its lines.

    Raises ValueError if the text has another form, or another version.
    """
    first, *buckets = data.split(BUCKET)
    line, _, speakers = first.partition("\n")
    version, terms, lengths, hour, sittings = line.split("\t")
    if version != f"v{VERSION}":
        raise ValueError(f"The segment has the version {version:.20}, not v{VERSION}.")
    return Head(int(terms), lengths, hour, sittings, speakers), buckets


def begins_sitting(created_at: dt.datetime, previous_created_at: dt.datetime | None) -> bool:
    """Whether a message begins a sitting: it is the first one, or comes an hour or more after the one before it."""
    return previous_created_at is None or created_at - previous_created_at >= SITTING_ENDS_AFTER


def extended(last: Segment | None, first: int, documents: Sequence[Document]) -> list[Segment]:
    """Return the segments to write when ``documents`` follow ``last``. The first one replaces ``last`` if it had room.

    ``first`` is the position of the first document. Documents that arrive one by one give the same segments as
    documents that arrive together.
    """
    if last is not None and last.last != first - 1:
        raise ValueError(f"The segment ends at the position {last.last}, so it cannot be extended from {first}.")
    draft = _Draft(first) if last is None else _Draft.of(last)
    changed = False
    segments: list[Segment] = []
    for position, document in enumerate(documents, first):
        counts = _counts(document)
        if not draft.has_room_for(counts):
            if changed:
                segments.append(draft.segment())
            draft = _Draft(position)
        draft.add(document, counts)
        changed = True
    return [*segments, draft.segment()] if changed else []


def struck(segment: Segment, position: int) -> Segment:
    """Return ``segment`` without the terms of the message at ``position``, as if the message had been empty."""
    if not segment.first <= position <= segment.last:
        raise ValueError(f"The position {position} is not in the segment {segment.first}..{segment.last}.")
    draft = _Draft.of(segment)
    draft.remove(PLACES[position - segment.first])
    draft.lengths[position - segment.first] = PLACES[0]
    return draft.segment()


def trimmed(segment: Segment, last: int) -> Segment:
    """Return ``segment`` without the messages after the position ``last``."""
    if not segment.first <= last <= segment.last:
        raise ValueError(f"The segment {segment.first}..{segment.last} cannot end at the position {last}.")
    draft = _Draft.of(segment)
    count = last - segment.first + 1
    draft.remove(PLACES[count : len(draft.lengths)])
    draft.sittings = {place: hour for place, hour in draft.sittings.items() if place in PLACES[:count]}
    del draft.lengths[count:]
    return draft.segment()


def through(index: Sequence[Segment], last: int) -> list[Segment]:
    """Return the segments of the messages through the position ``last``."""
    kept = [segment for segment in index if segment.first <= last]
    if kept and kept[-1].last > last:
        kept[-1] = trimmed(kept[-1], last)
    return kept


def terms(segment: Segment) -> Iterator[tuple[str, int, int]]:
    """Return the terms with the positions of the messages that have them, and how often they do. For checks."""
    draft = _Draft.of(segment)
    for term in sorted(draft.places):
        for place, count in collections.Counter(draft.places[term] + draft.repeated.get(term, "")).items():
            yield term, segment.first + PLACES.index(place), count


def checksum(term: str) -> int:
    """Return the number that chooses the bucket of ``term``: its last bits are the bucket's number."""
    return zlib.crc32(term.encode())


def _sittings(packed: str) -> dict[str, str]:
    """Return the hours of sittings by their places."""
    return {packed[at]: packed[at + 1 : at + TIME_WIDTH] for at in range(0, len(packed), TIME_WIDTH)}


def _counts(document: Document) -> Mapping[str, int]:
    counts = collections.Counter(document.terms)
    counts.update(document.speakers)
    if _HARMFUL.search("".join(counts)):
        counts = collections.Counter(_HARMFUL.sub("", term) for term in counts.elements())
    del counts[""]
    return counts


class _Draft:
    """A segment in a form that can be changed."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.lengths: list[str] = []
        # The hour of the first message, and those of the messages that begin a sitting, by their places.
        self.hour = ""
        self.sittings: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.repeated: dict[str, str] = {}
        # Those of the lines.
        self.bytes = 0

    @classmethod
    def of(cls, segment: Segment) -> Self:
        draft = cls(segment.first)
        head, buckets = divided(segment.data)
        draft.lengths = list(head.lengths)
        draft.hour = head.hour
        draft.sittings = _sittings(head.sittings)
        for term, places in head.by_speaker():
            draft.places[term] = places
            draft.bytes += len(f"{term}\t{places}\n".encode())
        for bucket in buckets:
            draft.bytes += len(bucket.encode()) - 1
            for line in bucket.split("\n")[1:-1]:
                term, places = line.split("\t")
                draft.places[term], repeated, again = places.partition(REPEATED)
                if repeated:
                    draft.repeated[term] = again
        return draft

    def has_room_for(self, counts: Mapping[str, int]) -> bool:
        if not 0 < len(self.lengths) < MAX_MESSAGES:
            return not self.lengths
        return self.bytes + self._added_bytes(counts) + _MOST_HEAD_BYTES <= MAX_BYTES

    def _added_bytes(self, counts: Mapping[str, int]) -> int:
        """Return by how much the lines grow if a message with these terms is added."""
        added = sum(counts.values()) * _PLACE_BYTES[len(self.lengths)]
        for term, count in counts.items():
            if term not in self.places:
                added += len(term.encode()) + len("\t\n")
            if count > 1 and term not in self.repeated:
                added += len(REPEATED)
        return added

    def add(self, document: Document, counts: Mapping[str, int]) -> None:
        self.bytes += self._added_bytes(counts)
        place = PLACES[len(self.lengths)]
        hour = f"{min(max(document.hour, 0), 16**_HOUR_DIGITS - 1):0{_HOUR_DIGITS}x}"
        self.hour = self.hour or hour
        if document.begins_sitting:
            self.sittings[place] = hour
        self.lengths.append(PLACES[bisect.bisect_right(LENGTHS, len(document.terms)) - 1])
        for term, count in counts.items():
            self.places[term] = self.places.get(term, "") + place
            if count > 1:
                self.repeated[term] = self.repeated.get(term, "") + place * (count - 1)

    def remove(self, places: str) -> None:
        """Remove all terms at ``places``."""
        removed = dict.fromkeys(map(ord, places))
        self.places = _translated(self.places, removed)
        self.repeated = _translated(self.repeated, removed)

    def segment(self) -> Segment:
        count = 1
        while count * 2 * _TERMS_OF_BUCKET <= len(self.places):
            count *= 2
        speakers: dict[str, str] = {}
        buckets: list[list[str]] = [[] for _ in range(count)]
        for term in sorted(self.places):
            places = self.places[term]
            if term in self.repeated:
                places += REPEATED + self.repeated[term]
            if term[0] == SPEAKER:
                speakers[places] = f"{speakers[places]} {term}" if places in speakers else term
            else:
                buckets[checksum(term) % count].append(f"{term}\t{places}\n")
        total = sum(LENGTHS[PLACES.index(length)] for length in self.lengths)
        sittings = "".join(place + hour for place, hour in self.sittings.items())
        head = f"v{VERSION}\t{total}\t{''.join(self.lengths)}\t{self.hour}\t{sittings}\n"
        head += "".join(f"{terms}\t{places}\n" for places, terms in speakers.items())
        data = head + "".join(f"{BUCKET}\n{''.join(lines)}" for lines in buckets)
        return Segment(self.first, self.first + len(self.lengths) - 1, data)


def _translated(places: Mapping[str, str], table: Mapping[int, None]) -> dict[str, str]:
    """Return ``places`` without those that ``table`` removes, and without the terms that have no others."""
    return {term: left for term, old in places.items() if (left := old.translate(table))}


# What a store reads.


class Indexable(NamedTuple):
    """A stored message, as far as the index needs it. ``whole``: nothing that is indexed was left out."""

    position: int
    created_at: dt.datetime
    message: ChatMessage
    redacted: bool
    whole: bool = True


class Unindexed(NamedTuple):
    """The next messages of a session that are not indexed, and what the index is extended from.

    ``last`` is the last segment, or None if there is none. ``previous`` is the time of the message before the first of
    ``messages``, which may be read as they are taken.
    """

    epoch: int
    indexed_position: int
    last_position: int
    last: Segment | None = None
    previous: dt.datetime | None = None
    messages: Iterable[Indexable] = ()


class Extent(NamedTuple):
    """A session as a search finds it: how far its messages and its index reach."""

    session_id: int
    name: SessionName
    epoch: int
    indexed_position: int
    last_position: int

    def unindexed_after(self, before: int | None = None, limit: int = MOST_UNINDEXED) -> int:
        """Return the position after which a search reads messages that are not indexed, at most ``limit``."""
        return max(self.indexed_position, self.end(before) - limit)

    def end(self, before: int | None) -> int:
        """Return the last position that is searched."""
        return self.last_position if before is None else min(self.last_position, before - 1)


class IndexRead(NamedTuple):
    """A session's index as it is at one moment, in order, and its messages after the position ``after``, in order.

    The message at ``after`` may be among them, for its time. Only positions below ``before`` are searched. ``others``:
    it is the last one of several sessions, and others were left out.
    """

    extent: Extent
    segments: Sequence[Segment]
    messages: Sequence[Indexable]
    after: int
    before: int | None = None
    others: bool = False


def newest_sessions(extents: Sequence[Extent], *, max_messages: int, max_sessions: int) -> list[Extent]:
    """Return the first of ``extents`` that have at most ``max_messages`` together, and the first one in any case."""
    chosen: list[Extent] = []
    total = 0
    for extent in extents[:max_sessions]:
        total += extent.last_position
        if chosen and total > max_messages:
            break
        chosen.append(extent)
    return chosen


def unindexed_after(extents: Iterable[Extent]) -> dict[int, int]:
    """Return for sessions the position after which a search reads messages that are not indexed.

    They are ``MOST_UNINDEXED`` messages in all, those of the first sessions. Sessions of which none is read are left
    out.
    """
    after: dict[int, int] = {}
    left = MOST_UNINDEXED
    for extent in extents:
        position = extent.unindexed_after(limit=left)
        if position < extent.last_position:
            after[extent.session_id] = position
            left -= extent.last_position - position
    return after
