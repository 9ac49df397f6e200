"""Finds the messages that answer a query best.

The score of a message is its own BM25, and twice that of its window: the message and those around it. Both are divided
by their maximum. Only the best messages by their own BM25, and the messages in the windows of these, are compared.

How messages are divided into segments changes nothing: the same numbers are added in the same order.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from django_convmemory.rules import segments
from django_convmemory.rules.segments import Segment
from django_convmemory.search import postings
from django_convmemory.search.postings import Part, Searched
from django_convmemory.search.queries import Query

# The rarest words of a query that count.
MAX_WORDS = 32
# The best messages, whose windows are compared.
CANDIDATES = 100
WINDOW_WEIGHT = 2.0
# The parameters of BM25: how soon more of the same word counts less, and how much less long messages count.
K1 = 0.9
B = 0.4


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
    searched = postings.read(sessions, query, after=after, before=before)
    weights, weight = _weights(searched)
    if not weights:
        return []
    average = searched.terms / searched.messages
    own = _own_scores(searched.parts, weights, average)
    windows = Windows(searched.parts, _best(searched.parts, own), own)
    counts = windows.counts(weights)
    around = _window_scores(windows, weights, counts, average)
    most_own = max(windows.own)
    most_around = max([around[lane] for lane in windows.compared])
    losses = [-windows.own[lane] / most_own - WINDOW_WEIGHT * around[lane] / most_around for lane in windows.compared]
    sessions_of = [windows.sessions[lane] for lane in windows.compared]
    ages = [-windows.positions[lane] for lane in windows.compared]
    found = heapq.nsmallest(limit, zip(losses, sessions_of, ages, windows.compared, strict=True))
    return [Match(session, -age, -loss, _held(weights, counts, lane) / weight) for loss, session, age, lane in found]


def _weights(searched: Searched) -> tuple[dict[int, float], float]:
    """Return the weights of the words that count, by their indexes, and the weight of the query.

    A word weighs its inverse document frequency, as often as the query has it. Words that no message has add to the
    weight of the query. They show that it is about something else.
    """
    words = range(len(searched.having))
    present = sorted((word for word in words if searched.having[word]), key=searched.having.__getitem__)[:MAX_WORDS]
    absent = [word for word in words if not searched.having[word]][: MAX_WORDS - len(present)]
    weights = {word: _weight(searched, word) for word in present}
    return weights, sum(weights.values()) + sum(_weight(searched, word) for word in absent)


def _weight(searched: Searched, word: int) -> float:
    having = searched.having[word]
    return searched.repeated[word] * math.log(1 + (searched.messages - having + 0.5) / (having + 0.5))


def _held(weights: Mapping[int, float], counts: Mapping[int, bytes], lane: int) -> float:
    """Return the weight of the words that the window of ``lane`` has."""
    return sum([weight for word, weight in weights.items() if counts[word][lane]])


def _norm(length: float) -> float:
    """Return how much a text of ``length``, 1 on average, weakens its words in BM25."""
    return K1 * (1 - B + B * length)


def _own_scores(parts: Sequence[Part], weights: Mapping[int, float], average: float) -> dict[int, list[float]]:
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


def _best(parts: Sequence[Part], own: Mapping[int, Sequence[float]]) -> list[tuple[int, int]]:
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
    windows: Windows, weights: Mapping[int, float], counts: Mapping[int, bytes], average: float
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


# Counts words in the windows of messages. A window is a message and the two on each side of it, within the sitting.


# A window has so many messages on each side.
NEIGHBOURS = 2
LANES = 2 * NEIGHBOURS + 1
# A window's sum of these fits into a byte. More of a word in one message makes hardly a difference.
_MOST_COUNTED = 255 // LANES


class Windows:
    """The windows of the candidates and of the messages around them.

    ``sessions``, ``positions`` and ``own``, the scores of the messages alone, have an item for each lane. ``lengths``
    are those of the windows. ``compared`` are those of the candidates and of the messages with words in
    their windows.
    """

    def __init__(
        self, parts: Sequence[Part], candidates: Sequence[tuple[int, int]], own: Mapping[int, Sequence[float]]
    ) -> None:
        """``candidates`` are parts and offsets. ``own`` has the scores of the messages of each part with a word."""
        self._parts = parts
        self._starts = [part.base + part.start for part in parts]
        self._scores = own
        # The lanes of the messages of a part, by offset. No message has lane 0.
        self._lanes: dict[int, list[int]] = {}
        self.sessions: list[int] = []
        self.positions: list[int] = []
        self.own: list[float] = []
        self._lengths: list[int] = []
        # 255 for lanes that have a message.
        self._used = bytearray()
        self._separate()
        for first, last in self._runs(sorted([parts[part].base + offset for part, offset in candidates])):
            self._lay_out(first, last)
            self._separate()
        through = list(itertools.accumulate(self._lengths, initial=0))
        sums = [last - first for first, last in zip(through, through[LANES:], strict=False)]
        self.lengths = [*([0] * NEIGHBOURS), *sums, *([0] * NEIGHBOURS)]
        near = bytearray(len(self.own))
        for part, offset in candidates:
            lane = self._lanes[part][offset]
            near[lane - NEIGHBOURS : lane + NEIGHBOURS + 1] = b"\xff" * LANES
        self._mask = int.from_bytes(near, "little") & int.from_bytes(self._used, "little")
        mask = self._mask.to_bytes(len(near), "little")
        # A message without words is not found, although its neighbours are: it is pinned, redacted or reasoning.
        self.compared = [lane for lane in itertools.compress(range(len(mask)), mask) if self._lengths[lane]]

    def _runs(self, candidates: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Return the ranges of numbers that need lanes, each within a sitting."""
        begins = [part.base + offset for part in self._parts for offset in part.sittings]
        begins.append(self._parts[-1].base + self._parts[-1].end)
        first = last = -1
        for number in candidates:
            following = bisect.bisect_right(begins, number)
            # The window of a neighbour goes further than that of the candidate.
            low = max(number - 2 * NEIGHBOURS, begins[following - 1])
            if low > last + 1 or begins[following - 1] > last:
                if last >= 0:
                    yield first, last
                first = low
            last = min(number + 2 * NEIGHBOURS, begins[following] - 1)
        yield first, last

    def _separate(self) -> None:
        self.sessions += [0] * NEIGHBOURS
        self.positions += [0] * NEIGHBOURS
        self.own += [0.0] * NEIGHBOURS
        self._lengths += [0] * NEIGHBOURS
        self._used += b"\0" * NEIGHBOURS

    def _lay_out(self, first: int, last: int) -> None:
        """Give lanes to the messages with the numbers from ``first`` to ``last``."""
        index = bisect.bisect_right(self._starts, first) - 1
        while first <= last:
            part = self._parts[index]
            low, high = first - part.base, min(last - part.base + 1, part.end)
            lanes = self._lanes.setdefault(index, [0] * segments.MAX_MESSAGES)
            lanes[low:high] = range(len(self.own), len(self.own) + high - low)
            self.sessions += [part.session] * (high - low)
            self.positions += range(part.first + low, part.first + high)
            self.own += self._scores[index][low:high] if index in self._scores else [0.0] * (high - low)
            self._lengths += [segments.LENGTHS[length] for length in part.lengths[low:high]]
            self._used += b"\xff" * (high - low)
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
