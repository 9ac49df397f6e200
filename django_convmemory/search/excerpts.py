"""The passage of a message that shows why it was found."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from django_convmemory.search import normalization, tokenizer
from django_convmemory.search.queries import Query

ELLIPSIS = "…"
# A passage gives up to so many characters at each end to begin and end with a whole word.
_NEARBY = 30
_ZERO_WIDTH_JOINER = "\u200d"
_SKIN_TONES = frozenset(map(chr, range(0x1F3FB, 0x1F400)))
_FLAG_LETTERS = frozenset(map(chr, range(0x1F1E6, 0x1F200)))


class Excerpt(NamedTuple):
    """A passage, and the ranges in it that match the query, in order. No two of them touch."""

    text: str
    marks: tuple[tuple[int, int], ...]


class _Occurrence(NamedTuple):
    """A range of the text that matches, and which word of the query it matches."""

    start: int
    end: int
    word: int


def excerpt(text: str, query: Query, *, length: int = 240) -> Excerpt:
    """Return the passage of ``text`` that has most of the words of ``query``, and of equal ones the first.

    It has at most ``length`` characters, and "…" for what is left out. It is cut between words if there is a space
    nearby, and never inside a character that is made of several.
    """
    found = sorted(_occurrences(text, query))
    if len(text) <= length:
        return Excerpt(text, _marks(found, 0, len(text), 0))
    room = max(length - 2 * len(ELLIPSIS), 1)
    first, last = _best_range(found, room)
    spare = room - (last - first)
    start = max(0, min(first - spare // 2, len(text) - room))
    end = _end(text, start + room, last)
    start = _start(text, start, first)
    left = ELLIPSIS if start > 0 else ""
    right = ELLIPSIS if end < len(text) else ""
    return Excerpt(left + text[start:end] + right, _marks(found, start, end, len(left)))


def _occurrences(text: str, query: Query) -> Iterator[_Occurrence]:
    """Return where the words of the query are. Only as much of the text is read as is indexed."""
    if query.empty:
        return
    words = {form: number for number, forms in enumerate(query.terms) for form in forms}
    characters = dict(zip(query.characters, itertools.count(len(query.terms)), strict=False))
    for term, start, end in itertools.islice(tokenizer.spans(text), tokenizer.MAX_TERMS):
        if term in words:
            yield _Occurrence(start, end, words[term])
        for character, word in characters.items():
            if character in term:
                folded, starts, ends = normalization.folded(text[start:end], start)
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


def _start(text: str, earliest: int, latest: int) -> int:
    """Return where the passage begins, from ``earliest`` to ``latest``: where a word does, if there is one nearby."""
    if earliest == 0:
        return 0
    places = range(earliest, min(latest, earliest + _NEARBY) + 1)
    return _first(places, text, _after_space, _outside_words, _outside_characters)


def _end(text: str, latest: int, earliest: int) -> int:
    """Return where the passage ends, from ``earliest`` to ``latest``: where a word does, if there is one nearby."""
    if latest >= len(text):
        return len(text)
    places = range(latest, max(earliest, latest - _NEARBY, 1) - 1, -1)
    return _first(places, text, _before_space, _outside_words, _outside_characters)


def _first(places: range, text: str, *kinds: Callable[[str, int], bool]) -> int:
    """Return the first of the ``places`` that is of the first kind, if there is one, and so on."""
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
    goes_on = character.isalnum() and (before.isalnum() or _continuing().match(before) is not None)
    return not goes_on or tokenizer.is_unspaced(before) or tokenizer.is_unspaced(character)


def _outside_characters(text: str, index: int) -> bool:
    """Whether the character at ``index`` is not one with the character before it, as people see it."""
    return not _joined(text, index)


def _joined(text: str, index: int) -> bool:
    """Whether the character at ``index`` is one with the character before it, as people see it."""
    before, character = text[index - 1], text[index]
    if character.isascii():
        return before == "\r" and character == "\n"
    if before == _ZERO_WIDTH_JOINER or character in _SKIN_TONES or _continuing().match(character):
        return True
    # Two letters make a flag. Of a row of flags, every other place is inside one.
    letters = 0
    while letters < index and text[index - 1 - letters] in _FLAG_LETTERS and letters < _NEARBY:
        letters += 1
    return character in _FLAG_LETTERS and letters % 2 == 1


@functools.cache
def _continuing() -> re.Pattern[str]:
    return re.compile(f"[{normalization.continuing()}]")


def _marks(found: Sequence[_Occurrence], first: int, last: int, shift: int) -> tuple[tuple[int, int], ...]:
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
