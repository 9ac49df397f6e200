"""The page of a session. It takes a fixed number of statements, however long the conversation is."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from django.db.models import OuterRef, Q, Subquery
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
from django_convmemory.operations.handles import ConversationMemory

ATTEMPTS = 3
# The number of versions whose texts are shown.
VERSIONS = 1
# The number of newest versions that the chart marks.
MARKED = 1_000

PART_LABELS = {
    "system": gettext_lazy("system"),
    "pinned": gettext_lazy("pinned"),
    "summary": gettext_lazy("summary"),
    "tail": gettext_lazy("tail"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class ShownVersion:
    """A version of the summary. ``text`` marks what it changed in its parent, ``attempt`` is the call that made it."""

    summary: models.Summary
    text: SafeString
    attempt: models.Attempt | None


@dataclasses.dataclass
class SessionPage:
    """The page of ``session``.

    It shows the messages before the position ``before``, or the last messages, and the version ``version`` of the
    summary, or the newest version. ``pause`` is that of the session's alias. ``asked`` is the version that was current
    when a rebuild was requested, if one was. ``phrase`` is looked for, if there is one.
    """

    session: models.Session
    before: int | None = None
    version: int | None = None
    pause: PauseNotice | None = None
    asked: int | None = None
    phrase: str = ""

    @property
    def using(self) -> str:
        return self.session._state.db or "default"

    @property
    def memory(self) -> ConversationMemory | None:
        """The session's memory, or None if its alias is not in the settings."""
        return self.status.memory

    @cached_property
    def context(self) -> Context:
        """The context that a model is sent now."""
        return self.memory.load(self.session) if self.memory else Context()

    @cached_property
    def status(self) -> Status:
        return Status(self.session, self.pause, self.session.current_version, self.asked)

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
        return charts.stacked(
            [(name, label, sums[name]) for name, label in PART_LABELS.items() if name in sums], self.budget
        )

    @property
    def budget(self) -> int | None:
        return self.memory.options.max_context_tokens if self.memory else None

    @cached_property
    def finding(self) -> PhraseSearch | None:
        """What is found of the phrase, or None if nothing is looked for."""
        if not (self.phrase and self.memory):
            return None
        return PhraseSearch(self.memory, self.session, self.phrase, self.context)

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
    def _summaries(self) -> Any:
        return models.Summary.objects.using(self.using).filter(session=self.session)

    @property
    def _finished(self) -> Any:
        return self._summaries.filter(building=False, part_end__isnull=True).valid()

    @property
    def _attempts(self) -> Any:
        return models.Attempt.objects.using(self.using).filter(session=self.session)

    @cached_property
    def folds(self) -> list[charts.FoldMark]:
        """The versions that the chart marks, and those that its lines need."""
        drawn = {sample.version for sample in self._samples if sample.version}
        newest = Q(version__gt=self.session.current_version - MARKED)
        rows = self._finished.filter(newest | Q(version__in=drawn))
        columns = ("version", "last_position", "covered_tokens", "tokens")
        return [charts.FoldMark(*row) for row in rows.order_by("version").values_list(*columns)]

    @cached_property
    def _samples(self) -> list[charts.TokensAt]:
        """The positions that the chart draws, each with the version that was current when its message was appended."""
        positions = charts.positions(self.session.last_position)
        made = self._finished.filter(created_at__lte=OuterRef("created_at"), last_position__lt=OuterRef("position"))
        newest_first = made.order_by("-session_id", "-created_at")
        rows = models.Message.objects.using(self.using).filter(session=self.session, position__in=positions)
        samples = rows.order_by("position").annotate(summary_version=Subquery(newest_first.values("version")[:1]))
        pinned = self.session.counters.pinned
        return [
            charts.TokensAt(at, through + sum(row.tokens for row in pinned if row.position <= at), version)
            for at, through, version in samples.values_list("position", "tokens_through", "summary_version")
        ]

    @cached_property
    def chart(self) -> charts.TokenChart | None:
        return charts.token_chart(self._samples, self.folds, self.budget)

    @cached_property
    def summaries(self) -> list[models.Summary]:
        """The versions to show, newest first, and the version before them."""
        rows = self._summaries
        if self.version is not None:
            rows = rows.filter(version__lte=self.version)
        return list(rows.order_by("-version")[: VERSIONS + 1])

    @cached_property
    def versions(self) -> list[ShownVersion]:
        """The versions to show, each with what it changed."""
        summaries = self.summaries[:VERSIONS]
        texts = {summary.version: summary.text for summary in self.summaries}
        parents = {summary.parent_version for summary in summaries if summary.parent_version} - texts.keys()
        if parents:
            texts |= dict(self._summaries.filter(version__in=parents).values_list("version", "text"))
        attempts = self._attempts.filter(version__in=[summary.version for summary in summaries])
        calls = {attempt.version: attempt for attempt in attempts}
        versions = []
        for summary in summaries:
            runs = words(texts.get(summary.parent_version or 0, ""), summary.text)
            versions.append(ShownVersion(summary, marked(runs), calls.get(summary.version)))
        return versions

    @property
    def older(self) -> int | None:
        """The version that the link to earlier versions shows, or None at the first version."""
        return self.summaries[VERSIONS].version if len(self.summaries) > VERSIONS else None

    @cached_property
    def newer(self) -> int | None:
        """The version that the link to later versions shows, or None at the last version."""
        if self.version is None:
            return None
        after = self._summaries.filter(version__gt=self.version).order_by("version")
        return max(after.values_list("version", flat=True)[:VERSIONS], default=None)

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
# Sentences with a smaller share of equal words are not compared word by word: they are about different things.
_ALIKE = 0.4


class DiffWords(NamedTuple):
    """Words that are in both texts ("same"), only in the first one ("gone"), or only in the second one ("new")."""

    kind: str
    text: str


def words(before: str, after: str) -> list[DiffWords]:
    """Return the runs of words that turn ``before`` into ``after``. If they are not compared, ``after`` is one run."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    if not old or len(old) > MAX_WORDS or len(new) > MAX_WORDS or _pairs(old, new) > MAX_PAIRS:
        return [DiffWords("same", after)]
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


def _runs(kind: str, gone: list[str], new: list[str]) -> list[DiffWords]:
    if kind == "equal":
        return [DiffWords("same", "".join(new))]
    return [DiffWords(name, "".join(words)) for name, words in (("gone", gone), ("new", new)) if words]


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


def marked(runs: Sequence[DiffWords]) -> SafeString:
    """Return the runs as HTML. A template would take most of a page's time for a long text."""
    marks = {"same": "{}", "new": "<ins>{}</ins>", "gone": "<del>{}</del>"}
    return mark_safe("".join(format_html(marks[run.kind], run.text) for run in runs))  # noqa: S308  each is escaped


def _pairs(old: list[str], new: list[str]) -> int:
    counts = collections.Counter(new)
    return sum(counts[word] for word in old)
