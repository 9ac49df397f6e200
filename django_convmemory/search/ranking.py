"""Finds the messages that answer a query best.

A word of the query counts in the message that has it, and less in the neighbours in the same sitting::

    score(i) = factor(i) * sum over words of weight * max over d in -2..2 of NEAR[|d|] * count / (count + norm(i + d))
    norm(j)  = K1 * (length(j) + STEADY) / (average length + STEADY)

``weight`` is the inverse document frequency of the word, as often as the query has it. ``count`` is how often the
message ``i + d`` has it. ``factor`` is higher if the query asks about the speaker, or names the day.

The best messages by their own words are the candidates, and so are the best ones of the days that the query names.
Scores are computed for these and for their neighbours. If a query is a date alone, the date is its only word, and the
messages of its days have this word.

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
from django_convmemory.rules.segments import Head, Segment
from django_convmemory.search.tokenizer import TAG_END, Query

# The rarest words of a query that count.
MAX_WORDS = 32
# The best messages by their own words.
CANDIDATES = 100
# How soon more of the same word counts less.
K1 = 1.5
# So many terms are added to each length. So it matters little how short a short message is.
STEADY = 50
# How much a word counts in the message that has it, in those beside it, and in those beside these.
NEAR = (1.0, 0.6, 0.4)
FARTHEST = len(NEAR) - 1
_STEPS = [(step, NEAR[abs(step)]) for step in range(-FARTHEST, FARTHEST + 1)]
# Of a message whose speaker the query asks about, of one from a day that it names, and of one from the day before or
# after. People tell of a day on the next one.
SPEAKER_FACTOR = 1.5
DAY_FACTOR = 4.0
NEXT_DAY_FACTOR = 2.0
# The terms of a longer query are compared with those of each segment. Those of a shorter one are looked up.
_MANY_TERMS = 128
# Turns places into offsets, and characters of lengths into indexes of segments.LENGTHS.
_OFFSETS = bytes(max(segments.PLACES.find(chr(code)), 0) for code in range(256))

# The index of a word of the query, the offsets of the messages that have it, and the offsets of the repetitions.
Posting = tuple[int, bytes, bytes]
# A term, the text that is before its places in a segment, its checksum, and the index of the word.
_Term = tuple[str, str, int, int]


class Match(NamedTuple):
    """A message that was found.

    - ``session`` is the number of its session in what was searched.
    - ``share`` is the score without the factor, divided by the weight of the whole query: from 0 to 1. It is small if
      the message has only the common words of the query, or if most of them are in its neighbours.
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
    # If the query is a date alone, lengths do not matter: the newest message of the date is the best one.
    average = math.inf if lookup.date_alone else sum(part.terms for part in parts) / messages
    norms = [K1 * (length + STEADY) / (average + STEADY) for length in segments.LENGTHS]
    own = _own_scores(parts, weights, norms)
    # The days that the query names have candidates of their own.
    dated = ((index, parts[index].gain, scores) for index, scores in own.items() if any(parts[index].gain))
    of_days = {index: list(map(operator.mul, gain, scores)) for index, gain, scores in dated}
    compared = _compared(parts, sorted({*_candidates(parts, own), *_candidates(parts, of_days)}))
    lengths = b"".join([part.lengths[part.start : part.end] for part in parts])
    # A message without words is not found, although its neighbours are: it is pinned, redacted or reasoning.
    scores = zip(_scores(compared, weights, norms), compared.numbers, strict=True)
    scored = [(score, number) for score, number in scores if score and lengths[number]]
    least = min(heapq.nlargest(limit, scored), default=(0.0, 0))[0] / (SPEAKER_FACTOR * DAY_FACTOR)
    found: list[tuple[float, int, int, float]] = []
    starts = [part.base + part.start for part in compared.parts]
    asked = [_asked(part.head, query) for part in compared.parts]
    for score, number in scored:
        if score >= least:
            index = bisect.bisect_right(starts, number) - 1
            part = compared.parts[index]
            factor = (1 + part.gain[number - part.base]) * (SPEAKER_FACTOR if number - part.base in asked[index] else 1)
            found.append((-score * factor, part.session, part.base - part.first - number, score / weight))
    return [Match(session, -age, -loss, share) for loss, session, age, share in heapq.nsmallest(limit, found)]


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
    head: Head
    # Indexes of segments.LENGTHS, one for each message of the segment.
    lengths: bytes
    # The offsets of the messages that begin a sitting. The first message that is searched of a session always does.
    sittings: bytes
    postings: Sequence[Posting]
    # How much more each message counts because of the days that the query names.
    gain: Sequence[float]


def _parts(
    sessions: Sequence[Sequence[Segment]], lookup: _Lookup, *, after: int | None, before: int | None
) -> Iterator[_Part]:
    """Read the words of a query from the messages at positions between ``after`` and ``before``."""
    total = 0
    for index, session in enumerate(sessions):
        began = False
        for segment in session:
            count = segment.last - segment.first + 1
            start = 0 if after is None else max(0, after + 1 - segment.first)
            end = count if before is None else min(count, before - segment.first)
            if start >= end:
                continue
            head, buckets = segments.divided(segment.data)
            terms, lengths = head.terms, _offsets(head.lengths)
            sittings = _offsets(head.sittings[:: segments.TIME_WIDTH])
            postings, gain = lookup.postings(segment.data, buckets), _gain(head, lookup.query)
            if lookup.date_alone:
                has = [offset for offset, of_day in enumerate(gain) if of_day == DAY_FACTOR - 1 and lengths[offset]]
                postings.append((0, bytes(has), b""))
            if end - start < count:
                terms = sum(segments.LENGTHS[length] for length in lengths[start:end])
                sittings = _within(sittings, start, end)
                postings = [
                    (word, _within(has, start, end), _within(again, start, end)) for word, has, again in postings
                ]
            if not began:
                sittings = bytes([start]) + sittings.lstrip(bytes([start]))
                began = True
            yield _Part(index, segment.first, total - start, start, end, terms, head, lengths, sittings, postings, gain)
            total += end - start


def _offsets(places: str) -> bytes:
    return places.encode("latin-1").translate(_OFFSETS)


def _within(offsets: bytes, start: int, end: int) -> bytes:
    """Return the offsets from ``start`` to before ``end``."""
    return bytes(offset for offset in offsets if start <= offset < end)


class _Lookup:
    """Looks up the words of a query in one segment after the other."""

    def __init__(self, query: Query) -> None:
        self.query = query
        # Then the date counts as the only word.
        self.date_alone = bool(query.days) and not query.terms and not query.characters
        # Sorted, because a set has another order in each process.
        self._characters = list(enumerate(sorted(query.characters), len(query.terms)))
        self.repeated = [*query.terms.values(), *(1 for _ in self._characters)] or [1] * self.date_alone
        # Two words can have a term in common.
        terms = [(term, word) for word, forms in enumerate(query.terms) for term in forms]
        self._terms: list[_Term] = [(term, f"\n{term}\t", segments.checksum(term), word) for term, word in terms]
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
            # Not in the names of speakers, which are among the terms once more.
            at = data.find(character, data.find(segments.BUCKET))
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


def _asked(head: Head, query: Query) -> bytes:
    """Return the offsets of the messages of whom the query asks about."""
    return _offsets("".join([places for speaker, places in head.by_speaker() if speaker in query.speakers]))


def _gain(head: Head, query: Query) -> list[float]:
    """Return by how much each message counts more because of the days that the query names."""
    if not query.days:
        return [0.0] * len(head.lengths)
    gain: list[float] = []
    for (first, hour), (end, _) in itertools.pairwise([*head.times(), (len(head.lengths), 0)]):
        day = (hour + query.ahead) // 24
        near = NEXT_DAY_FACTOR if query.days & {day - 1, day + 1} else 1.0
        gain += [(DAY_FACTOR if day in query.days else near) - 1] * (end - first)
    return gain


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


def _own_scores(parts: Sequence[_Part], weights: Mapping[int, float], norms: Sequence[float]) -> dict[int, list[float]]:
    """Return the scores of the messages alone, without factors, of each part that has a word that counts.

    Most messages have a word once. Then what the words weigh is added up, and the sum is divided once.
    """
    divisor_of = [1 + norm for norm in norms]
    scores: dict[int, list[float]] = {}
    for number, part in enumerate(parts):
        sums = [0.0] * len(part.lengths)
        for word, offsets, repetitions in part.postings:
            weight = weights.get(word)
            if weight is None:
                continue
            for offset in offsets:
                sums[offset] += weight
            if repetitions:
                for offset in dict.fromkeys(repetitions):
                    count = 1 + repetitions.count(offset)
                    divisor = divisor_of[part.lengths[offset]]
                    sums[offset] += weight * (count * divisor / (count - 1 + divisor) - 1)
        if any(sums):
            scores[number] = list(map(operator.truediv, sums, map(divisor_of.__getitem__, part.lengths)))
    return scores


def _candidates(parts: Sequence[_Part], own: Mapping[int, Sequence[float]]) -> list[int]:
    """Return the numbers of the best messages by their ``own`` scores, in order."""
    highest = {index: max(scores) for index, scores in own.items()}
    # At least as many messages as there are candidates have the score `least`.
    least = _last_of_best(highest.values())
    high = [index for index in own if highest[index] >= least]
    least = _last_of_best(itertools.chain.from_iterable(own[index] for index in high))
    found: list[tuple[float, int, int, int]] = []
    for index in high:
        part = parts[index]
        found += [
            (-score, part.session, -offset - part.first, part.base + offset)
            for offset, score in enumerate(own[index])
            if score >= least and score
        ]
    return sorted(number for *_, number in heapq.nsmallest(CANDIDATES, found))


def _last_of_best(scores: Iterable[float]) -> float:
    """Return the score of the last candidate, or 0.0 if there are fewer scores."""
    best = heapq.nlargest(CANDIDATES, scores)
    return best[-1] if len(best) == CANDIDATES else 0.0


class _Compared(NamedTuple):
    """The candidates and their neighbours, whose scores are computed: ``numbers``, in order.

    ``lanes`` has a number for each of them, and for the messages whose words count in them. Between two sittings lanes
    are left out, so that no word counts in another sitting. The ``parts`` have all these messages.
    """

    numbers: list[int]
    lanes: dict[int, int]
    parts: list[_Part]


def _compared(parts: Sequence[_Part], candidates: Iterable[int]) -> _Compared:
    begins = [part.base + offset for part in parts for offset in part.sittings]
    begins.append(parts[-1].base + parts[-1].end)
    starts = [part.base + part.start for part in parts]
    numbers: list[int] = []
    lanes: dict[int, int] = {}
    indexes: set[int] = set()
    for candidate in candidates:
        sitting = bisect.bisect_right(begins, candidate)
        first, last = begins[sitting - 1], begins[sitting] - 1
        beside = max(first, candidate - FARTHEST, numbers[-1] + 1 if numbers else 0)
        numbers += range(beside, min(last, candidate + FARTHEST) + 1)
        near, end = max(first, candidate - 2 * FARTHEST), min(last, candidate + 2 * FARTHEST) + 1
        shift = FARTHEST * sitting
        lanes.update(zip(range(near, end), range(near + shift, end + shift), strict=True))
        indexes.update(range(bisect.bisect_right(starts, near) - 1, bisect.bisect_left(starts, end)))
    return _Compared(numbers, lanes, [parts[index] for index in sorted(indexes)])


def _scores(compared: _Compared, weights: Mapping[int, float], norms: Sequence[float]) -> list[float]:
    """Return the scores without factors of the messages that are compared."""
    numbers, lanes, parts = compared
    postings: dict[int, list[tuple[int, bytes, bytes, bytes]]] = {}
    for part in parts:
        for word, offsets, repetitions in part.postings:
            postings.setdefault(word, []).append((part.base, part.lengths, offsets, repetitions))
    scored = [lanes[number] for number in numbers]
    scores = [0.0] * len(numbers)
    for word, weight in weights.items():
        best = [0.0] * (max(lanes.values()) + FARTHEST + 1)
        for base, lengths, offsets, repetitions in postings.get(word, ()):
            for offset in offsets:
                lane = lanes.get(base + offset)
                if lane is not None:
                    count = 1 + repetitions.count(offset) if repetitions else 1
                    value = weight * count / (count + norms[lengths[offset]])
                    for step, near in _STEPS:
                        if near * value > best[lane + step]:
                            best[lane + step] = near * value
        scores = list(map(operator.add, scores, map(best.__getitem__, scored)))
    return scores
