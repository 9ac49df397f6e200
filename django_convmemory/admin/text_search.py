"""Searches what was said in several sessions, for the list.

The index of recall has rows for each session, and none for all of them. So there is no cheap search in millions of
sessions. One of these is searched, and the page says which:

- all sessions of a person, if the search names one, as in ``anna/shellfish``: by their indexes, for words;
- otherwise the newest sessions: their last messages are read, for the phrase itself.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet
from django.utils.functional import cached_property
from django.utils.http import urlencode
from django.utils.translation import gettext as _, ngettext

from django_convmemory import models
from django_convmemory.admin import lists, spoken
from django_convmemory.admin.finding import page_of
from django_convmemory.admin.phrases import Phrase
from django_convmemory.admin.spoken import Spoken
from django_convmemory.core.hits import Piece
from django_convmemory.core.recall import ranking
from django_convmemory.stores import searching

# Messages that are shown.
SHOWN = 20
# The newest sessions that are searched, and the last messages of each. The statement has a condition for each session
# that is longer, and SQLite takes a thousand at most.
SESSIONS, LAST = 500, 100
# The newest sessions are searched as far as their messages have so many tokens together, which bounds what is read.
TOKENS = 500_000
# The newest sessions of a person that are searched, as far as they have so many messages together.
OF_PERSON, MESSAGES = 1_000, 50_000


class Hit(NamedTuple):
    """A message that was found. ``place`` is the query of its session's page that shows it."""

    session: models.Session
    message: Spoken
    pieces: Sequence[Piece]
    place: str


@dataclasses.dataclass
class TextSearch:
    """What is found of ``text`` in the messages of ``sessions``, the rows that the user may see in the list.

    ``owners`` has the users who may be named.
    """

    sessions: QuerySet[models.Session]
    text: str
    owners: QuerySet[Any]

    @property
    def _using(self) -> str:
        return self.sessions.db

    @cached_property
    def _persons(self) -> tuple[list[models.Session], Phrase] | None:
        """The newest sessions of the person whom the text names, and what to look for. None: it names nobody."""
        person, _slash, rest = self.text.partition("/")
        phrase = Phrase.of(rest)
        if phrase is None or not person:
            return None
        owners = lists.named(self.owners, person)
        # One index or the other. With both in an OR, a database may walk all sessions.
        theirs = self.sessions.filter(owner__in=owners) if owners else self.sessions.filter(visitor=person)
        rows = self._newest(theirs, OF_PERSON)
        return (rows, phrase) if rows else None

    @cached_property
    def phrase(self) -> Phrase | None:
        """What is looked for."""
        return self._persons[1] if self._persons else Phrase.of(self.text)

    def _newest(self, sessions: QuerySet[models.Session], count: int) -> list[models.Session]:
        """Return the newest of ``sessions`` with as much as the hits show of them, the newest first."""
        columns = ("pk", "key", "title", "last_position", "unpinned_tokens")
        rows = sessions.order_by("-pk").values_list(*columns)[:count]
        return [models.Session(**dict(zip(columns, row, strict=True))) for row in rows]

    @cached_property
    def _recent(self) -> list[models.Session]:
        """The newest sessions that are searched if the text names nobody."""
        chosen: list[models.Session] = []
        tokens = 0
        for session in self._newest(self.sessions, SESSIONS):
            share = min(1, LAST / max(session.last_position, 1))
            tokens += round(session.unpinned_tokens * share)
            if chosen and tokens > TOKENS:
                break
            chosen.append(session)
        return chosen

    @cached_property
    def _searched(self) -> Any:
        """The sessions of the person as a search reads them."""
        rows = self._persons[0] if self._persons else []
        theirs = models.Session.objects.filter(pk__in=[session.pk for session in rows])
        return searching.searchable_among(self._using, theirs, max_messages=MESSAGES)

    @cached_property
    def _messages(self) -> list[Spoken]:
        if self.phrase is None:
            return []
        return self._of_person(self.phrase) if self._persons else self._of_newest(self.phrase)

    @cached_property
    def hits(self) -> list[Hit]:
        """The messages, the best or newest first."""
        if self.phrase is None:
            return []
        by_id = {session.pk: session for session in (self._persons[0] if self._persons else self._recent)}
        hits = [
            Hit(session, message, self.phrase.passage(message.text), self._place(session, message))
            for message in self._messages
            for session in [by_id[message.session_id]]
        ]
        # The index also finds neighbours of messages that match, and the database the middle of words.
        return [hit for hit in hits if any(piece.marked for piece in hit.pieces)]

    def _of_person(self, phrase: Phrase) -> list[Spoken]:
        matches = ranking.rank([session.segments for session in self._searched], phrase.query, limit=SHOWN)
        places = [(self._searched[match.session].session_id, match.position) for match in matches]
        messages = {(each.session_id, each.position): each for each in spoken.at(self._using, places)}
        # The phrase itself first, then the words. Of equal ones, the index's best one.
        return sorted(
            (messages[place] for place in places if place in messages), key=lambda each: -phrase.match(each.text)
        )

    def _of_newest(self, phrase: Phrase) -> list[Spoken]:
        if not self._recent:
            return []
        # No join: by the session's last position, a database may first read all messages of a long session.
        whole = [session.pk for session in self._recent if session.last_position <= LAST]
        conditions = [
            Q(session_id=session.pk, position__gt=session.last_position - LAST)
            for session in self._recent
            if session.last_position > LAST
        ]
        rows = models.Message.objects.using(self._using).filter(
            functools.reduce(operator.or_, conditions, Q(session_id__in=whole)), content__icontains=phrase.text
        )
        return spoken.read(rows.order_by("-session_id", "-position")[:SHOWN])[::-1]

    def _place(self, session: models.Session, message: Spoken) -> str:
        phrase = self.phrase.text if self.phrase else ""
        parameters = {"find": phrase, "before": str(page_of(session, message.position))}
        return f"?{urlencode(parameters)}"

    @property
    def scope(self) -> str:
        """What was searched, in sentences."""
        if self._persons:
            count = len(self._searched)
            text = ngettext(
                "Searched for words in %(n)s session of this person.",
                "Searched for words in the newest %(n)s sessions of this person.",
                count,
            )
            left_out = len(self._persons[0]) == OF_PERSON or not all(session.complete for session in self._searched)
            more = _("Not all messages were searched: some are not indexed yet, or there are too many.")
            return f"{text % {'n': count}} {more}" if left_out else text % {"n": count}
        count = len(self._recent)
        text = ngettext(
            "Searched for this phrase in the last %(last)s messages of the newest session.",
            "Searched for this phrase in the last %(last)s messages of each of the newest %(n)s sessions.",
            count,
        )
        hint = _("To search all sessions of a person, put the login name first, as in “anna/shellfish”.")
        return f"{text % {'n': count, 'last': LAST}} {hint}"

    @property
    def more(self) -> bool:
        """Whether there may be more messages than are shown."""
        return len(self._messages) == SHOWN
