"""The messages of a session, a page at a time. Of a long message, only the beginning is read and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Length, Substr
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _, gettext_lazy, pgettext

from django_convmemory import models
from django_convmemory.fields import ExactJSONField
from django_convmemory.maintenance.explain import Disposition, Explained
from django_convmemory.messages import called
from django_convmemory.rules import usage
from django_convmemory.store.columns import message_of
from django_convmemory.templatetags.convmemory import moment, number, tokens

# The number of messages on a page.
MESSAGES = 20
# Characters of a text that are shown, and of the rest of a message that are read.
MAX_TEXT, MAX_WIRE = 20_000, 500_000
# Characters of what a provider reported about a reply that are read.
MAX_USAGE = 20_000
# A call is shown opened if its arguments have fewer characters.
SHORT = 400
# The number of parts of a message, and of tool calls, that are shown.
MAX_PARTS = 100
CUT_OFF = {
    "length": gettext_lazy("cut off by its length"),
    "stopped": gettext_lazy("stopped"),
    "lost": gettext_lazy("cut off: the reader left, or the model broke off"),
}
# Characters of an image's address that are shown.
MAX_ADDRESS = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Bubble:
    """A message on the page. ``head`` is the HTML of the line above it.

    ``calls`` have the id, the name and the arguments of each tool call. ``cut`` says that not all of it is shown.
    """

    position: int
    role: str
    disposition: str
    head: SafeString
    redacted: bool
    texts: Sequence[str]
    calls: Sequence[tuple[str, str, str]]
    cut: bool

    @property
    def html(self) -> SafeString:
        """The message as a list item. A template takes several times as long, for most of the page."""
        return self._html(SafeString())

    @property
    def html_with_redact(self) -> SafeString:
        """:attr:`html` with a button that redacts the message."""
        if self.redacted:
            return self.html
        button = '<button type="submit" class="convmemory-link" formaction="../redact/{}/">{}</button>'
        return self._html(format_html(button, str(self.position), _("redact")))

    @property
    def body(self) -> SafeString:
        """The HTML below the head: the texts and the calls."""
        body = [format_html('<pre dir="auto">{}</pre>', text) for text in self.texts]
        if self.redacted:
            body.insert(0, format_html("<p><em>{}</em></p>", _("redacted")))
        if self.cut:
            body.append(
                format_html("<p><em>{}</em></p>", _("Only a part of this message is shown. An export has all of it."))
            )
        body += [_call_html(*call) for call in self.calls]
        return format_html_join("", "{}", zip(body, strict=True))

    def _html(self, button: SafeString) -> SafeString:
        return format_html(
            '<li id="m{}" class="{} {}"><div class="convmemory-line">{} {}</div>{}</li>',
            str(self.position),
            self.disposition,
            self.role,
            self.head,
            button,
            self.body,
        )


def _call_html(call_id: str, name: str, arguments: str) -> SafeString:
    opened = " open" if len(arguments) < SHORT else ""
    return format_html(
        '<details class="convmemory-call"{}><summary>{} <code>{}</code> <small>{}</small></summary>'
        '<pre dir="auto">{}</pre></details>',
        opened,
        pgettext("a tool", "calls"),
        name,
        call_id,
        arguments,
    )


def rows(session: models.Session, before: int | None, using: str) -> list[Any]:
    """Return the last messages, or the last messages before the position ``before``, in order.

    Besides columns, a row has ``beginning``, the first characters of the text, and ``small``, the rest of the wire
    form. If that is too long, it is not read, and ``large`` is true. ``reported`` is the provider's usage.
    """
    end = session.last_position + 1 if before is None else min(session.last_position + 1, before)
    messages = models.Message.objects.using(using).filter(
        session=session, position__gte=end - MESSAGES, position__lt=end
    )
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


def bubble(row: Any, explained: Explained, keep: str = "") -> Bubble:
    """Return how a message of :func:`rows` is shown. Its links end with ``keep``, more parameters of the page."""
    wire = None if row.large else row.small
    message = message_of(row.role, row.kind, row.beginning, wire, None)
    parts = [{"text": message.content}] if isinstance(message.content, str) else list(message.content or ())
    texts = [text for part in parts[:MAX_PARTS] if (text := _part(part))]
    calls = [(call["id"], *called(call)) for call in message.tool_calls]
    return Bubble(
        position=row.position,
        role=row.role,
        disposition=explained.disposition.value,
        head=_head(row, explained, keep),
        redacted=row.redacted_at is not None,
        texts=[text[:MAX_TEXT] for text in texts],
        calls=[(call_id, name[:SHORT], arguments[:MAX_TEXT]) for call_id, name, arguments in calls[:MAX_PARTS]],
        cut=row.large
        or any(len(text) > MAX_TEXT for text in [*texts, *(arguments for _id, _name, arguments in calls)])
        or max(len(parts), len(calls)) > MAX_PARTS,
    )


def _head(row: Any, explained: Explained, keep: str) -> SafeString:
    notes = [row.kind if row.kind != "chat" else None, row.format, CUT_OFF.get(row.cut_off or "")]
    kind = format_html_join("", " <em>{}</em>", [(note,) for note in notes if note])
    answers: str = ""
    # A reply answers a question, and a tool's result a call.
    answered = row.reply_to if row.role == "assistant" and row.reply_to else row.answers
    if answered:
        continues = row.role != "tool" and not row.reply_to
        answers = format_html(
            ' <small><a href="?before={}#m{}">{}</a></small>',
            row.position + 1,
            answered,
            (_("continues %(position)s") if continues else _("answers %(position)s")) % {"position": answered},
        )
    label: str = _label(explained)
    if explained.version is not None:
        address = f"?version={explained.version}{keep}#convmemory-summaries"
        label = format_html('<a href="{}">{}</a>', address, label)
    return format_html(
        '<span class="convmemory-position">{}</span> <strong>{}</strong>{}{} <span class="convmemory-tag {}">{}</span> '
        "<small>{}{} · {}</small>",
        str(row.position),
        row.role,
        kind,
        answers,
        explained.disposition.value,
        label,
        tokens(row.tokens),
        _usage(row),
        moment(row.created_at),
    )


def _usage(row: Any) -> str:
    """Return what the reply's prompt took, and how much of it came from the provider's cache."""
    reported = usage.read(row.reported)
    if reported is None:
        return ""
    values = {"prompt": number(reported.prompt_tokens), "cached": number(reported.cached_tokens)}
    return " · " + _("prompt of %(prompt)s tokens, %(cached)s cached") % values


def _label(explained: Explained) -> str:
    if explained.version is not None:
        return _("folded into version %(version)s") % {"version": explained.version}
    labels = {
        Disposition.PINNED: _("pinned"),
        Disposition.VERBATIM: _("verbatim"),
        Disposition.FOLDED: _("folded"),
        Disposition.OMITTED: _("omitted"),
    }
    return labels[explained.disposition]


def _part(part: Mapping[str, Any]) -> str:
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if not str(part.get("type")).startswith(("image", "input_image")):
        return f"[{part.get('type')}]"
    image = part.get("image_url")
    address = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(address, str):
        return _("[an image]")
    # An image is neither loaded nor linked: anybody may have written its address.
    return _("[an image: %(address)s]") % {"address": address[:MAX_ADDRESS]}
