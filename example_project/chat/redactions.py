"""Replies that repeat what a visitor has removed."""

from __future__ import annotations

from chat import quotes
from django_convmemory.conversation import SessionHandle
from django_convmemory.messages import ChatMessage

# A shorter sentence, such as "Thanks.", is in many replies by chance.
_SHORTEST = 12
# The most messages that are looked at.
MOST = 1000


def repeated(session: SessionHandle, removed: ChatMessage, position: int) -> list[int]:
    """Return the positions of the replies after ``position`` that have a sentence of ``removed`` word for word."""
    wanted = [_plain(sentence) for sentence in quotes.sentences(removed.text)]
    wanted = [sentence for sentence in wanted if len(sentence) >= _SHORTEST]
    return [
        stored.position
        for stored in session.history(after=position, limit=MOST)
        if stored.message.role == "assistant" and any(sentence in _plain(stored.message.text) for sentence in wanted)
    ]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".!?。！？")
