"""The words of a question that count, and their other forms.

The index finds "works" for "working", but not "allergic" for "allergies".
"""

from __future__ import annotations

import re

# Words that a question has, whatever it is about. They decide nothing.
_LITTLE_WORDS = """
a about after again all also am an and any anything are as ask asked at be been before but by called can could did do
does done explain find for from get give had has have he hello help her hey hi him his how i if in into is it its just
know let list many may me mean mention mentioned more much must my no not now of ok okay on one or our out please recall
remember remind repeat said say search shall she should show so some something still summarise summarize talk talked
tell than thank thanks that the their them then there these they thing things think this those to told up us was we
were what when where whether which who whom whose why will with would yes you your
什么 我的 你的 我们 你们 告诉 记得 多少 哪里 怎么 是什 请问
"""
_LITTLE = frozenset(_LITTLE_WORDS.split())
# Chinese is read in pairs of characters, which overlap.
_WORD = re.compile(r"[^\W_\u3400-\u9fff]{2,}|(?=([\u3400-\u9fff]{2}))")

# A word loses the first of these endings that it has. What is left begins all its relatives.
_ENDINGS = (
    *("ically", "ication", "ations", "ation", "ities", "ings", "ists", "ical", "ians", "ies", "ing", "ist", "ity"),
    *("ian", "ers", "ens", "ic", "ed", "er", "en", "es", "al", "y", "s", "e"),
)
_FORMS = ("", "y", "ies", "ic", "ical", "e", "es", "s", "ed", "er", "ing", "ation", "ist", "ity", "al", "en", "ian")
_SHORTEST_STEM = 4


def telling(text: str) -> list[str]:
    """Return the words of ``text`` that tell what it is about, each once."""
    words = (match[1] or match[0].casefold() for match in _WORD.finditer(text))
    return list(dict.fromkeys(word for word in words if word not in _LITTLE))


def stems(text: str) -> set[str]:
    """Return what the telling words of ``text`` have in common with their relatives."""
    return {stem if len(stem := _stem(word)) >= _SHORTEST_STEM else word for word in telling(text)}


def relatives(text: str) -> str:
    """Return the telling words of ``text`` that are long enough, each in all its forms, as the query of a search."""
    found = dict.fromkeys(_stem(word) for word in telling(text) if word.isascii() and word.isalpha())
    return " ".join(f"{stem}{form}" for stem in found if len(stem) >= _SHORTEST_STEM for form in _FORMS)


def _stem(word: str) -> str:
    ending = next((ending for ending in _ENDINGS if word.endswith(ending)), "")
    return word.removesuffix(ending)
