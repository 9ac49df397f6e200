"""Search: finds stored messages by their words, folded or not.

A search reads sessions with their index, ranks their messages, and reads the best ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from django_convmemory.messages import spoken
from django_convmemory.rules import segments
from django_convmemory.rules.segments import IndexRead, Segment
from django_convmemory.rules.values import SessionName, StoredMessage
from django_convmemory.search import hits, indexing, ranking, reranking
from django_convmemory.search.hits import Hit, Hits
from django_convmemory.search.ranking import Match
from django_convmemory.search.reranking import Reranker
from django_convmemory.search.tokenizer import Query
from django_convmemory.store import Store

MAX_HITS = 100
MAX_NEIGHBOURS = 10
# A search of several sessions reads so many messages together.
MAX_MESSAGES = 100_000
# So many sessions are indexed at most because a search has found them not indexed.
_INDEXED_FOR_SEARCH = 100
# What reading a segment raises whose text is not in the form that rules.segments defines.
_DAMAGE = (ValueError, LookupError)


class Searchable(NamedTuple):
    """A session as a search sees it.

    - ``segments``: its index, in order. The last ones may be made from messages that are not indexed yet.
    - ``complete``: False if messages were left out: of those that are not indexed only the newest 512 are read, none of
      them with a large image, and of the sessions of a person only the newest ones.
    - ``unindexed``: how many of its messages are not indexed, whether or not they are read.
    """

    session_id: int
    name: SessionName
    epoch: int
    segments: Sequence[Segment]
    complete: bool
    unindexed: int = 0


class RankedMessage(NamedTuple):
    """A match of the ranking, with its session and its message."""

    searchable: Searchable
    match: Match
    stored: StoredMessage
    neighbours: tuple[StoredMessage, ...] = ()


def searchable(read: IndexRead) -> Searchable:
    """Return a session that was read: its index, and after it one of the messages that are not indexed yet."""
    try:
        return _joined(read)
    except _DAMAGE:
        extent = read.extent
        indexing.warn_of_damage(extent.session_id)
        return Searchable(extent.session_id, extent.name, extent.epoch, [], complete=False)


def _joined(read: IndexRead) -> Searchable:
    extent, end, indexed = read.extent, read.extent.end(read.before), read.extent.indexed_position
    if read.segments and read.segments[-1].version != segments.VERSION:
        # Another version of this app has indexed the session. It counts as not indexed.
        return Searchable(extent.session_id, extent.name, extent.epoch, [], complete=False, unindexed=end)
    known = segments.through(read.segments, end)
    unindexed = max(0, end - indexed)
    messages = [stored for stored in read.messages if max(read.after, indexed) < stored.position <= end]
    if messages:
        # The newest ones.
        messages = [*indexing.portion(reversed(messages))][::-1]
        first = messages[0].position
        last, previous = None, None
        # If messages are left out before them, a sitting begins: the last message of the index is no neighbour.
        if first == indexed + 1:
            last = known.pop() if known else None
            previous = next((stored.created_at for stored in read.messages if stored.position == indexed), None)
        more = segments.extended(last, first, list(indexing.documents(messages, previous)))
        known += more if last is None or more[0].first == last.first else [last, *more]
    complete = len(messages) >= unindexed and all(stored.whole for stored in messages) and not read.others
    return Searchable(extent.session_id, extent.name, extent.epoch, known, complete, unindexed)


def to_index(searched: Sequence[Searchable]) -> list[int]:
    """Return the ids of sessions that a search could not read to the end, with the most messages to index first.

    Sessions that are not due were not indexed yet.
    """
    if not any(session.unindexed and not session.complete for session in searched):
        return []
    behind = [session for session in searched if session.unindexed]
    longest = heapq.nlargest(_INDEXED_FOR_SEARCH, behind, key=lambda session: session.unindexed)
    return [session.session_id for session in longest]


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
    reranker: Reranker | None = None,
    text: str = "",
) -> Hits:
    """Return the ``limit`` messages of ``sessions`` that match the query best, without the best ``offset`` ones.

    They have positions above ``after`` and below ``before``. Each has its ``neighbours`` on both sides. The
    ``reranker`` judges how well the best ones match ``text``, that of the query.
    """
    end = offset + limit
    judged = reranking.MOST if reranker is not None and offset < reranking.MOST else 0
    matches, sound = rank(sessions, query, limit=max(end, judged), after=after, before=before)
    if reranker is not None and judged and matches:
        matches = reranking.reranked(reranker, text, matches, [session.session_id for session in sessions])
    found = Hits(hit(each, query) for each in read(store, sessions, matches[offset:end], neighbours=neighbours))
    found.complete = sound and all(session.complete for session in sessions)
    return found


def rank(
    sessions: Sequence[Searchable], query: Query, *, limit: int, after: int | None = None, before: int | None = None
) -> tuple[list[Match], bool]:
    """Return the matches of :func:`.ranking.rank`, and whether the index of each session could be read.

    One damaged row does not keep the messages of other sessions from being found.
    """
    searched = [session.segments for session in sessions]
    try:
        return ranking.rank(searched, query, limit=limit, after=after, before=before), True
    except _DAMAGE:
        # Each session is read by itself.
        for number, session in enumerate(sessions):
            try:
                ranking.rank([session.segments], query, limit=1)
            except _DAMAGE:
                indexing.warn_of_damage(session.session_id)
                searched[number] = []
        return ranking.rank(searched, query, limit=limit, after=after, before=before), False


def read(
    store: Store, sessions: Sequence[Searchable], matches: Sequence[Match], *, neighbours: int = 0
) -> list[RankedMessage]:
    """Read the messages of ``matches``. Those that were removed or redacted since they were ranked are left out."""
    around = {match: range(max(1, match.position - neighbours), match.position + neighbours + 1) for match in matches}
    ranked = [(sessions[match.session], match) for match in matches]
    places = [(session.session_id, session.epoch, at) for session, match in ranked for at in around[match]]
    stored = store.messages_at(list(dict.fromkeys(places))) if places else {}
    results = []
    for session, match in ranked:
        near = {at: stored[session.session_id, at] for at in around[match] if (session.session_id, at) in stored}
        message = near.pop(match.position, None)
        if message is not None and not message.redacted:
            results.append(RankedMessage(session, match, message, tuple(near.values())))
    return results


def hit(found: RankedMessage, query: Query, *, length: int = 240) -> Hit:
    """Return a match as a hit, with an excerpt of at most ``length`` characters."""
    stored = found.stored
    message = stored.message
    text, marks = hits.excerpt(spoken(message), query, length=length)
    said = (stored.position, stored.created_at, message.role, found.match.score, text, marks)
    return Hit(found.searchable.name, *said, found.neighbours, message.name)
