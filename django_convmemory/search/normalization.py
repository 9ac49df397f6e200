"""Folds text, so that different forms of a word are equal: NFKC, without case, without accents on Latin letters.

Text is folded character by character, each with the marks that belong to it. So it is known where in the text each
folded character comes from.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

# Latin letters that Unicode does not decompose, and what they are without their accents.
_WITHOUT_ACCENTS = {
    "æ": "ae",
    "ð": "d",
    "ø": "o",
    "þ": "th",
    "đ": "d",
    "ħ": "h",
    "ı": "i",
    "ł": "l",
    "œ": "oe",
    "ŧ": "t",
}
# What continues a character and is no mark: the other letters of a decomposed Korean syllable, and the marks of
# half-width Kana.
_JOINING = "\u1160-\u11ff\uff9e\uff9f"
# What nobody sees inside a word: soft hyphens, joiners, directions, the choice of a glyph, and the Arabic stretching.
_INVISIBLE = "\u00ad\u034f\u061c\u0640\u200b-\u200f\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
_INVISIBLE_CHARACTER = re.compile(f"[{_INVISIBLE}]")


@functools.cache
def continuing() -> str:
    """Return the inside of a character class of regular expressions: what belongs to the character before it."""
    # No marks are in other ranges.
    codes = itertools.chain(range(0x300, 0x20000), range(0xE0100, 0xE01F0))
    return _ranges(code for code in codes if _is_mark(chr(code))) + _JOINING + _INVISIBLE


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _ranges(codes: Iterable[int]) -> str:
    """Return ascending code points as the ranges of a character class."""
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


def clusters(text: str) -> Iterator[tuple[int, int]]:
    """Return the range of each character of ``text`` with what continues it."""
    return (match.span() for match in _cluster().finditer(text))


@functools.cache
def _cluster() -> re.Pattern[str]:
    return re.compile(f".[{continuing()}]*", re.DOTALL)


def folded(text: str, offset: int = 0) -> tuple[str, Sequence[int], Sequence[int]]:
    """Return ``text`` folded. Return also where each folded character begins and ends in the text, plus ``offset``."""
    if not _continuing_character().search(text):
        folded = "".join(map(_folded_cluster, text))
        if len(folded) == len(text):
            return folded, range(offset, offset + len(text)), range(offset + 1, offset + len(text) + 1)
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for first, last in clusters(text):
        piece = _folded_cluster(text[first:last])
        pieces.append(piece)
        starts += [offset + first] * len(piece)
        ends += [offset + last] * len(piece)
    return "".join(pieces), starts, ends


@functools.cache
def _continuing_character() -> re.Pattern[str]:
    return re.compile(f"[{continuing()}]")


@functools.lru_cache(maxsize=16_384)
def _folded_cluster(cluster: str) -> str:
    cluster = _INVISIBLE_CHARACTER.sub("", cluster)
    cluster = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", cluster).casefold())
    kept: list[str] = []
    latin = False
    for character in unicodedata.normalize("NFD", cluster):
        if not _is_mark(character):
            latin = character.isascii() or character in _WITHOUT_ACCENTS
            kept.append(_WITHOUT_ACCENTS.get(character, character))
        elif not latin:
            kept.append(character)
    return unicodedata.normalize("NFC", "".join(kept))
