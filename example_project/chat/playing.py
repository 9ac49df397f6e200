"""A conversation that plays by itself. The page stores a message of ``dinner.jsonl`` every second.

The memory is the real one, and so are the folds. If no reply follows a question in the file, the page asks for one, as
it does for the question of a visitor.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

from django.http import HttpRequest

from chat import people
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session

SCRIPT = Path(__file__).parent / "dinner.jsonl"
TITLE = "A dinner for Ines"
# The metadata of the sessions in which the file is played.
_METADATA = {"script": SCRIPT.stem}


@functools.cache
def messages() -> list[ChatMessage]:
    """Return the messages of the file."""
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    return [ChatMessage.from_openai(json.loads(line)) for line in lines]


def begin(request: HttpRequest, key: str) -> Session:
    """Return a new conversation, for the user or visitor, in which nothing was said yet."""
    name = people.begin(request, key).session_name
    session: Session = memories[people.ALIAS].create(name, title=TITLE, metadata=_METADATA)
    return session


def is_played(session: Session) -> bool:
    """Return whether the conversation was begun to be played."""
    return session.metadata == _METADATA


def say(session: Session, number: int) -> bool:
    """Store the message with this number, once. Return whether it is a question that has no reply in the file."""
    message, *following = messages()[number : number + 2]
    memories[session.alias].session(session).append(message, idempotency_key=f"line-{number}")
    return message.role == "user" and not (following and following[0].role == "assistant")
