"""Looks for words: in a session, with what became of them, and in several sessions, for the list.

The messages are those that the memory's search finds. A version has a fact if it has all words of the search.

The index of recall has rows for each session, and none for all of them. So there is no cheap search in millions of
sessions. The newest sessions are searched: those of a person if the search names one, as in ``anna/shellfish``, or
those of everybody.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.db.models.functions import Left
from django.utils.functional import cached_property

from django_convmemory import models
from django_convmemory.admin import lists
from django_convmemory.context.assembly import Context
from django_convmemory.maintenance import explain
from django_convmemory.maintenance.explain import Disposition
from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.search import tokenizer
from django_convmemory.search.hits import Hit, Hits
from django_convmemory.search.tokenizer import LANGUAGES, TAG_END, Query

# Messages that are shown. A search also finds neighbours of the messages that have words of the phrase, and these are
# not shown. So more are read.
SHOWN, READ = 20, 100
# The newest sessions that are searched, as far as they have 100 000 messages together.
SESSIONS = 500
# The newest versions that are read, and characters of each.
VERSIONS, MAX_TEXT = 200, 20_000
# Characters of a search.
MAX_PHRASE = 200
# Messages after the one that a link leads to.
AFTER = 10


def phrase_of(typed: str) -> str:
    """Return what was typed as a text to look for, or "" if there is nothing to look for."""
    return typed.replace("\x00", "").strip()[:MAX_PHRASE]


def has_words(text: str, query: Query) -> bool:
    """Return whether ``text`` has all words of ``query``, in any of their forms.

    A few words do not tell their language. Then those that are a stop word of any language do not count, if there are
    others.
    """
    if query.empty:
        return False
    terms = set(tokenizer.tokenize(text))
    # A word that is a stop word of a language has no form in it. A number has one form for all languages.
    words = [forms for forms in query.terms if len(forms) >= len(LANGUAGES) or TAG_END not in forms[0]]
    having_words = all(not terms.isdisjoint(forms) for forms in words or query.terms)
    return having_words and query.characters <= set().union(*terms)


def page_of(session: models.Session, position: int) -> int:
    """Return ``before`` of a page that shows the message at ``position`` and a few after it."""
    return min(position + AFTER, session.last_position) + 1


def _having_words(hits: Iterable[Hit]) -> list[Hit]:
    """Return the messages that have the words, or those of the time if the text is a date alone."""
    hits = list(hits)
    return [hit for hit in hits if hit.marks] or hits


# In a session.


class FoldedVersion(NamedTuple):
    """A version of the summary. ``has_words`` is None if its text was removed."""

    number: int
    first_position: int
    last_position: int
    folds: bool
    has_words: bool | None


class Mention(NamedTuple):
    """A message that was found, and what became of it.

    - ``before`` is the parameter of the page that shows the message.
    - ``version`` is the one that folded it. ``removed``: its text was removed.
    - ``kept`` is the version up to which its words stayed. ``dropped`` is the next one, which does not have them all.
    """

    hit: Hit
    before: int
    disposition: Disposition
    version: int | None
    removed: bool = False
    kept: int | None = None
    dropped: int | None = None


@dataclasses.dataclass
class PhraseSearch:
    """What is found of ``phrase`` in ``session``. ``context`` is what a model is sent now."""

    memory: ConversationMemory
    session: models.Session
    phrase: str
    context: Context

    @cached_property
    def query(self) -> Query:
        """The words that are looked for. It is empty if the phrase has stop words only, or no words."""
        return tokenizer.query(self.phrase)

    @cached_property
    def hits(self) -> Hits:
        return self.memory.search(self.phrase, session=self.session, limit=READ)

    @property
    def more(self) -> bool:
        """Whether there may be more messages than are shown."""
        return len(_having_words(self.hits)) > SHOWN or len(self.hits) == READ

    @cached_property
    def found(self) -> list[Mention]:
        """The messages that have words of the phrase, the best first."""
        folds = ((each.first_position, each.last_position, each.number) for each in self.versions if each.folds)
        ends = [(last, number) for _first, last, number in sorted(explain.current_line(folds))]
        having = _having_words(self.hits)[:SHOWN]
        explained = explain.explained([(hit.position, hit.role, 0) for hit in having], self.context, ends)
        return [self._found(hit, entry) for hit, entry in zip(having, explained, strict=True)]

    def _found(self, hit: Hit, explained: explain.Explained) -> Mention:
        found = Mention(hit, page_of(self.session, hit.position), explained.disposition, explained.version)
        if found.version is None:
            return found
        later = [version for version in self._readable if version.number >= found.version]
        if not later or later[0].number != found.version:
            return found._replace(removed=True)
        having = list(itertools.takewhile(lambda version: version.has_words, later))
        return found._replace(
            kept=having[-1].number if having else None,
            dropped=later[len(having)].number if len(having) < len(later) else None,
        )

    @cached_property
    def versions(self) -> list[FoldedVersion]:
        """The newest versions that contexts have shown, the newest first."""
        rows = models.Summary.objects.using(self.session._state.db).filter(session=self.session)
        rows = rows.filter(building=False, part_end__isnull=True).order_by("-version")
        columns = ("version", "first_position", "last_position", "invalidated_at", Left("text", MAX_TEXT))
        return [
            FoldedVersion(
                number,
                first,
                last,
                folds=invalidated_at is None and number <= self.session.current_version,
                has_words=has_words(text, self.query) if text else None,
            )
            for number, first, last, invalidated_at, text in rows.values_list(*columns)[:VERSIONS]
        ]

    @property
    def versions_left_out(self) -> bool:
        return len(self.versions) == VERSIONS

    @cached_property
    def _readable(self) -> list[FoldedVersion]:
        """The versions that still have a text, the oldest first."""
        return [version for version in reversed(self.versions) if version.has_words is not None]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first and the last version of each range of versions that have all words, the oldest first."""
        groups = itertools.groupby(self._readable, key=lambda version: version.has_words)
        ranges = [[version.number for version in group] for having, group in groups if having]
        return [(numbers[0], numbers[-1]) for numbers in ranges]


# In several sessions.


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
        phrase = phrase_of(rest)
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
        return self.of_person[1] if self.of_person else phrase_of(self.text)

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
        known = {alias: sessions.filter(pk__in=ids) for alias, ids in by_alias.items() if alias in memories}
        return [memories[alias].search(self.phrase, sessions=rows, limit=READ) for alias, rows in known.items()]

    @property
    def complete(self) -> bool:
        return all(hits.complete for hits in self._by_memory)

    @cached_property
    def _having(self) -> list[Hit]:
        return _having_words(itertools.chain.from_iterable(self._by_memory))

    @cached_property
    def hits(self) -> list[tuple[models.Session, Hit, int]]:
        """The messages, the best ones first: the session, the hit, and ``before`` of the page that shows it."""
        by_id: dict[Any, models.Session] = {session.pk: session for session in self.searched}
        best = sorted(self._having, key=lambda hit: -hit.score)[:SHOWN]
        return [(session := by_id[hit.session.row_id], hit, page_of(session, hit.position)) for hit in best]

    @property
    def more(self) -> bool:
        """Whether there may be more messages than are shown."""
        return len(self._having) > SHOWN or any(len(hits) == READ for hits in self._by_memory)


def _newest(sessions: QuerySet[models.Session]) -> list[models.Session]:
    """Return the newest of ``sessions`` with as much as the hits show of them."""
    columns = ("pk", "alias", "key", "title", "last_position")
    return [models.Session(**row) for row in sessions.order_by("-pk").values(*columns)[:SESSIONS]]
