"""The messages of a session as people read them: a page of them at a time, and of each no more than fits one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Length, Substr
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext as _, ngettext, pgettext

from django_convmemory import models
from django_convmemory.fields import ExactJSONField
from django_convmemory.maintenance.explain import Disposition, Explained
from django_convmemory.messages import ChatMessage
from django_convmemory.stores.columns import message_of

MESSAGES = 20
# Characters of a text that are shown, and of the rest of a message that are looked at.
LONGEST, LONGEST_WIRE = 20_000, 500_000
# Characters of a call's arguments that are shown without being asked for.
SHORT = 400
# Parts of a message, and its tool calls, that are shown.
MOST_PARTS = 100
# Characters of the address of an image.
LONGEST_ADDRESS = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Bubble:
    """A message of the timeline: what stands above it, as HTML, and its texts. ``cut`` where there is more of it."""

    position: int
    role: str
    disposition: str
    head: SafeString
    redacted: bool
    said: Sequence[str]
    calls: Sequence[tuple[str, str, str]]
    cut: bool

    @property
    def html(self) -> SafeString:
        """The message as an item of a list: a template takes several times as long, for most of a page."""
        return self._html(SafeString())

    @property
    def html_with_redact(self) -> SafeString:
        """The same for those who may redact it."""
        if self.redacted:
            return self.html
        button = '<button type="submit" class="convmemory-link" formaction="../redact/{}/">{}</button>'
        return self._html(format_html(button, str(self.position), _("redact")))

    def _html(self, button: SafeString) -> SafeString:
        body = [format_html('<pre dir="auto">{}</pre>', text) for text in self.said]
        if self.redacted:
            body.insert(0, format_html("<p><em>{}</em></p>", _("redacted")))
        if self.cut:
            body.append(format_html("<p><em>{}</em></p>", _("It goes on; an export has all of it.")))
        body += [_call_html(*call) for call in self.calls]
        return format_html(
            '<li id="m{}" class="{} {}"><div class="convmemory-line">{} {}</div>{}</li>',
            str(self.position),
            self.disposition,
            self.role,
            self.head,
            button,
            format_html_join("", "{}", zip(body, strict=True)),
        )


def _call_html(number: str, name: str, arguments: str) -> SafeString:
    # Open where the arguments are short enough to be shown at once.
    opened = " open" if len(arguments) < SHORT else ""
    return format_html(
        '<details class="convmemory-call"{}><summary>{} <code>{}</code> <small>{}</small></summary>'
        '<pre dir="auto">{}</pre></details>',
        opened,
        pgettext("a tool", "calls"),
        name,
        number,
        arguments,
    )


def rows(session: models.Session, before: int | None, using: str) -> list[Any]:
    """Return the last messages, or the last ones before the position ``before``, in order.

    Each with the ``beginning`` of its text and, where that is ``small``, the rest of its wire form: of a megabyte only
    what is shown is read.
    """
    end = session.last_position + 1 if before is None else min(session.last_position + 1, before)
    found = models.Message.objects.using(using).filter(session=session, position__gte=end - MESSAGES, position__lt=end)
    # By both columns of the key: by the position alone the whole table may be walked.
    found = found.order_by("-session_id", "-position")
    large = Q(wire_length__gt=LONGEST_WIRE)
    shown = found.alias(wire_length=Length("wire")).annotate(
        beginning=Substr("content", 1, LONGEST + 1),
        small=Case(When(large, then=Value(None)), default=F("wire"), output_field=ExactJSONField()),
        large=Case(When(large, then=Value(True)), default=Value(False)),
    )
    columns = (
        "position",
        "role",
        "kind",
        "tokens",
        "answers",
        "created_at",
        "redacted_at",
        "beginning",
        "small",
        "large",
    )
    return list(shown.values_list(*columns, named=True)[:MESSAGES])[::-1]


def bubble(row: Any, disposition: Explained, same_messages: str = "") -> Bubble:
    """Return how a message of :func:`rows` is shown. ``same_messages`` is :attr:`.SessionPage.same_messages`."""
    wire = None if row.large else row.small
    message = message_of(row.role, row.kind, row.beginning, wire, None)
    parts = [{"text": message.content}] if isinstance(message.content, str) else list(message.content or ())
    texts = [text for part in parts[:MOST_PARTS] if (text := _part(part))]
    calls = _calls(message)
    return Bubble(
        position=row.position,
        role=row.role,
        disposition=disposition.disposition.value,
        head=_head(row, disposition, same_messages),
        redacted=row.redacted_at is not None,
        said=[text[:LONGEST] for text in texts],
        calls=[(number, name[:SHORT], text[:LONGEST]) for number, name, text in calls[:MOST_PARTS]],
        cut=row.large
        or any(len(text) > LONGEST for text in [*texts, *(arguments for _number, _name, arguments in calls)])
        or max(len(parts), len(calls)) > MOST_PARTS,
    )


def _head(row: Any, disposition: Explained, same_messages: str) -> SafeString:
    """Return what stands above a message, which in a template would be most of a page's work."""
    at = localtime(row.created_at) if is_aware(row.created_at) else row.created_at
    kind = "" if row.kind == "chat" else format_html(" <em>{}</em>", row.kind)
    answers = (
        ""
        if not row.answers
        else format_html(
            ' <small><a href="?before={}#m{}">{}</a></small>',
            row.position + 1,
            row.answers,
            _("answers %(position)s") % {"position": row.answers},
        )
    )
    label: str = _disposition(disposition)
    if disposition.version is not None:
        address = f"?version={disposition.version}{same_messages}#convmemory-summaries"
        label = format_html('<a href="{}">{}</a>', address, label)
    return format_html(
        '<span class="convmemory-position">{}</span> <strong>{}</strong>{}{} <span class="convmemory-tag {}">{}</span> '
        '<small>{} · <time datetime="{}">{}</time></small>',
        str(row.position),
        row.role,
        kind,
        answers,
        disposition.disposition.value,
        label,
        ngettext("%(n)s token", "%(n)s tokens", row.tokens) % {"n": row.tokens},
        at.isoformat(),
        date_format(at, "SHORT_DATETIME_FORMAT"),
    )


def _disposition(disposition: Explained) -> str:
    if disposition.version is not None:
        return _("folded into %(version)s") % {"version": disposition.version}
    labels = {
        Disposition.PINNED: _("pinned"),
        Disposition.VERBATIM: _("verbatim"),
        Disposition.FOLDED: _("folded"),
        Disposition.OMITTED: _("omitted"),
    }
    return labels[disposition.disposition]


def _part(part: Mapping[str, Any]) -> str:
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if not str(part.get("type")).startswith(("image", "input_image")):
        return f"[{part.get('type')}]"
    image = part.get("image_url")
    address = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(address, str):
        return _("[an image]")
    # Never loaded, nor linked: an address in a conversation may be anybody's.
    kind, _comma, data = address.partition(",")
    if kind.startswith("data:"):
        return _("[an image: %(kind)s, %(size)d kB]") % {"kind": kind[5:60], "size": len(data) * 3 // 4000}
    return _("[an image: %(address)s]") % {"address": address[:LONGEST_ADDRESS]}


def _calls(message: ChatMessage) -> list[tuple[str, str, str]]:
    """Return the id, the name and the arguments of each tool call."""
    found = []
    for call in message.tool_calls:
        function = call.get("function") or call.get("custom") or {}
        if not isinstance(function, Mapping):
            function = {}
        arguments = function.get("arguments", function.get("input", ""))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        found.append((str(call["id"]), str(function.get("name", "")), text))
    return found
