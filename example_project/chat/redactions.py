"""Replies that repeat what a visitor has removed."""

from __future__ import annotations

from chat import quotes
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle

# A shorter sentence, such as "Thanks.", is in many replies by chance.
_SHORTEST = 12
# The most messages that are looked at.
MOST = 1000


def repeated(session: SessionHandle, removed: ChatMessage, position: int) -> list[int]:
    """Return the positions of the replies after ``position`` that have a sentence of ``removed`` word for word."""
    wanted = [_plain(sentence) for sentence in quotes.sentences(removed.text)]
    wanted = [sentence for sentence in wanted if len(sentence) >= _SHORTEST]
    replies = [stored for stored in session.history(after=position, limit=MOST) if stored.message.role == "assistant"]
    return [stored.position for stored in replies if _repeats(_plain(stored.message.text), wanted)]


def _repeats(reply: str, sentences: list[str]) -> bool:
    return any(sentence in reply for sentence in sentences)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!?。！？")
