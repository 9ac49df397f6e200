"""Questions: what a visitor types, and which question can be edited or answered again."""

from __future__ import annotations

from django.http import HttpRequest

from django_convmemory.rules.values import StoredMessage

# The most messages of a turn: the question, tool calls with their results, and the reply.
LONGEST_TURN = 40


def typed(request: HttpRequest) -> str:
    """Return the text of the form, without characters that a page cannot show."""
    text = request.POST.get("text", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.strip()


def newest(messages: list[StoredMessage]) -> StoredMessage | None:
    """Return the user's last message, or None. It can be edited, and answered again."""
    return next((stored for stored in reversed(messages) if stored.message.role == "user"), None)
