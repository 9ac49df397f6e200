"""What changed between two versions of a summary, word by word."""

from __future__ import annotations

import collections
import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

# Words of a text, and pairs of equal words of two; where there are more, no difference is looked for: it takes as many
# steps, for each run that is found.
MOST, MOST_PAIRS = 3000, 20_000
# Single characters of scripts that leave no blanks between words, words with the blanks after them, and other signs.
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+\s*|\W")


class Run(NamedTuple):
    """Words that are in both texts (``same``), or in one of them (``gone``, ``new``)."""

    kind: str
    text: str


def words(before: str, after: str) -> list[Run]:
    """Return how ``after`` came of ``before``."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    if not old or len(old) > MOST or len(new) > MOST or _pairs(old, new) > MOST_PAIRS:
        return [Run("same", after)]
    runs = []
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            runs.append(Run("same", "".join(new[j1:j2])))
            continue
        runs += [Run("gone", "".join(old[i1:i2]))] * (i2 > i1) + [Run("new", "".join(new[j1:j2]))] * (j2 > j1)
    return runs


def marked(runs: Sequence[Run]) -> SafeString:
    """Return the runs as HTML: of a long text, which a template would walk through for most of a page's time."""
    marks = {"same": "{}", "new": "<ins>{}</ins>", "gone": "<del>{}</del>"}
    return mark_safe("".join(format_html(marks[run.kind], run.text) for run in runs))  # noqa: S308  each is escaped


def _pairs(old: list[str], new: list[str]) -> int:
    counts = collections.Counter(new)
    return sum(counts[word] for word in old)
