"""The titles of conversations. A title is the beginning of the first message, until that is edited or redacted."""

from __future__ import annotations

import textwrap

from django_convmemory.models import Session

LONGEST = 60
# The prefix of a branch's title.
BRANCH = "Branch: "


def title_of(text: str) -> str:
    """Return a title for a conversation that begins with ``text``; "" if nothing in it is visible."""
    visible = " ".join("".join(sign for sign in text if sign.isprintable() or sign.isspace()).split())
    short = textwrap.shorten(visible, LONGEST, placeholder="…")
    # shorten() leaves nothing of a text without spaces.
    return short if len(short) > LONGEST // 3 else visible[:LONGEST]


def branch_of(title: str) -> str:
    """Return the title of a branch of a conversation with this title."""
    return f"{BRANCH}{title.removeprefix(BRANCH)}"[:255]


def rename(session: Session, text: str) -> None:
    """Set the title of a conversation that begins with ``text`` now."""
    Session.objects.filter(pk=session.pk).update(title=title_of(text))


def forget(session: Session) -> None:
    """Remove the titles of a conversation and its branches, because their first message was redacted."""
    redacted, generation = set[int](), {session.pk}
    while generation:
        redacted |= generation
        generation = set(Session.objects.filter(forked_from__in=generation).values_list("pk", flat=True)) - redacted
    Session.objects.filter(pk__in=redacted).update(title="")
