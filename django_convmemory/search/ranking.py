"""Finds the messages that answer a query best.

The score of a message is its own BM25, and twice that of its window: the message and those around it. Both are divided
by their maximum. Only the best messages by their own BM25, and the messages in the windows of these, are compared.

Every message that is searched has a *number*. The numbers go on from one segment to the next, and from one session to
the next. How messages are divided into segments changes nothing: the same numbers are added in the same order.
"""

from __future__ import annotations

import bisect
import collections
import heapq
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from django_convmemory.rules import segments
from django_convmemory.rules.segments import Segment
from django_convmemory.search.tokenizer import TAG_END, Query

# The rarest words of a query that count.
MAX_WORDS = 32
# The best messages, whose windows are compared.
CANDIDATES = 100
# A window has so many messages on each side of its own, within the sitting.
NEIGHBOURS = 2
LANES = 2 * NEIGHBOURS + 1
WINDOW_WEIGHT = 2.0
# The parameters of BM25: how soon more of the same word counts less, and how much less long messages count.
K1 = 0.9
B = 0.4
# The terms of a longer query are compared with those of each segment. Those of a shorter one are looked up.
_MANY_TERMS = 128
# A window's sum of these fits into a byte. More of a word in one message makes hardly a difference.
_MOST_COUNTED = 255 // LANES
# Turns places into offsets, and characters of lengths into indexes of segments.LENGTHS.
_OFFSETS = bytes(max(segments.PLACES.find(chr(code)), 0) for code in range(256))

# The index of a word of the query, the offsets of the messages that have it, and the offsets of the repetitions.
Posting = tuple[int, bytes, bytes]
# A term, the text that is before its places in a segment, its checksum, and the index of the word.
_Term = tuple[str, str, int, int]


class Match(NamedTuple):
    """A message that was found.

    - ``session`` is the number of its session in what was searched.
    - ``share`` is how much of the query's weight the window of the message has, from 0 to 1. The rarer a word is, the
      more it weighs.
    """

    session: int
    position: int
    score: float
    share: float


def rank(
    sessions: Sequence[Sequence[Segment]],
    query: Query,
    *,
    limit: int,
    after: int | None = None,
    before: int | None = None,
) -> list[Match]:
    """Return the best matches for ``query``, the best first. Of equal ones, the newest is first.

    The newest session comes first in ``sessions``. Only messages at positions between ``after`` and ``before``, without
    these two, are searched.
    """
    lookup = _Lookup(query)
    parts = list(_parts(sessions, lookup, after=after, before=before))
    messages = parts[-1].base + parts[-1].end if parts else 0
    weights, weight = _weights(parts, messages, lookup.repeated)
    if not weights:
        return []
    average = sum(part.terms for part in parts) / messages
    own = _own_scores(parts, weights, average)
    windows = _Windows(parts, _best(parts, own), own)
    counts = windows.counts(weights)
    around = _window_scores(windows, weights, counts, average)
    most_own = max(windows.own)
    most_around = max([around[lane] for lane in windows.compared])
    scored = [
        (
            -windows.own[lane] / most_own - WINDOW_WEIGHT * around[lane] / most_around,
            windows.sessions[lane],
            -windows.positions[lane],
            lane,
        )
        for lane in windows.compared
    ]
    return [
        Match(session, -age, -loss, _held(weights, counts, lane) / weight)
        for loss, session, age, lane in heapq.nsmallest(limit, scored)
    ]


# Looking up the words of a query in segments.


class _Part(NamedTuple):
    """What is searched of one segment: the offsets from ``start`` to before ``end``.

    The message at an offset has the number ``base + offset`` and the position ``first + offset``.
    """

    session: int
    first: int
    base: int
    start: int
    end: int
    # The number of the terms of the messages.
    terms: int
    # Indexes of segments.LENGTHS, one for each message of the segment.
    lengths: bytes
    # The offsets of the messages that begin a sitting. The first message that is searched of a session always does.
    sittings: bytes
    postings: Sequence[Posting]


def _parts(
    sessions: Sequence[Sequence[Segment]], lookup: _Lookup, *, after: int | None, before: int | None
) -> Iterator[_Part]:
    """Read the words of a query from the messages at positions between ``after`` and ``before``."""
    messages = 0
    for number, session in enumerate(sessions):
        began = False
        for segment in session:
            count = segment.last - segment.first + 1
            start = 0 if after is None else max(0, after + 1 - segment.first)
            end = count if before is None else min(count, before - segment.first)
            if start >= end:
                continue
            head, *buckets = segment.data.split(segments.BUCKET)
            terms, lengths, sittings = _head(head)
            postings = lookup.postings(segment.data, buckets)
            if end - start < count:
                terms = sum(segments.LENGTHS[length] for length in lengths[start:end])
                sittings = _within(sittings, start, end)
                postings = [
                    (word, _within(has, start, end), _within(again, start, end)) for word, has, again in postings
                ]
            if not began:
                sittings = bytes([start]) + sittings.lstrip(bytes([start]))
                began = True
            yield _Part(number, segment.first, messages - start, start, end, terms, lengths, sittings, postings)
            messages += end - start


def _head(head: str) -> tuple[int, bytes, bytes]:
    total, lengths, sittings = head.split("\t")
    return int(total), _offsets(lengths), _offsets(sittings)


def _offsets(places: str) -> bytes:
    return places.encode("latin-1").translate(_OFFSETS)


def _within(offsets: bytes, start: int, end: int) -> bytes:
    """Return the offsets from ``start`` to before ``end``."""
    return bytes(offset for offset in offsets if start <= offset < end)


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
        self._untagged = [term for term in self._terms if TAG_END not in term[0]]

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
            return sorted(found, key=operator.itemgetter(3))
        return self._terms if TAG_END in data else self._untagged


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


# Scores.


def _weights(parts: Sequence[_Part], messages: int, repeated: Sequence[int]) -> tuple[dict[int, float], float]:
    """Return the weights of the words that count, by their indexes, and the weight of the query.

    A word weighs its inverse document frequency, as often as the query has it: ``repeated``. Words that no message has
    add to the weight of the query. They show that it is about something else.
    """
    having = [0] * len(repeated)
    for part in parts:
        for word, offsets, _ in part.postings:
            having[word] += len(offsets)

    def weight(word: int) -> float:
        return repeated[word] * math.log(1 + (messages - having[word] + 0.5) / (having[word] + 0.5))

    words = sorted(range(len(having)), key=having.__getitem__)
    weights = {word: weight(word) for word in [word for word in words if having[word]][:MAX_WORDS]}
    absent = [word for word in words if not having[word]][: MAX_WORDS - len(weights)]
    return weights, sum(weights.values()) + sum(map(weight, absent))


def _held(weights: Mapping[int, float], counts: Mapping[int, bytes], lane: int) -> float:
    """Return the weight of the words that the window of ``lane`` has."""
    return sum([weight for word, weight in weights.items() if counts[word][lane]])


def _norm(length: float) -> float:
    """Return how much a text of ``length``, 1 on average, weakens its words in BM25."""
    return K1 * (1 - B + B * length)


def _own_scores(parts: Sequence[_Part], weights: Mapping[int, float], average: float) -> dict[int, list[float]]:
    """Return the BM25 of the messages of each part that has a word that counts.

    Most messages have a word once. Then BM25 adds up what the words weigh, and divides the sum once.
    """
    # As _norm() says. It is not called for each length, because there are more of them than messages that match.
    divisor_of = [1 + K1 * (1 - B + B * (length / average)) for length in segments.LENGTHS]
    gains = {word: weight * (K1 + 1) for word, weight in weights.items()}
    scores: dict[int, list[float]] = {}
    for number, part in enumerate(parts):
        sums = [0.0] * len(part.lengths)
        for word, offsets, repetitions in part.postings:
            gain = gains.get(word)
            if gain is None:
                continue
            for offset in offsets:
                sums[offset] += gain
            if repetitions:
                for offset in dict.fromkeys(repetitions):
                    count = 1 + repetitions.count(offset)
                    divisor = divisor_of[part.lengths[offset]]
                    sums[offset] += gain * (count * divisor / (count - 1 + divisor) - 1)
        if any(sums):
            scores[number] = list(map(operator.truediv, sums, map(divisor_of.__getitem__, part.lengths)))
    return scores


def _best(parts: Sequence[_Part], own: Mapping[int, Sequence[float]]) -> list[tuple[int, int]]:
    """Return the part and the offset of the candidates."""
    highest = {number: max(scores) for number, scores in own.items()}
    # At least as many messages as there are candidates have the score `least`.
    least = _last_of_best(highest.values())
    high = [number for number in own if highest[number] >= least]
    least = _last_of_best(itertools.chain.from_iterable(own[number] for number in high))
    found: list[tuple[float, int, int, int, int]] = []
    for number in high:
        session, first = parts[number][:2]
        found += [
            (-score, session, -first - offset, number, offset)
            for offset, score in enumerate(own[number])
            if score >= least and score
        ]
    return [(number, offset) for *_, number, offset in sorted(found)[:CANDIDATES]]


def _last_of_best(scores: Iterable[float]) -> float:
    """Return the score of the last candidate, or 0.0 if there are fewer scores."""
    best = heapq.nlargest(CANDIDATES, scores)
    return best[-1] if len(best) == CANDIDATES else 0.0


def _window_scores(
    windows: _Windows, weights: Mapping[int, float], counts: Mapping[int, bytes], average: float
) -> list[float]:
    """Return the BM25 of the window of each lane, 0.0 for those that are not compared."""
    # As _norm() says. It is not called for each window, because there are hundreds.
    least, slope = _norm(0), (_norm(1) - _norm(0)) / (LANES * average)
    norms = [least + slope * length for length in windows.lengths]
    lanes = range(len(norms))
    # The sums of what words weigh that a window has once are divided at the end.
    once = [0.0] * len(norms)
    more = [0.0] * len(norms)
    for word, weight in weights.items():
        gain = weight * (K1 + 1)
        of_word = counts[word]
        for lane, count in zip(itertools.compress(lanes, of_word), filter(None, of_word), strict=True):
            if count == 1:
                once[lane] += gain
            else:
                more[lane] += gain * count / (count + norms[lane])
    return [score + total / (1 + norm) for score, total, norm in zip(more, once, norms, strict=True)]


# Windows.


class _Windows:
    """The windows of the candidates and of the messages around them.

    ``sessions``, ``positions`` and ``own``, the scores of the messages alone, have an item for each lane. ``lengths``
    are those of the windows. ``compared`` are the lanes of the candidates and of their neighbours.
    """

    def __init__(
        self, parts: Sequence[_Part], candidates: Sequence[tuple[int, int]], own: Mapping[int, Sequence[float]]
    ) -> None:
        """``candidates`` are parts and offsets. ``own`` has the scores of the messages of each part with a word."""
        self._parts = parts
        self._starts = [part.base + part.start for part in parts]
        # The lanes of the messages of a part, by offset. No message has lane 0.
        self._lanes: dict[int, list[int]] = {}
        self.sessions: list[int] = []
        self.positions: list[int] = []
        self.own: list[float] = []
        self._lengths: list[int] = []
        self._separate()
        for first, last in self._runs(sorted(parts[part].base + offset for part, offset in candidates)):
            self._lay_out(first, last, own)
            self._separate()
        through = list(itertools.accumulate(self._lengths, initial=0))
        sums = [last - first for first, last in zip(through, through[LANES:], strict=False)]
        self.lengths = [*([0] * NEIGHBOURS), *sums, *([0] * NEIGHBOURS)]
        near = bytearray(len(self.own))
        for part, offset in candidates:
            lane = self._lanes[part][offset]
            near[lane - NEIGHBOURS : lane + NEIGHBOURS + 1] = b"\xff" * LANES
        self._mask = int.from_bytes(near, "little")
        # A message without words is not found, although its neighbours are: it is pinned, redacted or reasoning.
        self.compared = [lane for lane in itertools.compress(range(len(near)), near) if self._lengths[lane]]

    def _runs(self, candidates: Sequence[int]) -> list[tuple[int, int]]:
        """Return the ranges of numbers that need lanes, each within a sitting."""
        begins = [part.base + offset for part in self._parts for offset in part.sittings]
        begins.append(self._parts[-1].base + self._parts[-1].end)
        runs: list[tuple[int, int]] = []
        for number in candidates:
            following = bisect.bisect_right(begins, number)
            # The window of a neighbour goes further than that of the candidate.
            first = max(number - 2 * NEIGHBOURS, begins[following - 1])
            last = min(number + 2 * NEIGHBOURS, begins[following] - 1)
            if runs and first <= runs[-1][1] + 1 and begins[following - 1] <= runs[-1][1]:
                first, _ = runs.pop()
            runs.append((first, last))
        return runs

    def _separate(self) -> None:
        """Add lanes without a message, so that no window has messages of two sittings."""
        self.sessions += [0] * NEIGHBOURS
        self.positions += [0] * NEIGHBOURS
        self.own += [0.0] * NEIGHBOURS
        self._lengths += [0] * NEIGHBOURS

    def _lay_out(self, first: int, last: int, own: Mapping[int, Sequence[float]]) -> None:
        """Give lanes to the messages with the numbers from ``first`` to ``last``."""
        index = bisect.bisect_right(self._starts, first) - 1
        while first <= last:
            part = self._parts[index]
            low, high = first - part.base, min(last - part.base + 1, part.end)
            lanes = self._lanes.setdefault(index, [0] * segments.MAX_MESSAGES)
            lanes[low:high] = range(len(self.own), len(self.own) + high - low)
            self.sessions += [part.session] * (high - low)
            self.positions += range(part.first + low, part.first + high)
            self.own += own[index][low:high] if index in own else [0.0] * (high - low)
            self._lengths += [segments.LENGTHS[length] for length in part.lengths[low:high]]
            first = part.base + high
            index += 1

    def counts(self, words: Iterable[int]) -> dict[int, bytes]:
        """Return how often each window that is compared has the ``words``, by their indexes."""
        counts = {word: bytearray(len(self.own)) for word in words}
        for index, lanes in self._lanes.items():
            for word, offsets, repetitions in self._parts[index].postings:
                if word not in counts:
                    continue
                of_word = counts[word]
                for offset in offsets:
                    of_word[lanes[offset]] = 1
                for offset in repetitions:
                    of_word[lanes[offset]] = min(of_word[lanes[offset]] + 1, _MOST_COUNTED)
        return {word: self._window_sums(of_word) for word, of_word in counts.items()}

    def _window_sums(self, counts: bytearray) -> bytes:
        # Lane 0 has what is in no lane.
        counts[0] = 0
        # One long number with a byte for each lane. Moved by a lane in each direction and added up, it has the sums.
        number = int.from_bytes(counts, "little")
        total = number
        for bits in range(8, 8 * NEIGHBOURS + 1, 8):
            total += (number << bits) + (number >> bits)
        return (total & self._mask).to_bytes(len(counts), "little")
