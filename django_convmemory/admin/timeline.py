"""The messages of a session, a page at a time. Of a long message, only the beginning is read and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Length, Substr
from django.utils.translation import gettext as _, gettext_lazy

from django_convmemory import content_parts, models
from django_convmemory.fields import ExactJSONField
from django_convmemory.maintenance.explain import Explained
from django_convmemory.messages import called, said_elsewhere
from django_convmemory.rules import usage
from django_convmemory.store.columns import message_of

# The number of messages on a page.
MESSAGES = 12
# Characters of a text that are shown, and of the rest of a message that are read.
MAX_TEXT, MAX_WIRE = 20_000, 500_000
# Characters of what a provider reported about a reply that are read.
MAX_USAGE = 20_000
# Characters of the name of a tool that are shown.
MAX_NAME = 400
# The number of parts of a message, and of tool calls, that are shown.
MAX_PARTS = 100
CUT_OFF = {
    "length": gettext_lazy("cut off by its length"),
    "stopped": gettext_lazy("stopped"),
    "lost": gettext_lazy("cut off: the reader left, or the model broke off"),
}
# Characters of an image's address that are shown.
MAX_ADDRESS = 100


class Call(NamedTuple):
    """A tool call on the page."""

    id: str
    name: str
    arguments: str


class Bubble(NamedTuple):
    """A message on the page: a row of :func:`rows`, and what became of it.

    ``texts`` and ``calls`` are shown below its head. ``cut`` says that not all of it is shown.
    """

    row: Any
    explained: Explained
    texts: Sequence[str]
    calls: Sequence[Call]
    cut: bool

    @property
    def notes(self) -> list[Any]:
        """What the head says of the message beside its role."""
        kind = None if self.row.kind == "chat" else self.row.kind
        return [note for note in (kind, self.row.format, CUT_OFF.get(self.row.cut_off or "")) if note]

    @property
    def answers(self) -> Any:
        """The position of the question that a reply answers, or of the call that a tool's result answers."""
        return self.row.reply_to if self.row.role == "assistant" and self.row.reply_to else self.row.answers

    @property
    def continues(self) -> bool:
        """Whether the message goes on with the one that it answers."""
        return self.row.role != "tool" and not self.row.reply_to

    @property
    def usage(self) -> Any:
        """What the reply's prompt took, and how much of it came from the provider's cache, if that is known."""
        return usage.read(self.row.reported)


def rows(session: models.Session, before: int | None, using: str) -> list[Any]:
    """Return the last messages, or the last messages before the position ``before``, in order.

    Besides columns, a row has ``beginning``, the first characters of the text, and ``small``, the rest of the wire
    form. If that is too long, it is not read, and ``large`` is true. ``reported`` is the provider's usage.
    """
    end = session.last_position + 1 if before is None else min(session.last_position + 1, before)
    messages = session.convmemory_messages.using(using).filter(position__gte=end - MESSAGES, position__lt=end)
    large = Q(wire_length__gt=MAX_WIRE)
    messages = messages.alias(wire_length=Length("wire"), usage_length=Length("usage")).annotate(
        beginning=Substr("content", 1, MAX_TEXT + 1),
        small=_unless(large, "wire"),
        large=Case(When(large, then=Value(True)), default=Value(False)),
        reported=_unless(Q(usage_length__gt=MAX_USAGE), "usage"),
    )
    columns = (
        *("position", "role", "kind", "format", "tokens", "answers", "reply_to", "cut_off", "created_at"),
        *("redacted_at", "beginning", "small", "large", "reported"),
    )
    # By both columns of the key: a database that orders by the position alone may walk the whole table.
    newest_first = messages.order_by("-session_id", "-position")
    return list(newest_first.values_list(*columns, named=True)[:MESSAGES])[::-1]


def _unless(condition: Q, column: str) -> Case:
    return Case(When(condition, then=Value(None)), default=F(column), output_field=ExactJSONField())


def bubble(row: Any, explained: Explained) -> Bubble:
    """Return how a message of :func:`rows` is shown."""
    message = message_of(row.role, row.kind, row.beginning, row.small, None)
    content = message.content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    texts = [text for part in parts[:MAX_PARTS] if (text := _part(part))] + said_elsewhere(message.extra)
    calls = [Call(call["id"], *called(call)) for call in message.tool_calls]
    is_long = any(len(text) > MAX_TEXT for text in [*texts, *(call.arguments for call in calls)])
    cut = row.large or is_long or max(len(parts), len(calls)) > MAX_PARTS
    calls = [Call(call.id, call.name[:MAX_NAME], call.arguments[:MAX_TEXT]) for call in calls[:MAX_PARTS]]
    return Bubble(row, explained, [text[:MAX_TEXT] for text in texts], calls, cut)


def _part(part: Mapping[str, Any]) -> str:
    read = content_parts.read(part)
    if read.kind == "text":
        return read.text
    if read.kind != "image":
        return f"[{part['type']}]"
    # An image is neither loaded nor linked: anybody may have written its address.
    address = read.address[:MAX_ADDRESS]
    return _("[an image: %(address)s]") % {"address": address} if address else _("[an image]")
