"""Letters that look like Latin ones. With them, a text could imitate a label: "Аssistant" with a Cyrillic А.

The tables are small: they have the letters of Cyrillic and Greek that a reader takes for Latin ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

# A word of letters that are Latin or may look so. The dotless i of Turkish is among them.
_WORD = re.compile("[A-Za-z\u0131\u0370-\u052f]+")
_LATIN = re.compile("[A-Za-z]")

# fmt: off
_LIKE = {
    "A": "АΑ", "B": "ВΒ", "C": "С", "E": "ЕΕ", "G": "Ԍ", "H": "НΗ", "I": "ІӀΙ", "J": "Ј", "K": "КΚ", "M": "МΜ",
    "N": "Ν", "O": "ОΟ", "P": "РΡ", "Q": "Ԛ", "S": "Ѕ", "T": "ТΤ", "V": "Ѵ", "W": "Ԝ", "X": "ХΧ", "Y": "УҮΥ", "Z": "Ζ",
    "a": "аα", "c": "с", "d": "ԁ", "e": "е", "g": "ԍ", "h": "һ", "i": "іιı", "j": "јϳ", "k": "κ", "l": "ӏ",
    "o": "оο", "p": "рρ", "q": "ԛ", "s": "ѕ", "u": "υ", "v": "ѵν", "w": "ԝω", "x": "хχ", "y": "уүγ",
}
# In a word that has Latin letters too, a reader sees a Latin letter in these as well.
_LIKE_IN_LATIN = {
    "b": "вьЬβ", "c": "ς", "e": "ε", "h": "н", "k": "к", "m": "м", "n": "пηπ", "o": "σ", "r": "г", "t": "тτ", "u": "μ",
}
# fmt: on


def _table(like: Mapping[str, str]) -> dict[int, str]:
    return {ord(letter): latin for latin, letters in like.items() for letter in letters}


_FOREIGN = _table(_LIKE)
_MIXED = _FOREIGN | _table(_LIKE_IN_LATIN)


def latin(text: str, words: Collection[str]) -> str:
    """Return ``text`` with Latin letters instead of those that look like them.

    Words that have a Latin letter are changed, and words that are among ``words`` afterwards, which are case-folded.
    Other words stay as they are, because they are words of a language with this script: the Russian "вот" is no bot.
    """
    return text if text.isascii() else _WORD.sub(lambda match: _latin(match[0], words), text)


def _latin(word: str, words: Collection[str]) -> str:
    if word.isascii():
        return word
    if _LATIN.search(word):
        return word.translate(_MIXED)
    changed = word.translate(_FOREIGN)
    return changed if changed.casefold() in words else word
