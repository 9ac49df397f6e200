"""A phrase that staff looks for: whether a text has it, and the passage around it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import re

from django_convmemory.core.hits import Piece
from django_convmemory.core.recall import excerpts, languages, queries, tokenizer
from django_convmemory.core.recall.queries import Query

# Characters of a phrase that are looked for.
MAX_PHRASE = 200
# Characters of a passage.
PASSAGE = 240


class Match(enum.IntEnum):
    """How a text matches: it has the phrase, all words of it, or less."""

    LESS = 0
    WORDS = 1
    PHRASE = 2


@dataclasses.dataclass(frozen=True)
class Phrase:
    """The text of a search box. Case and the width of white space make no difference.

    It is found where a word begins, so "art" finds "artist" and not "party", and a number is found as a whole. Of its
    words, neither stop words nor endings count.
    """

    text: str

    @classmethod
    def of(cls, typed: str) -> Phrase | None:
        """Return what was typed as a phrase, or None if there is nothing to look for."""
        text = " ".join(typed.replace("\x00", "").split())[:MAX_PHRASE].strip()
        return cls(text) if text else None

    @functools.cached_property
    def query(self) -> Query:
        """The phrase as the index of recall takes it."""
        return queries.query(self.text)

    @functools.cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile(r"\s+".join(map(re.escape, self.text.split())), re.IGNORECASE)

    @functools.cached_property
    def _words(self) -> list[re.Pattern[str]]:
        words = list(tokenizer.words(self.text))
        told = tokenizer.languages_of(self.text, words)
        # A phrase of one word does not tell its language, and then the word counts, whatever it is.
        stop_words = told[0].stop_words if len(told) < len(languages.ALL) else ()
        kept = [word for word in words if word[1] not in stop_words] or words
        return [re.compile(re.escape(_stem(word, self.text, told[0])), re.IGNORECASE) for word in dict.fromkeys(kept)]

    def match(self, text: str) -> Match:
        """Return how ``text`` matches."""
        if _place(self._whole, text):
            return Match.PHRASE
        words = self._words
        return Match.WORDS if words and all(_place(word, text) for word in words) else Match.LESS

    def passage(self, text: str) -> list[Piece]:
        """Return a passage of ``text`` with the phrase, or with most of its words, in pieces."""
        place = _place(self._whole, text)
        if place is None:
            passage = excerpts.excerpt(text, self.query, length=PASSAGE)
            return _pieces(passage.text, passage.marks)
        start, end = place
        spare = max(PASSAGE - (end - start), 0) // 2
        first, last = max(0, start - spare), min(len(text), end + spare)
        before, after = excerpts.ELLIPSIS if first else "", excerpts.ELLIPSIS if last < len(text) else ""
        shift = len(before) - first
        return _pieces(before + text[first:last] + after, [(start + shift, end + shift)])


def _stem(word: tokenizer.Word, text: str, language: languages.Language) -> str:
    """Return ``word`` of ``text`` without its ending, as far as its stem is its beginning."""
    kind, folded, start, end = word
    if kind != tokenizer.WORD:
        return text[start:end]
    stem = language.form(folded).rpartition(languages.TAG_END)[2]
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text[start:end].lower(), stem, strict=False))
    return "".join(letter for letter, _ in same) or text[start:end]


def _place(pattern: re.Pattern[str], text: str) -> tuple[int, int] | None:
    """Return the first place in ``text`` that matches, begins a word, and ends no number before its last digit."""
    places = (match.span() for match in pattern.finditer(text))
    return next((span for span in places if _begins_word(text, span[0]) and not _inside_number(text, span[1])), None)


def _inside_number(text: str, at: int) -> bool:
    return text[at - 1 : at].isdigit() and text[at : at + 1].isdigit()


def _begins_word(text: str, at: int) -> bool:
    if at == 0:
        return True
    before, first = text[at - 1], text[at]
    if not (before.isalnum() and first.isalnum()) or before.isdigit() != first.isdigit():
        return True
    return tokenizer.is_unspaced(before) or tokenizer.is_unspaced(first)


def _pieces(text: str, marks: list[tuple[int, int]] | tuple[tuple[int, int], ...]) -> list[Piece]:
    pieces, at = [], 0
    for start, end in marks:
        pieces += [Piece(text[at:start], False), Piece(text[start:end], True)]
        at = end
    return [piece for piece in [*pieces, Piece(text[at:], False)] if piece.text]
