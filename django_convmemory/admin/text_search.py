"""Searches what was said in several sessions, for the list.

The index of recall has rows for each session, and none for all of them. So there is no cheap search in millions of
sessions. The newest sessions are searched: those of a person if the search names one, as in ``anna/shellfish``, or
those of everybody.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.utils.functional import cached_property

from django_convmemory import models
from django_convmemory.admin import finding, lists
from django_convmemory.memory import memories
from django_convmemory.search.hits import Hit, Hits

# Messages that are shown.
SHOWN = 20
# A search also finds neighbours of the messages that have the words, and these are not shown. So more are read.
READ = 100
# The newest sessions that are searched, as far as they have 100 000 messages together.
SESSIONS = 500


class FoundMessage(NamedTuple):
    """A message that was found. ``before`` is the parameter of its session's page that shows it."""

    session: models.Session
    hit: Hit
    before: int


@dataclasses.dataclass
class TextSearch:
    """What is found of ``text`` in the messages of ``sessions``, the rows that the user may see in the list.

    ``owners`` has the users who may be named.
    """

    sessions: QuerySet[models.Session]
    text: str
    owners: QuerySet[Any]

    @cached_property
    def of_person(self) -> tuple[list[models.Session], str] | None:
        """The newest sessions of the person whom the text names, and what to look for. None: it names nobody."""
        person, _slash, rest = self.text.partition("/")
        phrase = finding.phrase_of(rest)
        if not person or not phrase:
            return None
        owners = lists.named(self.owners, person)
        # One index or the other. With both in an OR, a database may walk all sessions.
        theirs = self.sessions.filter(owner__in=owners) if owners else self.sessions.filter(visitor=person)
        rows = _newest(theirs)
        return (rows, phrase) if rows else None

    @property
    def phrase(self) -> str:
        """What is looked for."""
        return self.of_person[1] if self.of_person else finding.phrase_of(self.text)

    @cached_property
    def searched(self) -> list[models.Session]:
        """The sessions that are searched."""
        return self.of_person[0] if self.of_person else _newest(self.sessions)

    @cached_property
    def _by_memory(self) -> list[Hits]:
        """What each memory finds in its sessions."""
        by_alias = collections.defaultdict(list)
        for session in self.searched:
            by_alias[session.alias].append(session.pk)
        sessions = models.Session.objects.using(self.sessions.db)
        return [
            memories[alias].search(self.phrase, sessions=sessions.filter(pk__in=ids), limit=READ)
            for alias, ids in by_alias.items()
            if alias in memories
        ]

    @property
    def complete(self) -> bool:
        return all(hits.complete for hits in self._by_memory)

    @cached_property
    def _having(self) -> list[Hit]:
        """The messages that have the words."""
        return [hit for hits in self._by_memory for hit in hits if hit.marks]

    @cached_property
    def hits(self) -> list[FoundMessage]:
        """The messages, the best ones of each memory first."""
        by_id: dict[Any, models.Session] = {session.pk: session for session in self.searched}
        best = sorted(self._having, key=lambda hit: -hit.score)[:SHOWN]
        sessions = [by_id[hit.session.row_id] for hit in best]
        return [
            FoundMessage(session, hit, finding.page_of(session, hit.position))
            for session, hit in zip(sessions, best, strict=True)
        ]

    @property
    def more(self) -> bool:
        """Whether there may be more messages than are shown."""
        return len(self._having) > SHOWN or any(len(hits) == READ for hits in self._by_memory)


def _newest(sessions: QuerySet[models.Session]) -> list[models.Session]:
    """Return the newest of ``sessions`` with as much as the hits show of them."""
    columns = ("pk", "alias", "key", "title", "last_position")
    rows = sessions.order_by("-pk").values_list(*columns)[:SESSIONS]
    return [models.Session(**dict(zip(columns, row, strict=True))) for row in rows]
