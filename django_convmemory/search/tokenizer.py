"""Divides text into the terms that are indexed.

Words are folded and stemmed. Scripts without spaces between words give every two neighbouring characters (*bigrams*).
Identifiers give their parts, and the whole without its separators: ``LC-204817`` gives ``lc``, ``204817`` and
``lc204817``.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django_convmemory.search import languages, normalization

# So many terms of a text are indexed.
MAX_TERMS = 2_000
# A longer term is cut.
MAX_LENGTH = 64
# The language of a text is told by so many words and characters from its beginning.
_TELLING_WORDS = 400
_TELLING_CHARACTERS = 4_000
# A longer run of characters without a space is divided, and so is an identifier of more parts.
_MAX_RUN = 10_000
_MAX_PARTS = 32

_SEPARATORS = r"\-_.@/+\u2010-\u2013\u2212"
# A comma before three digits is part of a number, as in 1,200.
_COMMA = r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))"
# Thai, Lao, Burmese, Khmer, Hangul, Kana, Han.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_CHARACTER = re.compile(f"[{_UNSPACED}]")
_ASCII_RUN = re.compile(f"[a-z0-9]+(?:(?:[{_SEPARATORS}]|{_COMMA})[a-z0-9]+){{0,{_MAX_PARTS}}}")
_PART = re.compile(f"[^{_SEPARATORS}]+")
# Letters and then digits, or the other way round.
_PIECES = re.compile(r"([a-z]+)([0-9,]+)|([0-9,]+)([a-z]+)")
_IN_NUMBER = frozenset("0123456789.")

# The kinds of words: stems are made of words, and nothing is made of the others.
WORD, IDENTIFIER, BIGRAM, CHARACTER = range(4)
# A kind, the folded text, and its range in the text that was given.
Word = tuple[int, str, int, int]


class Span(NamedTuple):
    """A term, and the range of the text that it stands for."""

    term: str
    start: int
    end: int


def is_unspaced(character: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    return _UNSPACED_CHARACTER.match(character) is not None


def spans(text: str) -> Iterator[Span]:
    """Return the terms of ``text`` with their ranges. A word can give several terms."""
    return itertools.starmap(Span, _terms(text))


def tokenize(text: str, limit: int = MAX_TERMS) -> list[str]:
    """Return the first ``limit`` terms of ``text``, repeated ones included."""
    if not text.isascii():
        return [term for term, _, _ in itertools.islice(_terms(text), limit)]
    # Most messages are like this. It gives what _terms() gives, in two thirds of the time.
    words: list[tuple[int, str]] = []
    for run in _ASCII_RUN.findall(text.lower()):
        if run.isalpha():
            words.append((WORD, run[:MAX_LENGTH]))
        else:
            places = range(len(run))
            words += [(kind, word) for kind, word, _, _ in _parts(run, places, places)]
    told = languages.told_by([word for _, word in words[:_TELLING_WORDS]], text[:_TELLING_CHARACTERS])
    terms: list[str] = []
    for kind, word in words:
        if kind == WORD:
            terms += [language.tag + language.stem(word) for language in told if word not in language.stop_words]
        else:
            terms.append(word)
        if len(terms) >= limit:
            return terms[:limit]
    return terms


def _terms(text: str) -> Iterator[tuple[str, int, int]]:
    stream = words(text)
    head = list(itertools.islice(stream, _TELLING_WORDS))
    told = languages_of(text, head)
    for kind, word, start, end in itertools.chain(head, stream):
        if kind != WORD:
            yield word, start, end
            continue
        for language in told:
            if word not in language.stop_words:
                yield language.form(word), start, end


def languages_of(text: str, words: Sequence[Word]) -> Sequence[languages.Language]:
    """Return the languages that a text may be in. ``words`` are its first ones."""
    telling = [word for _, word, _, _ in words[:_TELLING_WORDS]]
    return languages.told_by(telling, unicodedata.normalize("NFC", text[:_TELLING_CHARACTERS]))


def words(text: str) -> Iterator[Word]:
    """Return the folded words of ``text``, stop words included. An identifier comes after its parts."""
    return _ascii_words(text, 0) if text.isascii() else _words(text)


def _words(text: str) -> Iterator[Word]:
    for match in _unfolded_run().finditer(text):
        run = match[0]
        if run.isascii():
            yield from _ascii_words(run, match.start())
            continue
        run, starts, ends = normalization.folded(run, match.start())
        if run.isascii() and run.isalpha():
            yield WORD, run[:MAX_LENGTH], starts[0], ends[-1]
            continue
        for piece in _run().finditer(run):
            first, last = piece.span()
            divide = _bigrams if piece.lastgroup == "unspaced" else _parts
            yield from divide(piece[0], starts[first:last], ends[first:last])


def _ascii_words(text: str, offset: int) -> Iterator[Word]:
    for match in _ASCII_RUN.finditer(text.lower()):
        run = match[0]
        start, end = offset + match.start(), offset + match.end()
        if run.isalpha():
            yield WORD, run[:MAX_LENGTH], start, end
        else:
            yield from _parts(run, range(start, end), range(start + 1, end + 1))


@functools.cache
def _unfolded_run() -> re.Pattern[str]:
    """What can be one run when it is folded."""
    continuing = normalization.continuing()
    return re.compile(rf"[^\W_](?:[^\W_]|[{continuing}]|[{_SEPARATORS},](?=[^\W_])){{0,{_MAX_RUN}}}")


@functools.cache
def _run() -> re.Pattern[str]:
    """A run of a script without spaces, or words with separators between them."""
    continuing = normalization.continuing()
    letters = rf"(?:(?![{_UNSPACED}])[^\W_][{continuing}]*)+"
    parts = rf"{letters}(?:(?:[{_SEPARATORS}]|{_COMMA}){letters}){{0,{_MAX_PARTS}}}"
    return re.compile(rf"(?P<unspaced>(?:[{_UNSPACED}][{continuing}]*)+)|(?P<spaced>{parts})")


def _parts(run: str, starts: Sequence[int], ends: Sequence[int]) -> Iterator[Word]:
    """Return the words of a run, and the whole of it if it is an identifier."""
    parts = list(_PART.finditer(run))
    for part in parts:
        first, last = part.span()
        yield from _part(part[0], starts[first:last], ends[first:last])
    if len(parts) > 1 and ("@" in run or any(map(str.isdigit, run))):
        whole = run.replace(",", "")
        if not _IN_NUMBER.issuperset(whole):  # 3.5 is not 35.
            whole = "".join(_PART.findall(whole))
        yield IDENTIFIER, whole[:MAX_LENGTH], starts[0], ends[-1]


def _part(part: str, starts: Sequence[int], ends: Sequence[int]) -> Iterator[Word]:
    if part.isascii() and part.isalpha():
        yield WORD, part[:MAX_LENGTH], starts[0], ends[-1]
        return
    if pieces := _PIECES.fullmatch(part):
        for number in range(1, 5):
            if pieces[number]:
                first, last = pieces.span(number)
                yield from _part(pieces[number], starts[first:last], ends[first:last])
    yield IDENTIFIER, part.replace(",", "")[:MAX_LENGTH], starts[0], ends[-1]


def _bigrams(run: str, starts: Sequence[int], ends: Sequence[int]) -> Iterator[Word]:
    clusters = list(normalization.clusters(run))
    if len(clusters) == 1:
        yield CHARACTER, run[:MAX_LENGTH], starts[0], ends[-1]
        return
    for (first, _), (_, last) in itertools.pairwise(clusters):
        yield BIGRAM, run[first:last][:MAX_LENGTH], starts[first], ends[last - 1]
