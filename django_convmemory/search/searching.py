"""Search: finds stored messages by their words, folded or not."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from django_convmemory.exceptions import InvalidArgument
from django_convmemory.rules.segments import Segment
from django_convmemory.rules.transcript import spoken
from django_convmemory.rules.values import StoredMessage
from django_convmemory.search import excerpts, indexing, queries, ranking
from django_convmemory.search.hits import Hit, Hits
from django_convmemory.search.indexing import Searchable
from django_convmemory.search.queries import Query
from django_convmemory.search.ranking import Match
from django_convmemory.store.either import Store

MAX_HITS = 100
MAX_NEIGHBOURS = 10
# So many sessions are indexed at most because a search has found them not indexed.
_INDEXED_FOR_SEARCH = 100


class RankedMessage(NamedTuple):
    """A match of the ranking, with its session and its message."""

    searchable: Searchable
    match: Match
    stored: StoredMessage
    neighbours: tuple[StoredMessage, ...] = ()


def to_index(searched: Sequence[Searchable]) -> list[int]:
    """Return the ids of sessions that a search could not read to the end, with the most messages to index first.

    Sessions that are not due were not indexed yet.
    """
    if not any(session.unindexed and not session.complete for session in searched):
        return []
    behind = [session for session in searched if session.unindexed]
    longest = heapq.nlargest(_INDEXED_FOR_SEARCH, behind, key=lambda session: session.unindexed)
    return [session.session_id for session in longest]


def query_of(text: object) -> Query:
    """Return ``text`` as a query. Raises InvalidArgument if it is no text."""
    if not isinstance(text, str):
        raise InvalidArgument(f"The query must be a string, not {type(text).__name__}.")
    return queries.query(text)


def search(
    store: Store,
    sessions: Sequence[Searchable],
    query: Query,
    *,
    limit: int,
    offset: int = 0,
    after: int | None = None,
    before: int | None = None,
    neighbours: int = 0,
) -> Hits:
    """Return the ``limit`` messages of ``sessions`` that match the query best, without the best ``offset`` ones.

    They have positions above ``after`` and below ``before``. Each has its ``neighbours`` on both sides.
    """
    matches, sound = rank(sessions, query, limit=offset + limit, after=after, before=before)
    hits = Hits(hit(found, query) for found in read(store, sessions, matches[offset:], neighbours=neighbours))
    hits.complete = sound and all(session.complete for session in sessions)
    return hits


def rank(
    sessions: Sequence[Searchable],
    query: Query,
    *,
    limit: int,
    after: int | None = None,
    before: int | None = None,
) -> tuple[list[Match], bool]:
    """Return the matches of :func:`.ranking.rank`, and whether the index of each session could be read.

    One damaged row does not keep the messages of other sessions from being found.
    """
    bounds = {"after": after, "before": before}
    try:
        return ranking.rank([session.segments for session in sessions], query, limit=limit, **bounds), True
    except indexing.DAMAGE:
        # Each session is read by itself.
        segments: list[Sequence[Segment]] = []
        for session in sessions:
            try:
                ranking.rank([session.segments], query, limit=1)
            except indexing.DAMAGE:
                indexing.warn_of_damage(session.session_id)
                segments.append([])
            else:
                segments.append(session.segments)
        return ranking.rank(segments, query, limit=limit, **bounds), False


def read(
    store: Store, sessions: Sequence[Searchable], matches: Sequence[Match], *, neighbours: int = 0
) -> list[RankedMessage]:
    """Read the messages of ``matches``. Those that were removed or redacted since they were ranked are left out."""
    around = {match: range(max(1, match.position - neighbours), match.position + neighbours + 1) for match in matches}
    places = [
        (sessions[match.session].session_id, sessions[match.session].epoch, position)
        for match in matches
        for position in around[match]
    ]
    stored = store.messages_at(list(dict.fromkeys(places))) if places else {}
    results = []
    for match in matches:
        session = sessions[match.session]
        message = stored.get((session.session_id, match.position))
        if message is None or message.redacted:
            continue
        beside = [
            stored[session.session_id, position]
            for position in around[match]
            if position != match.position and (session.session_id, position) in stored
        ]
        results.append(RankedMessage(session, match, message, tuple(beside)))
    return results


def hit(found: RankedMessage, query: Query, *, length: int = 240) -> Hit:
    """Return a match as a hit, with an excerpt of at most ``length`` characters."""
    stored = found.stored
    text, marks = excerpts.excerpt(spoken(stored.message), query, length=length)
    return Hit(
        session=found.searchable.name,
        position=stored.position,
        created_at=stored.created_at,
        role=stored.message.role,
        score=found.match.score,
        excerpt=text,
        marks=marks,
        neighbours=found.neighbours,
        name=stored.message.name,
    )
