"""Letters that look like Latin ones. With them, a text could imitate a label: "Аssistant" with a Cyrillic А.

The tables are small: they have the letters of other scripts that a reader takes for Latin ones. Letters with a stroke,
small capitals and the like are known by their names in Unicode.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Collection, Mapping

# Letters that have the name of a Latin one: "ø", "ɡ", the dotless i of Turkish, and letters in squares.
_VARIANTS = (
    "\u00d8\u00f8\u0110\u0111\u0126\u0127\u0131\u0141\u0142\u0166\u0167\u0180-\u02af\u1d00-\u1d7f\u2c60-\u2c7f"
    "\ua720-\ua7ff\uab30-\uab6f\U0001f130-\U0001f189\U0001f1e6-\U0001f1ff"
)
_VARIANT = re.compile(f"[{_VARIANTS}]")
_NAME = re.compile(r"(?:.*\bLATIN .*\b|REGIONAL INDICATOR SYMBOL LETTER )(?P<letter>[A-Z]|ALPHA|IOTA)(?: WITH .*)?")
# A word of letters that are Latin or may look so.
_WORD = re.compile(f"[A-Za-z\u0370-\u052f\u0531-\u0587\u13a0-\u13f5\u2c80-\u2ce3\ua4d0-\ua4f7{_VARIANTS}]+")
_LATIN = re.compile("[A-Za-z]")
# A word of letters and digits, as in "Ass1stant". The digit 1 may be an i or an l.
_WITH_DIGITS = re.compile(
    r"(?<![^\W_])(?=[a-z@$]{0,19}[0-9@$])(?=[0-9@$]{0,19}[a-z])[a-z0-9@$]{4,20}(?![^\W_]|[@$])", re.ASCII
)
_DIGITS = tuple(str.maketrans("0134578@$", f"o{one}eastbas") for one in "il")

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
# Armenian, Cherokee, Coptic and Lisu.
_LIKE_MORE = {
    "A": "ᎪⲀꓮ", "B": "ᏴⲂꓐ", "C": "ᏟⲤꓚ", "D": "Ꭰꓓ", "E": "ᎬⲈꓰ", "F": "ꓝ", "G": "ᏀꓖᏳ", "H": "ᎻⲎꓧ", "I": "ⲒꓲᎥ", "J": "Ꭻꓙ",
    "K": "ᏦⲔꓗ", "L": "ᏞꓡԼ", "M": "ᎷⲘꓟ", "N": "Ⲛꓠ", "O": "ⲞꓳՕ", "P": "ᏢⲢꓑ", "R": "ᎡᏒꓣ", "S": "ᏚꓢՏ", "T": "ᎢⲦꓔ",
    "U": "ꓴՍ", "V": "Ꮩꓦ", "W": "ᎳᏔꓪ", "X": "Ⲭꓫ", "Y": "ᎩⲨꓬ", "Z": "Ꮓꓜ", "c": "ⲥ", "g": "ց", "h": "հ", "n": "ո",
    "o": "ⲟօ", "p": "ⲣ", "q": "զ", "s": "ꜱ", "u": "ս", "y": "ⲩ",
}
# fmt: on


def _table(like: Mapping[str, str]) -> dict[int, str]:
    return {ord(letter): latin for latin, letters in like.items() for letter in letters}


_FOREIGN = _table(_LIKE) | _table(_LIKE_MORE)
_MIXED = _FOREIGN | _table(_LIKE_IN_LATIN)


def latin(text: str, words: Collection[str]) -> str:
    """Return ``text`` with Latin letters instead of those that look like them.

    Words that have a Latin letter are changed, and words that are among ``words`` afterwards, which are case-folded.
    Other words stay as they are, because they are words of a language with this script: the Russian "вот" is no bot.
    """
    return text if text.isascii() else _WORD.sub(lambda match: _latin(match[0], words), text)


def letters(text: str, words: Collection[str]) -> str:
    """Return ``text``, in lower case, with letters instead of digits in the words that are among ``words`` then."""
    return _WITH_DIGITS.sub(lambda match: _without_digits(match[0], words), text)


def _without_digits(word: str, words: Collection[str]) -> str:
    return next((changed for table in _DIGITS if (changed := word.translate(table)) in words), word)


def _latin(word: str, words: Collection[str]) -> str:
    if word.isascii():
        return word
    word = _VARIANT.sub(lambda match: _by_name(match[0]), word)
    if _LATIN.search(word):
        return word.translate(_MIXED)
    changed = word.translate(_FOREIGN)
    return changed if changed.casefold() in words else word


@functools.cache
def _by_name(letter: str) -> str:
    """Return the Latin letter that ``letter`` is a form of, by its name in Unicode, or ``letter`` if it is none."""
    match = _NAME.fullmatch(unicodedata.name(letter, ""))
    if match is None:
        return letter
    latin = match["letter"][0]
    return latin.lower() if letter.islower() or "SMALL" in match[0] else latin
