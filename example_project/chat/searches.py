"""Searches for the pages: in one conversation, and in all conversations of a request."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.http import HttpRequest

from chat import people
from django_convmemory.memory import memories
from django_convmemory.models import Session
from django_convmemory.search.hits import Hit, Hits

# Hits on a page.
MOST = 30
# Characters of a query that the page shows again.
LONGEST = 500


class Found(NamedTuple):
    """A hit, and the conversation that it is in."""

    hit: Hit
    conversation: Session


def query_of(request: HttpRequest) -> str:
    """Return the query of the request; "" if it has none."""
    return " ".join(request.GET.get("q", "")[:LONGEST].replace("\0", " ").split())


def in_conversation(session: Session, query: str) -> dict[str, Any]:
    """Return what the page of a conversation shows of a search."""
    hits = memories[session.alias].search(query, session=session, limit=MOST)
    return _shown(query, hits, [session])


def in_all(request: HttpRequest, query: str) -> dict[str, Any]:
    """Return what the page of a search in all conversations of the request shows."""
    conversations = people.conversations(request)
    hits = memories[people.ALIAS].search(query, sessions=conversations, limit=MOST)
    hashes = {hit.session.name_hash for hit in hits}
    return _shown(query, hits, conversations.filter(name_hash__in=hashes) if hashes else [])


def _shown(query: str, hits: Hits, conversations: Any) -> dict[str, Any]:
    by_name = {session.name_hash: session for session in conversations}
    found = [
        Found(hit, by_name[hit.session.name_hash])
        for hit in hits
        # A hit without marks matches only by the messages around it. And a conversation may be gone by now.
        if hit.marks and hit.session.name_hash in by_name
    ]
    return {"query": query, "found": found, "most": MOST, "complete": hits.complete}
