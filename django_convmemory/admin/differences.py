"""The words that differ between two versions of a summary."""

from __future__ import annotations

import collections
import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

# Texts with more words, or with more pairs of equal words, are not compared. For each run of words that a comparison
# finds, its time grows with the number of pairs.
MAX_WORDS, MAX_PAIRS = 3000, 20_000
# A character of a script that has no blanks between words, or a word with the blanks after it, or another character.
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+\s*|\W")


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
    for operation, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if operation == "equal":
            runs.append(Run("same", "".join(new[j1:j2])))
            continue
        if i2 > i1:
            runs.append(Run("gone", "".join(old[i1:i2])))
        if j2 > j1:
            runs.append(Run("new", "".join(new[j1:j2])))
    return runs


def marked(runs: Sequence[Run]) -> SafeString:
    """Return the runs as HTML. A template would take most of a page's time for a long text."""
    marks = {"same": "{}", "new": "<ins>{}</ins>", "gone": "<del>{}</del>"}
    return mark_safe("".join(format_html(marks[run.kind], run.text) for run in runs))  # noqa: S308  each is escaped


def _pairs(old: list[str], new: list[str]) -> int:
    counts = collections.Counter(new)
    return sum(counts[word] for word in old)
