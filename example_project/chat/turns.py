"""A turn of a conversation: a question and the reply to it.

A reply takes time. Meanwhile somebody may continue the conversation, edit the question, or delete the conversation. So
each function here locks the conversation's row, and checks that the conversation has not changed before it writes.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session
from django_convmemory.rules.values import StoredMessage

# The most messages of a turn: the question, tool calls with their results, and the reply.
LONGEST = 40


class WentOn(Exception):
    """The conversation has changed since the page was loaded."""


def question(messages: list[StoredMessage]) -> int | None:
    """Return the position of the user's last message, or None. It can be edited, and answered again."""
    return next((stored.position for stored in reversed(messages) if stored.message.role == "user"), None)


def answer(session: Session, asked: StoredMessage, reply: ChatMessage, usage: Any = None) -> bool:
    """Store the reply to the message ``asked``, and return whether it was stored.

    It is not stored if ``asked`` has changed or is no longer the last message. A complete reply replaces a partial one.
    """
    with transaction.atomic():
        locked = _locked(session)
        if locked is None:
            return False
        # If the visitor has signed in meanwhile, the locked row has the user as its owner.
        handle = memories[locked.alias].session(locked)
        *_, before, last = [None, None, *handle.history(limit=2)]
        if last is not None and before == asked and _partial(last.message) and not _partial(reply):
            handle.truncate(after=asked.position)
        elif last != asked:
            return False
        handle.append(reply, usage=usage)
        return True


def ask_again(session: Session, position: int, text: str, last: int) -> None:
    """Remove the answer to the question at ``position``; if ``text`` is not empty, replace the question by it.

    ``last`` is the last position that the page shows. Raises :class:`WentOn` if the conversation has changed, and the
    errors of ``append``. If it raises, nothing is changed.
    """
    handle = memories[session.alias].session(session)
    with transaction.atomic():
        messages = handle.history(limit=LONGEST) if _locked(session) else []
        if not messages or messages[-1].position != last or question(messages) != position:
            raise WentOn
        handle.truncate(after=position - bool(text))
        if text:
            handle.append(ChatMessage.human(text))


def _locked(session: Session) -> Session | None:
    """Lock the conversation's row until the transaction ends and return its current state, or None if it is gone."""
    return Session.objects.select_for_update().filter(pk=session.pk).first()


def _partial(message: ChatMessage) -> bool:
    return bool(message.metadata.get("partial"))
