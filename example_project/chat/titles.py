"""What conversations are called: by what they begin with, until that is asked otherwise or redacted."""

from __future__ import annotations

import textwrap

from django_convmemory.models import Session

LONGEST = 60
# What a branch is called: the conversation that it was made of, with this before it.
BRANCH = "Branch: "


def title_of(text: str) -> str:
    """Return a title for a conversation that begins with ``text``; "" where there is nothing to see."""
    seen = " ".join("".join(sign for sign in text if sign.isprintable() or sign.isspace()).split())
    short = textwrap.shorten(seen, LONGEST, placeholder="…")
    # Of a text without blanks nothing would be left.
    return short if len(short) > LONGEST // 3 else seen[:LONGEST]


def branch_of(title: str) -> str:
    """Return what a branch of a conversation with this title is called."""
    return f"{BRANCH}{title.removeprefix(BRANCH)}"[:255]


def rename(session: Session, text: str) -> None:
    """Call a conversation by what it begins with now."""
    Session.objects.filter(pk=session.pk).update(title=title_of(text))


def forget(session: Session) -> None:
    """Take the title back, and those of the conversations that were copied from this one: their beginning is gone."""
    found, generation = set[int](), {session.pk}
    while generation:
        found |= generation
        generation = set(Session.objects.filter(forked_from__in=generation).values_list("pk", flat=True)) - found
    Session.objects.filter(pk__in=found).update(title="")
