"""A turn of a conversation: a question, and the reply to it.

Whatever changes one holds the conversation's row meanwhile, and looks first whether all is still as it was thought to
be: a reply takes its time, and somebody may have gone on, asked otherwise, or deleted the conversation.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction

from django_convmemory.core.values import StoredMessage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session

# How many messages a turn may have: the question, calls of tools with their results, the reply.
LONGEST = 40


class WentOn(Exception):
    """The conversation is not as the page shows it any more."""


def question(messages: list[StoredMessage]) -> int | None:
    """Return the position of the last thing that the user said: it can be asked otherwise, and answered anew."""
    return next((one.position for one in reversed(messages) if one.message.role == "user"), None)


def answer(session: Session, asked: StoredMessage, reply: ChatMessage, usage: Any = None) -> bool:
    """Store the reply to the message ``asked``, and return whether it was.

    It is not where that is not the last message any more, or not the same. A reply that is whole takes the place of
    one that broke off.
    """
    with transaction.atomic():
        held = _held(session)
        if held is None:
            return False
        # A visitor may have signed in meanwhile: then the conversation is a user's now.
        handle = memories[held.alias].session(held)
        *_, before, last = [None, None, *handle.history(limit=2)]
        if last is not None and before == asked and _partial(last.message) and not _partial(reply):
            handle.truncate(after=asked.position)
        elif last != asked:
            return False
        handle.append(reply, usage=usage)
        return True


def ask_again(session: Session, position: int, text: str, last: int) -> None:
    """Forget the answer to the question at ``position``, and where there is ``text`` ask that instead.

    ``last`` is the last position that the page shows. Raises :class:`WentOn` where there are others now, and what
    ``append`` raises: then all is as it was.
    """
    handle = memories[session.alias].session(session)
    with transaction.atomic():
        found = handle.history(limit=LONGEST) if _held(session) else []
        if not found or found[-1].position != last or question(found) != position:
            raise WentOn
        handle.truncate(after=position - bool(text))
        if text:
            handle.append(ChatMessage.human(text))


def _held(session: Session) -> Session | None:
    """Keep others from changing the conversation until the transaction ends, and return it as it is; None if gone."""
    return Session.objects.select_for_update().filter(pk=session.pk).first()


def _partial(message: ChatMessage) -> bool:
    return bool(message.metadata.get("partial"))
