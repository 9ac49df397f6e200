"""What the page of a session shows: gathered with a fixed number of statements, however long the conversation is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.functional import cached_property
from django.utils.translation import gettext as _, gettext_lazy

from django_convmemory import explaining, models
from django_convmemory.admin import charts, differences
from django_convmemory.context import Context
from django_convmemory.conversation import ConversationMemory
from django_convmemory.explaining import Explained
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.stores import sql

MESSAGES = 50
ATTEMPTS = 10
# Versions whose texts are shown, and those that are marked on the chart.
VERSIONS, MARKED = 5, 200
# Characters of a text that are shown.
LONGEST = 20_000

PART_NAMES = {
    "system": gettext_lazy("system"),
    "pinned": gettext_lazy("pinned"),
    "summary": gettext_lazy("summary"),
    "tail": gettext_lazy("tail"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Bubble:
    """A message of the timeline."""

    row: models.Message
    said: Sequence[str]
    calls: Sequence[tuple[str, str, str]]
    fate: Explained
    cut: bool

    @property
    def fate_label(self) -> str:
        return str(
            {
                "pinned": _("pinned"),
                "verbatim": _("verbatim"),
                "folded": _("folded"),
                "omitted": _("omitted"),
            }[self.fate.fate.value]
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """A version of the summary beside the one that it was made from."""

    summary: models.Summary
    runs: Sequence[differences.Run]
    attempt: models.Attempt | None


@dataclasses.dataclass
class SessionPage:
    """The page of ``session``, with the messages before the position ``before``, or the last ones."""

    session: models.Session
    before: int | None = None

    @property
    def using(self) -> str:
        return self.session._state.db or "default"

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
        return charts.stacked([(name, sums[name]) for name in PART_NAMES if name in sums], self.budget)

    @property
    def budget(self) -> int | None:
        return self.memory.max_context_tokens if self.memory else None

    @cached_property
    def timeline(self) -> list[Bubble]:
        rows = models.Message.objects.using(self.using).filter(session=self.session)
        if self.before is not None:
            rows = rows.filter(position__lt=self.before)
        found = list(rows.order_by("-session_id", "-position")[:MESSAGES])[::-1]
        if not found:
            return []
        spans = charts.line(self.folds, self.session.current_version)
        if len(self.folds) == MARKED:  # There are more, and these messages may be theirs.
            spans = explaining.versions(self.session, found[0].position, found[-1].position, self.using)
        fates = explaining.explained([(row.position, row.role, row.tokens) for row in found], self.context, spans)
        return [_bubble(row, fate) for row, fate in zip(found, fates, strict=True)]

    @property
    def earlier(self) -> int | None:
        """Before which position the page of earlier messages ends; None on the first."""
        return self.timeline[0].row.position if self.timeline and self.timeline[0].row.position > 1 else None

    @property
    def later(self) -> int | None:
        """Before which position the page of later messages ends; None on the last."""
        last = self.timeline[-1].row.position if self.timeline else self.session.last_position
        return last + 1 + MESSAGES if last < self.session.last_position else None

    @cached_property
    def folds(self) -> list[charts.Fold]:
        rows = models.Summary.objects.using(self.using).filter(session=self.session, building=False).valid()
        columns = ("version", "parent_version", "last_position", "covered_tokens", "tokens", "created_at")
        return [charts.Fold(*row) for row in rows.order_by("-version").values_list(*columns)[:MARKED]]

    @cached_property
    def chart(self) -> charts.TokenChart | None:
        wanted = charts.positions(self.session.last_position)
        rows = models.Message.objects.using(self.using).filter(session=self.session, position__in=wanted)
        found = rows.order_by("position").values_list("position", "tokens_through", "created_at")
        return charts.token_chart([charts.Sample(*row) for row in found], self.folds, self.budget)

    @cached_property
    def versions(self) -> list[Version]:
        """The newest versions, each with what it changed."""
        rows = models.Summary.objects.using(self.using).filter(session=self.session)
        found = list(rows.order_by("-version")[: VERSIONS + 1])
        texts = {one.version: one.text for one in found}
        made = {attempt.version: attempt for attempt in self._made([one.version for one in found])}
        return [
            Version(one, differences.words(texts.get(one.parent_version or 0, ""), one.text), made.get(one.version))
            for one in found[:VERSIONS]
        ]

    def _made(self, versions: Sequence[int]) -> Any:
        return models.Attempt.objects.using(self.using).filter(session=self.session, version__in=versions)

    @cached_property
    def attempts(self) -> list[models.Attempt]:
        """The newest calls of the model."""
        return list(models.Attempt.objects.using(self.using).filter(session=self.session).order_by("-pk")[:ATTEMPTS])


def _bubble(row: models.Message, fate: Explained) -> Bubble:
    message = sql.message_of(row.role, row.kind, row.content, row.wire, row.metadata)
    texts = [message.content] if isinstance(message.content, str) else [_part(part) for part in message.content or ()]
    said = [text[:LONGEST] for text in texts if text]
    return Bubble(row, said, _calls(message), fate, any(len(text) > LONGEST for text in texts))


def _part(part: Mapping[str, Any]) -> str:
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if str(part.get("type")).startswith(("image", "input_image")):
        # Never loaded: an address in a conversation may be anybody's.
        return _("[an image]")
    return f"[{part.get('type')}]"


def _calls(message: ChatMessage) -> list[tuple[str, str, str]]:
    """Return the id, the name and the arguments of each tool call."""
    found = []
    for call in message.tool_calls:
        function = call.get("function") or call.get("custom") or {}
        if not isinstance(function, Mapping):
            function = {}
        arguments = function.get("arguments", function.get("input", ""))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        found.append((str(call["id"]), str(function.get("name", "")), text[:LONGEST]))
    return found
