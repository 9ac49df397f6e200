"""Other forms of English words. The index finds "works" for "working", but not "allergic" for "allergies"."""

from __future__ import annotations

import re

# A word loses the first of these endings that it has. What is left begins all its relatives.
_ENDINGS = (
    *("ically", "ication", "ations", "ation", "ities", "ings", "ists", "ical", "ians", "ies", "ing", "ist", "ity"),
    *("ian", "ers", "ens", "ic", "ed", "er", "en", "es", "al", "y", "s", "e"),
)
_FORMS = ("", "y", "ies", "ic", "ical", "e", "es", "s", "ed", "er", "ing", "ation", "ist", "ity", "al", "en", "ian")
_SHORTEST_STEM = 4
_WORD = re.compile(r"[a-z]+", re.ASCII)


def relatives(text: str) -> str:
    """Return the words of ``text`` that are long enough, each in all its forms, as the query of a search."""
    stems = (_stem(word) for word in _WORD.findall(text.lower()))
    return " ".join(f"{stem}{form}" for stem in dict.fromkeys(stems) if len(stem) >= _SHORTEST_STEM for form in _FORMS)


def _stem(word: str) -> str:
    ending = next((ending for ending in _ENDINGS if word.endswith(ending)), "")
    return word.removesuffix(ending)
