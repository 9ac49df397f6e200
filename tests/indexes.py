"""What the tests of the index share: small sessions, what is stored of their index, and what must be."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import ConversationWindowMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory, SessionHandle
from django_convmemory.rules import segments
from django_convmemory.rules.segments import Document, Segment
from django_convmemory.rules.values import SessionName
from django_convmemory.scheduling import NullScheduler
from django_convmemory.search import indexing, searching
from django_convmemory.search.searching import Searchable
from django_convmemory.store import Store
from django_convmemory.store.orm import ORMStore

# A word of the index, as it is stored.
SECRET = "quetzal"


def build(**options: Any) -> ConversationMemory:
    return ConversationWindowMemory(ORMStore(), 4, scheduler=NullScheduler(), **options)


def say(memory: ConversationMemory, count: int, key: str | SessionHandle = "s", text: str = "heron number {}") -> None:
    memory.append(key, *[ChatMessage.human(text.format(number)) for number in range(count)])


def index(key: str = "s", limit: int = 1_000) -> int:
    return indexing.index(ORMStore(), models.Session.objects.get(key=key).pk, limit=limit)[0]


def index_all(key: str = "s") -> int:
    total = 0
    while count := index(key):
        total += count
    return total


def stored(key: str = "s") -> list[Segment]:
    rows = models.Segment.objects.filter(session__key=key).order_by("session_id", "first")
    return [Segment(*values) for values in rows.values_list("first", "last", "data")]


def segments_of(texts: Sequence[str], sittings: set[int], first: int = 1) -> list[Segment]:
    """Return the segments of the messages of "s", with these texts. Sittings begin at the positions ``sittings``."""
    times = dict(models.Message.objects.filter(session__key="s").values_list("position", "created_at"))
    return segments.extended(
        None,
        first,
        [
            document_of(ChatMessage.human(text), times[position], position in sittings)
            for position, text in enumerate(texts, first)
        ],
    )


def document_of(
    message: ChatMessage, said_at: dt.datetime, begins_sitting: bool, *, redacted: bool = False
) -> Document:
    terms = indexing.terms_of(message, redacted=redacted)
    speakers = {"=="} if message.role == "user" else set()
    hour = int((said_at - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(hours=1))
    return Document(terms, begins_sitting, hour, frozenset(speakers if terms else ()))


def indexed(key: str = "s") -> int:
    return models.Session.objects.get(key=key).indexed_position


def expected(memory: ConversationMemory, through: int, key: str | SessionHandle = "s") -> list[Segment]:
    """Return the segments of the first messages as if they had been indexed at once."""
    documents, previous = [], None
    for message in memory.history(key, after=0, limit=through) if through else []:
        begins = segments.begins_sitting(message.created_at, previous)
        documents.append(document_of(message.message, message.created_at, begins, redacted=message.redacted))
        previous = message.created_at
    return segments.extended(None, 1, documents)


def searchable(
    store: Store, name: SessionName, *, before: int | None = None, epoch: int | None = None
) -> Searchable | None:
    """Return a session as a search sees it."""
    read = store.read_index(name, before=before, epoch=epoch)
    return None if read is None else searching.searchable(read)


def searchable_of(
    store: Store, *, owner_id: Any = None, visitor: str = "", alias: str = "default", max_messages: int = 100_000
) -> list[Searchable]:
    """Return the sessions of an owner or a visitor as a search sees them."""
    reads = store.read_indexes_of(alias, owner_id=owner_id, visitor=visitor, max_messages=max_messages)
    return [searching.searchable(read) for read in reads]


def read(key: str = "s", **bounds: Any) -> Searchable:
    memory = build()
    session = searchable(memory.store, memory.resolve(key), **bounds)
    assert session is not None
    return session


def is_whole() -> bool:
    """Whether the rows of all sessions are right, and none is left behind."""
    return not [*integrity.check(models.Session.objects.all()), *integrity.orphans("default")]


def is_whole_index() -> bool:
    """Whether the index of all sessions is right."""
    codes = {finding.code for finding in integrity.check(models.Session.objects.all())}
    return not codes & integrity.OF_INDEX


def secrets() -> int:
    return models.Segment.objects.filter(data__contains=SECRET).count()
