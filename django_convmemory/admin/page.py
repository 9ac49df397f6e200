"""What the page of a session shows: gathered with a fixed number of statements, however long the conversation is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from django.db.models import OuterRef, Subquery
from django.utils.functional import cached_property
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_convmemory import models
from django_convmemory.admin import charts, differences, timeline
from django_convmemory.conversation import ConversationMemory
from django_convmemory.core.context import Context
from django_convmemory.maintenance import explain
from django_convmemory.memory import memories

ATTEMPTS = 3
# Versions whose texts are shown at once, and the newest ones, which are known whatever the chart shows.
VERSIONS, RECENT = 1, 12

PART_NAMES = {
    "system": gettext_lazy("system"),
    "pinned": gettext_lazy("pinned"),
    "summary": gettext_lazy("summary"),
    "tail": gettext_lazy("tail"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """A version of the summary beside the one that it was made from."""

    summary: models.Summary
    text: SafeString
    attempt: models.Attempt | None


@dataclasses.dataclass
class SessionPage:
    """The page of ``session``, with the messages before the position ``before``, or the last ones.

    Of the summaries, the version ``version`` and what came before it, or the newest.
    """

    session: models.Session
    before: int | None = None
    version: int | None = None

    @property
    def using(self) -> str:
        return self.session._state.db or "default"

    @property
    def same_messages(self) -> str:
        """What an address ends with that shows other versions beside the same messages."""
        return "" if self.before is None else f"&before={self.before}"

    @property
    def same_versions(self) -> str:
        """What an address ends with that shows other messages beside the same versions."""
        return "" if self.version is None else f"&version={self.version}"

    @cached_property
    def memory(self) -> ConversationMemory | None:
        """The session's memory, or None where its alias is gone from the settings."""
        alias = self.session.alias
        return memories[alias] if alias in memories else None  # noqa: SIM401 it has no get

    @cached_property
    def context(self) -> Context:
        """What a model is sent now."""
        return self.memory.load(self.session) if self.memory else Context()

    @cached_property
    def limit(self) -> int | None:
        """The tokens of the tail above which the session is due; None where it is not told in tokens."""
        return self.memory.strategy.threshold.tokens if self.memory else None

    @property
    def tail_tokens(self) -> int:
        return self.session.unpinned_tokens - self.session.covered_tokens

    @cached_property
    def parts(self) -> list[charts.Piece]:
        """The context's tokens, by what they are there for."""
        sums: dict[str, int] = {}
        for part in self.context.parts:
            sums[part.name] = sums.get(part.name, 0) + part.tokens
        return charts.stacked(
            [(name, label, sums[name]) for name, label in PART_NAMES.items() if name in sums], self.budget
        )

    @property
    def budget(self) -> int | None:
        return self.memory.max_context_tokens if self.memory else None

    @cached_property
    def timeline(self) -> list[timeline.Bubble]:
        found = timeline.rows(self.session, self.before, self.using)
        if not found:
            return []
        recent = [fold for fold in self.folds if fold.version > self.session.current_version - RECENT]
        spans = charts.line(recent, self.session.current_version)
        if self.session.current_version > RECENT and recent and found[0].position <= recent[-1].last_position:
            # There are more versions, and these messages may be theirs.
            spans = explain.versions(self.session, found[0].position, found[-1].position, self.using)
        dispositions = explain.explained([(row.position, row.role, row.tokens) for row in found], self.context, spans)
        return [
            timeline.bubble(row, disposition, self.same_messages)
            for row, disposition in zip(found, dispositions, strict=True)
        ]

    @property
    def earlier(self) -> int | None:
        """Before which position the page of earlier messages ends; None on the first."""
        return self.timeline[0].position if self.timeline and self.timeline[0].position > 1 else None

    @property
    def later(self) -> int | None:
        """Before which position the page of later messages ends; None on the last."""
        last = self.timeline[-1].position if self.timeline else self.session.last_position
        return last + 1 + timeline.MESSAGES if last < self.session.last_position else None

    @property
    def _finished(self) -> Any:
        return self._summaries.filter(building=False).valid()

    @cached_property
    def folds(self) -> list[charts.Fold]:
        """The newest versions, and of the older ones those that were shown where the chart looks; newest first."""
        rows = self._finished
        if self.session.current_version > RECENT:
            newest = self.session.current_version
            shown = {sample.shown for sample in self._samples if sample.shown}
            rows = rows.filter(version__in=shown.union(range(newest - RECENT + 1, newest + 1)))
        columns = ("version", "parent_version", "last_position", "covered_tokens", "tokens")
        return [charts.Fold(*row) for row in rows.order_by("-version").values_list(*columns)]

    @cached_property
    def _samples(self) -> list[charts.Sample]:
        """The conversation where the chart looks."""
        wanted = charts.positions(self.session.last_position)
        made = self._finished.filter(created_at__lte=OuterRef("created_at"), last_position__lt=OuterRef("position"))
        rows = models.Message.objects.using(self.using).filter(session=self.session, position__in=wanted)
        found = rows.order_by("position").annotate(
            shown=Subquery(made.order_by("-session_id", "-created_at").values("version")[:1])
        )
        return [charts.Sample(*row) for row in found.values_list("position", "tokens_through", "shown")]

    @cached_property
    def chart(self) -> charts.TokenChart | None:
        return charts.token_chart(self._samples, self.folds, self.budget)

    @cached_property
    def summaries(self) -> list[models.Summary]:
        """The versions to show, newest first, and the one before them."""
        rows = self._summaries
        if self.version is not None:
            rows = rows.filter(version__lte=self.version)
        return list(rows.order_by("-version")[: VERSIONS + 1])

    @cached_property
    def versions(self) -> list[Version]:
        """The versions to show, each with what it changed."""
        texts = {one.version: one.text for one in self.summaries}
        parents = {one.parent_version for one in self.summaries[:VERSIONS] if one.parent_version} - texts.keys()
        if parents:
            texts |= dict(self._summaries.filter(version__in=parents).values_list("version", "text"))
        made = {attempt.version: attempt for attempt in self._made([one.version for one in self.summaries])}
        return [
            Version(one, differences.marked(differences.words(before, one.text)), made.get(one.version))
            for one in self.summaries[:VERSIONS]
            for before in [texts.get(one.parent_version or 0, "")]
        ]

    @property
    def older(self) -> int | None:
        """The version with which the ones before those that are shown begin; None with the first."""
        return self.summaries[VERSIONS].version if len(self.summaries) > VERSIONS else None

    @cached_property
    def newer(self) -> int | None:
        """The version with which the ones after those that are shown begin; None with the last."""
        if self.version is None:
            return None
        after = self._summaries.filter(version__gt=self.version).order_by("version")
        return max(after.values_list("version", flat=True)[:VERSIONS], default=None)

    @property
    def _summaries(self) -> Any:
        return models.Summary.objects.using(self.using).filter(session=self.session)

    def _made(self, versions: Sequence[int]) -> Any:
        return models.Attempt.objects.using(self.using).filter(session=self.session, version__in=versions)

    @cached_property
    def attempts(self) -> list[models.Attempt]:
        """The newest calls of the model."""
        return list(
            models.Attempt.objects.using(self.using)
            .filter(session=self.session)
            .order_by("-session_id", "-pk")[:ATTEMPTS]
        )
