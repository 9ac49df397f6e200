"""Counts words in the windows of messages. A window is a message and the two on each side of it, within the sitting.

The candidates and the messages around them are laid out in *lanes*. Empty lanes separate those that belong to different
sittings, or are not neighbours. So the window of a message is always five lanes.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from django_convmemory.rules import segments
from django_convmemory.search.postings import Part

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
        for first, last in self._runs(sorted(parts[part].base + offset for part, offset in candidates)):
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
