"""The words that differ between two versions of a summary."""

from __future__ import annotations

import collections
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

T = TypeVar("T")

# Texts with more words, or with more pairs of equal words, are not compared. For each run of words that a comparison
# finds, its time grows with the number of pairs.
MAX_WORDS, MAX_PAIRS = 3000, 20_000
# A date or another number of several parts, a character of a script that has no blanks between words, or a word, each
# with the blanks after it, or another character.
_WORDS = re.compile(r"\d+(?:[-.:/,]\d+)+\s*|[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+\s*|\W")
# Sentences with a smaller share of equal words are not compared word by word: they are about different things.
_ALIKE = 0.4


class Run(NamedTuple):
    """Words that are in both texts ("same"), only in the first one ("gone"), or only in the second one ("new")."""

    kind: str
    text: str


def words(before: str, after: str) -> list[Run]:
    """Return the runs of words that turn ``before`` into ``after``. If they are not compared, ``after`` is one run."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    if not old or len(old) > MAX_WORDS or len(new) > MAX_WORDS or _pairs(old, new) > MAX_PAIRS:
        return [Run("same", after)]
    runs = []
    for kind, gone, here in _compared(_sentences(old), _sentences(new)):
        gone_words, new_words = [word for part in gone for word in part], [word for part in here for word in part]
        if kind != "equal" and difflib.SequenceMatcher(None, gone_words, new_words, autojunk=False).ratio() >= _ALIKE:
            for kind_of_words, *parts in _compared(gone_words, new_words):
                runs += _runs(kind_of_words, *parts)
        else:
            runs += _runs(kind, gone_words, new_words)
    return runs


def _compared(old: list[T], new: list[T]) -> Iterator[tuple[str, list[T], list[T]]]:
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield kind, old[i1:i2], new[j1:j2]


def _runs(kind: str, gone: list[str], new: list[str]) -> list[Run]:
    if kind == "equal":
        return [Run("same", "".join(new))]
    return [Run(name, "".join(words)) for name, words in (("gone", gone), ("new", new)) if words]


def _sentences(words: list[str]) -> list[tuple[str, ...]]:
    """Return the words of each sentence, with the blanks after it. A line is a sentence too."""
    sentences: list[tuple[str, ...]] = []
    start, ended = 0, False
    for index, word in enumerate(words):
        if ended and not word.isspace():
            sentences.append(tuple(words[start:index]))
            start, ended = index, False
        following = words[index + 1] if index + 1 < len(words) else " "
        # A full stop within "example.org" ends nothing.
        ended = ended or word in "。！？" or "\n" in word or (word in ".!?" and following.isspace())
    return [*sentences, tuple(words[start:])]


def marked(runs: Sequence[Run]) -> SafeString:
    """Return the runs as HTML. A template would take most of a page's time for a long text."""
    marks = {"same": "{}", "new": "<ins>{}</ins>", "gone": "<del>{}</del>"}
    return mark_safe("".join(format_html(marks[run.kind], run.text) for run in runs))  # noqa: S308  each is escaped


def _pairs(old: list[str], new: list[str]) -> int:
    counts = collections.Counter(new)
    return sum(counts[word] for word in old)
