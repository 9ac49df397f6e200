"""The page of a session. It takes a fixed number of statements, however long the conversation is."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from django.db.models import F, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext_lazy

from django_convmemory import models
from django_convmemory.admin import charts, timeline
from django_convmemory.admin.finding import PhraseSearch
from django_convmemory.admin.waiting import PauseNotice, Status
from django_convmemory.context.assembly import Context, Part
from django_convmemory.maintenance import explain

ATTEMPTS = 3

PART_LABELS = {
    "system": gettext_lazy("system"),
    "pinned": gettext_lazy("pinned"),
    "summary": gettext_lazy("summary"),
    "tail": gettext_lazy("tail"),
    "recalled": gettext_lazy("recalled"),
}


class ShownVersion(NamedTuple):
    """A version of the summary. ``text`` marks what it changed in its parent, ``attempt`` is the call that made it."""

    summary: models.Summary
    text: SafeString
    attempt: models.Attempt | None


@dataclasses.dataclass
class SessionPage:
    """The page of ``session``.

    It shows the messages before the position ``before``, or the last messages, and the version ``version`` of the
    summary, or the newest version. ``pause`` is that of the session's alias. ``phrase`` is looked for, if there
    is one.
    """

    session: models.Session
    before: int | None = None
    version: int | None = None
    pause: PauseNotice | None = None
    phrase: str = ""

    @property
    def using(self) -> str:
        return self.session._state.db or "default"

    @cached_property
    def context(self) -> Context:
        """The context that a model is sent now."""
        return self.status.memory.load(self.session) if self.status.memory else Context()

    @cached_property
    def status(self) -> Status:
        return Status(self.session, self.pause)

    @property
    def labelled_parts(self) -> list[tuple[Part, Any]]:
        """The messages of the context, each with the label of its part."""
        return [(part, PART_LABELS[part.name]) for part in self.context.parts]

    @cached_property
    def parts(self) -> list[charts.BarPart]:
        """The bar of the context's tokens."""
        sums: dict[str, int] = {}
        for part in self.context.parts:
            sums[part.name] = sums.get(part.name, 0) + part.tokens
        parts = [(name, label, sums[name]) for name, label in PART_LABELS.items() if name in sums]
        return charts.stacked(parts, self.budget)

    @property
    def budget(self) -> int | None:
        return self.status.memory.options.max_context_tokens if self.status.memory else None

    @cached_property
    def finding(self) -> PhraseSearch | None:
        """What is found of the phrase, or None if nothing is looked for."""
        if not (self.phrase and self.status.memory):
            return None
        return PhraseSearch(self.status.memory, self.session, self.phrase, self.context)

    @cached_property
    def timeline(self) -> list[timeline.Bubble]:
        rows = timeline.rows(self.session, self.before, self.using)
        if not rows:
            return []
        ends = explain.versions(self.session, rows[0].position, rows[-1].position, self.using)
        explained = explain.explained([(row.position, row.role, row.tokens) for row in rows], self.context, ends)
        return [timeline.bubble(row, disposition) for row, disposition in zip(rows, explained, strict=True)]

    @property
    def earlier(self) -> int | None:
        """``before`` of the page of earlier messages, or None on the first page."""
        first = self.timeline[0].row.position if self.timeline else 1
        return first if first > 1 else None

    @property
    def later(self) -> int | None:
        """``before`` of the page of later messages, or None on the last page."""
        last = self.timeline[-1].row.position if self.timeline else self.session.last_position
        return last + 1 + timeline.MESSAGES if last < self.session.last_position else None

    @property
    def _attempts(self) -> Any:
        return models.Attempt.objects.using(self.using).filter(session=self.session)

    @cached_property
    def chart(self) -> charts.TokenChart | None:
        """The chart. At each position, a model was sent the summary of that time and the messages after it.

        Whether it really was, nobody recorded: it is known from times, and messages of another system have their own.
        """
        summaries = self.session.convmemory_summaries.using(self.using)
        finished = summaries.filter(building=False, part_end__isnull=True).valid()
        made = finished.filter(created_at__lte=OuterRef("created_at"), last_position__lt=OuterRef("position"))
        newest_first = made.order_by("-session_id", "-created_at")
        saved = newest_first.annotate(saved=F("covered_tokens") - F("tokens")).values("saved")[:1]
        messages = self.session.convmemory_messages.using(self.using)
        messages = messages.filter(position__in=charts.positions(self.session.last_position)).order_by("position")
        messages = messages.annotate(saved=Coalesce(Subquery(saved), 0))
        rows = []
        for position, through, saved_tokens in messages.values_list("position", "tokens_through", "saved"):
            history = through + sum(row.tokens for row in self.session.counters.pinned if row.position <= position)
            sent = history - saved_tokens
            rows.append((position, history, sent if self.budget is None else min(sent, self.budget)))
        return charts.token_chart(rows, self.budget)

    @cached_property
    def _versions(self) -> list[models.Summary]:
        """The version to show, and the one before it, as far as they are there."""
        parents = models.Summary.objects.filter(session=OuterRef("session"), version=OuterRef("parent_version"))
        summaries = self.session.convmemory_summaries.using(self.using)
        rows = summaries.annotate(parent_text=Subquery(parents.values("text")[:1]))
        if self.version is not None:
            rows = rows.filter(version__lte=self.version)
        return list(rows.order_by("-version")[:2])

    @cached_property
    def shown_version(self) -> ShownVersion | None:
        """The version to show, with what it changed in its parent."""
        if not self._versions:
            return None
        summary: Any = self._versions[0]
        calls = self._attempts.filter(version=summary.version).order_by("-session_id", "-pk")
        return ShownVersion(summary, marked(words(summary.parent_text or "", summary.text)), calls.first())

    @property
    def older(self) -> int | None:
        """The version before the one that is shown, or None at the first version."""
        return self._versions[1].version if len(self._versions) > 1 else None

    @cached_property
    def newer(self) -> int | None:
        """The version after the one that is shown, or None at the last version."""
        if self.version is None:
            return None
        after = self.session.convmemory_summaries.using(self.using).filter(version__gt=self.version)
        return after.order_by("version").values_list("version", flat=True).first()

    @cached_property
    def attempts(self) -> list[models.Attempt]:
        """The latest model calls."""
        return list(self._attempts.order_by("-session_id", "-pk")[:ATTEMPTS])


# The words that differ between two versions of a summary.


T = TypeVar("T")

# Texts with more words, or with more pairs of equal words, are not compared. For each run of words that a comparison
# finds, its time grows with the number of pairs.
MAX_WORDS, MAX_PAIRS = 3000, 20_000
# A date or another number of several parts, a character of a script that has no blanks between words, or a word, each
# with the blanks after it, or another character.
_WORDS = re.compile(r"\d+(?:[-.:/,]\d+)+\s*|[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+\s*|\W")
# A full stop within "example.org" ends nothing.
_SENTENCE = re.compile(r".*?(?:[。！？\n]|[.!?](?=\s|\Z)|\Z)\s*", re.DOTALL)
# Sentences with a smaller share of equal words are not compared word by word: they are about different things.
_ALIKE = 0.4


class DiffWords(NamedTuple):
    """Words that are in both texts ("same"), only in the first one ("gone"), or only in the second one ("new")."""

    kind: str
    text: str


def words(before: str, after: str) -> list[DiffWords]:
    """Return the runs of words that turn ``before`` into ``after``. If they are not compared, ``after`` is one run."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    counts = collections.Counter(new)
    pairs = sum(counts[word] for word in old)
    if not old or len(old) > MAX_WORDS or len(new) > MAX_WORDS or pairs > MAX_PAIRS:
        return [DiffWords("same", after)]
    runs = []
    for kind, gone, here in _compared(_sentences(before), _sentences(after)):
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


def _runs(kind: str, gone: list[str], new: list[str]) -> list[DiffWords]:
    if kind == "equal":
        return [DiffWords("same", "".join(new))]
    return [DiffWords(name, "".join(words)) for name, words in (("gone", gone), ("new", new)) if words]


def _sentences(text: str) -> list[tuple[str, ...]]:
    """Return the words of each sentence, with the blanks after it. A line is a sentence too."""
    return [tuple(_WORDS.findall(sentence)) for sentence in _SENTENCE.findall(text) if sentence]


def marked(runs: Sequence[DiffWords]) -> SafeString:
    """Return the runs as HTML. A template would take most of a page's time for a long text."""
    marks = {"same": "{}", "new": "<ins>{}</ins>", "gone": "<del>{}</del>"}
    return mark_safe("".join(format_html(marks[run.kind], run.text) for run in runs))  # noqa: S308  each is escaped
