"""Reads from segments which messages have the words of a query, and how often.

Every message that is searched has a *number*. The numbers go on from one segment to the next, and from one session to
the next.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_convmemory.rules import segments
from django_convmemory.rules.segments import Segment
from django_convmemory.search import languages
from django_convmemory.search.queries import Query

# The terms of a longer query are compared with those of each segment. Those of a shorter one are looked up.
_MANY_TERMS = 128
# Turns places into offsets, and characters of lengths into indexes of segments.LENGTHS.
_OFFSETS = bytes(max(segments.PLACES.find(chr(code)), 0) for code in range(256))

# The index of a word of the query, the offsets of the messages that have it, and the offsets of the repetitions.
Posting = tuple[int, bytes, bytes]
# A term, the text that is before its places in a segment, its checksum, and the index of the word.
_Term = tuple[str, str, int, int]


class SegmentPart(NamedTuple):
    """What is searched of one segment: the offsets from ``start`` to before ``end``.

    The message at an offset has the number ``base + offset`` and the position ``first + offset``.
    """

    session: int
    first: int
    base: int
    start: int
    end: int
    # Indexes of segments.LENGTHS, one for each message of the segment.
    lengths: bytes
    # The offsets of the messages that begin a sitting. The first message that is searched of a session always does.
    sittings: bytes
    postings: Sequence[Posting]


class Searched(NamedTuple):
    """What is searched: the parts, the number of their messages, and that of the terms of these.

    ``repeated`` has for each word of the query how often the query has it, and ``having`` how many messages have it.
    """

    parts: Sequence[SegmentPart]
    messages: int
    terms: int
    repeated: Sequence[int]
    having: Sequence[int]


def read(sessions: Sequence[Sequence[Segment]], query: Query, *, after: int | None, before: int | None) -> Searched:
    """Read the words of ``query`` from the messages at positions between ``after`` and ``before``."""
    lookup = _Lookup(query)
    parts: list[SegmentPart] = []
    having = [0] * len(lookup.repeated)
    messages = terms = 0
    for number, session in enumerate(sessions):
        began = False
        for segment in session:
            count = segment.last - segment.first + 1
            start = 0 if after is None else max(0, after + 1 - segment.first)
            end = count if before is None else min(count, before - segment.first)
            if start >= end:
                continue
            head, *buckets = segment.data.split(segments.BUCKET)
            total, lengths, sittings = _head(head)
            postings = lookup.postings(segment.data, buckets)
            if end - start < count:
                total = sum(segments.LENGTHS[length] for length in lengths[start:end])
                sittings = _within(sittings, start, end)
                postings = _postings_within(postings, start, end)
            if not began:
                sittings = bytes([start]) + sittings.lstrip(bytes([start]))
                began = True
            for word, of_word, _ in postings:
                having[word] += len(of_word)
            parts.append(SegmentPart(number, segment.first, messages - start, start, end, lengths, sittings, postings))
            messages += end - start
            terms += total
    return Searched(parts, messages, terms, lookup.repeated, having)


def _head(head: str) -> tuple[int, bytes, bytes]:
    total, lengths, sittings = head.split("\t")
    return int(total), _offsets(lengths), _offsets(sittings)


def _offsets(places: str) -> bytes:
    return places.encode("latin-1").translate(_OFFSETS)


def _within(offsets: bytes, start: int, end: int) -> bytes:
    """Return the offsets from ``start`` to before ``end``."""
    return bytes(offset for offset in offsets if start <= offset < end)


def _postings_within(postings: Iterable[Posting], start: int, end: int) -> list[Posting]:
    limited = [
        (word, _within(offsets, start, end), _within(repetitions, start, end))
        for word, offsets, repetitions in postings
    ]
    return [posting for posting in limited if posting[1]]


class _Lookup:
    """Looks up the words of a query in one segment after the other."""

    def __init__(self, query: Query) -> None:
        # Sorted, because a set has another order in each process.
        self._characters = list(enumerate(sorted(query.characters), len(query.terms)))
        self.repeated = [*query.terms.values(), *(1 for _ in self._characters)]
        # Two words can have a term in common.
        self._terms: list[_Term] = [
            (term, f"\n{term}\t", segments.checksum(term), word)
            for word, forms in enumerate(query.terms)
            for term in forms
        ]
        self._by_term: dict[str, list[_Term]] = {}
        for term in self._terms:
            self._by_term.setdefault(term[0], []).append(term)
        self._untagged = [term for term in self._terms if languages.TAG_END not in term[0]]

    def postings(self, data: str, buckets: Sequence[str]) -> list[Posting]:
        """Return the postings of the words that the text of a segment has."""
        postings: list[Posting] = []
        # There are 1, 2, 4, 8, … buckets.
        mask = len(buckets) - 1
        for _, key, checksum, word in self._to_find(data, buckets):
            bucket = buckets[checksum & mask]
            at = bucket.find(key)
            if at >= 0:
                at += len(key)
                _add(postings, word, bucket[at : bucket.find("\n", at)])
        for word, character in self._characters:
            at = data.find(character)
            while at >= 0:
                at = data.index("\t", at) + 1
                _add(postings, word, data[at : data.index("\n", at)])
                at = data.find(character, at)
        return postings

    def _to_find(self, data: str, buckets: Sequence[str]) -> Iterable[_Term]:
        """Return the terms that the segment can have, those of a word one after the other."""
        if len(self._terms) > _MANY_TERMS:
            present = {line.partition("\t")[0] for bucket in buckets for line in bucket.split("\n")}
            found = [entry for term in present & self._by_term.keys() for entry in self._by_term[term]]
            return sorted(found, key=_word)
        return self._terms if languages.TAG_END in data else self._untagged


def _word(term: _Term) -> int:
    return term[3]


def _add(postings: list[Posting], word: int, places: str) -> None:
    having, space, again = places.partition(segments.REPEATED)
    added = _offsets(having), _offsets(again) if space else b""
    if postings and postings[-1][0] == word:
        # The segment has the word in two forms. A message can have both of them for one word.
        _, *others = postings.pop()
        if not added[1] and not others[1]:
            postings.append((word, bytes(sorted({*added[0], *others[0]})), b""))
            return
        counts = collections.Counter(b"".join(added)) | collections.Counter(b"".join(others))
        added = bytes(sorted(counts)), bytes(sorted((counts - collections.Counter(counts.keys())).elements()))
    postings.append((word, *added))
