"""What a search returns: messages, each with the passage that shows why it was found."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from django_convmemory.rules.values import SessionName, StoredMessage
from django_convmemory.search import tokenizer
from django_convmemory.search.tokenizer import Query

# Ranges of an excerpt that match the query, in order. No two of them touch.
Marks = tuple[tuple[int, int], ...]

ELLIPSIS = "…"
# A passage gives up to so many characters at each end to begin and end with a whole word.
_NEARBY = 30
_ZERO_WIDTH_JOINER = "\u200d"
_SKIN_TONES = frozenset(map(chr, range(0x1F3FB, 0x1F400)))
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))


class Piece(NamedTuple):
    """A piece of an excerpt. ``marked``: it is words of the query."""

    text: str
    marked: bool


class Hit(NamedTuple):
    """A stored message that a search found.

    - ``session``: the name of its session. Operations of the memory take it instead of a key.
    - ``score``: how well it matches, for comparison within one search only.
    - ``excerpt``: the passage of its text that matches best. ``marks`` are the words of the query in it, each as the
      index of its first character and the index after its last one.
    - ``neighbours``: the messages before and after it, if the search was asked for them.
    - ``name``: the name of the speaker, if the message has one.
    """

    session: SessionName
    position: int
    created_at: dt.datetime
    role: str
    score: float
    excerpt: str
    marks: Marks = ()
    neighbours: tuple[StoredMessage, ...] = ()
    name: str | None = None

    @property
    def pieces(self) -> list[Piece]:
        """The excerpt in pieces, so that a page can show which words match. Together they are the whole excerpt."""
        ends = [0, *itertools.chain.from_iterable(self.marks), len(self.excerpt)]
        ranges = enumerate(itertools.pairwise(ends))
        # Every second piece is a mark.
        pieces = [Piece(self.excerpt[start:end], bool(number % 2)) for number, (start, end) in ranges]
        return [piece for piece in pieces if piece.text]


class Hits(list[Hit]):
    """The hits of a search, best first.

    ``complete`` is False if the search left messages out: sessions beyond the first 100 000 messages, or messages that
    are not indexed yet, except the newest 512. Of these, it reads none with a large image.
    """

    complete: bool = True


# Excerpts.


class _Occurrence(NamedTuple):
    """A range of the text that matches, and which word of the query it matches."""

    start: int
    end: int
    word: int


def excerpt(text: str, query: Query, *, length: int = 240) -> tuple[str, Marks]:
    """Return the passage of ``text`` that has most of the words of ``query``, with its marks. Of equal ones, the first.

    It has at most ``length`` characters, and "…" for what is left out. It is cut between words if there is a space
    nearby, and never inside a character that is made of several.
    """
    found = sorted(_occurrences(text, query))
    if len(text) <= length:
        return text, _marks(found, 0, len(text), 0)
    room = max(length - 2 * len(ELLIPSIS), 1)
    first, last = _best_range(found, room)
    spare = room - (last - first)
    start = max(0, min(first - spare // 2, len(text) - room))
    end = start + room
    if end < len(text):
        end = _cut(text, range(end, max(last, end - _NEARBY, 1) - 1, -1), _before_space)
    if start > 0:
        start = _cut(text, range(start, min(first, start + _NEARBY) + 1), _after_space)
    left = ELLIPSIS if start > 0 else ""
    right = ELLIPSIS if end < len(text) else ""
    return left + text[start:end] + right, _marks(found, start, end, len(left))


def _occurrences(text: str, query: Query) -> Iterator[_Occurrence]:
    """Return where the words of the query are. Only as much of the text is read as is indexed."""
    words = {form: number for number, forms in enumerate(query.terms) for form in forms}
    characters = dict(zip(query.characters, itertools.count(len(query.terms)), strict=False))
    for term, start, end in tokenizer.spans(text):
        if term in words:
            yield _Occurrence(start, end, words[term])
        for character, word in characters.items():
            if character in term:
                folded, starts, ends = tokenizer.folded(text[start:end], start)
                at = folded.index(character)
                yield _Occurrence(starts[at], ends[at], word)


def _best_range(found: Sequence[_Occurrence], room: int) -> tuple[int, int]:
    """Return a range of at most ``room`` characters that has most of the words."""
    counts: dict[int, int] = {}
    oldest = 0
    most, best = 0, slice(0, 0)
    for newest, (_, end, word) in enumerate(found):
        counts[word] = counts.get(word, 0) + 1
        while oldest < newest and end - found[oldest].start > room:
            left = found[oldest].word
            counts[left] -= 1
            if not counts[left]:
                del counts[left]
            oldest += 1
        if len(counts) > most:
            most, best = len(counts), slice(oldest, newest + 1)
    if not most:
        return 0, 0
    first = found[best.start].start
    return first, min(max(occurrence.end for occurrence in found[best]), first + room)


def _cut(text: str, places: range, at_space: Callable[[str, int], bool]) -> int:
    """Return the first of the ``places`` that is at a space, or else inside no word, or else inside no character."""
    kinds = (at_space, _outside_words, lambda text, index: not _joined(text, index))
    return next((place for kind in kinds for place in places if kind(text, place)), places[0])


def _after_space(text: str, index: int) -> bool:
    return text[index - 1].isspace() and not text[index].isspace()


def _before_space(text: str, index: int) -> bool:
    return text[index].isspace() and not text[index - 1].isspace()


def _outside_words(text: str, index: int) -> bool:
    """Whether no word of a script with spaces goes on at ``index``."""
    if _joined(text, index):
        return False
    before, character = text[index - 1], text[index]
    goes_on = character.isalnum() and (before.isalnum() or tokenizer.continues(before))
    return not goes_on or tokenizer.is_unspaced(before) or tokenizer.is_unspaced(character)


def _joined(text: str, index: int) -> bool:
    """Whether the character at ``index`` is one with the character before it, as people see it."""
    before, character = text[index - 1], text[index]
    if character.isascii():
        return before == "\r" and character == "\n"
    if before == _ZERO_WIDTH_JOINER or character in _SKIN_TONES or tokenizer.continues(character):
        return True
    # Two letters make a flag. Of a row of flags, every other place is inside one.
    nearby = text[max(0, index - _NEARBY) : index]
    letters = len(nearby) - len(nearby.rstrip(_FLAG_LETTERS))
    return character in _FLAG_LETTERS and letters % 2 == 1


def _marks(found: Sequence[_Occurrence], first: int, last: int, shift: int) -> Marks:
    """Return the occurrences from ``first`` to ``last`` as ranges of the excerpt, which has them ``shift`` later."""
    marks: list[tuple[int, int]] = []
    for start, end, _ in found:
        start, end = max(start, first) - first + shift, min(end, last) - first + shift
        if start >= end:
            continue
        if marks and start <= marks[-1][1]:
            marks[-1] = marks[-1][0], max(end, marks[-1][1])
        else:
            marks.append((start, end))
    return tuple(marks)
