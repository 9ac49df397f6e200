"""Looks for a phrase in a session: where it was said, and what became of it in the versions of the summary.

It takes at most four statements, however long the session is: the index of recall, the messages that it names, those
that are not in it, and the versions.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.db.models.functions import Left
from django.utils.functional import cached_property
from django.utils.http import urlencode
from django.utils.translation import gettext as _, gettext_lazy

from django_convmemory import models
from django_convmemory.admin import spoken
from django_convmemory.admin.phrases import Match, Phrase
from django_convmemory.admin.spoken import Spoken
from django_convmemory.core.context import Context
from django_convmemory.core.hits import Piece
from django_convmemory.core.indexable import MOST_UNINDEXED
from django_convmemory.core.recall import postings
from django_convmemory.core.recall.postings import Searched
from django_convmemory.core.values import Searchable
from django_convmemory.maintenance import explain
from django_convmemory.maintenance.explain import Disposition
from django_convmemory.stores import searching

# Messages with the phrase or with all its words that are shown: the first ones and the last ones, half of each.
SHOWN = 20
# Other messages that are shown if there are fewer than this with all words.
OTHERS = 5
# Messages with all words that are read: the first ones and the last ones, half of each.
READ = 200
# The newest messages that are read if the index does not have them.
UNINDEXED = 2_000
# The newest versions that are read, and characters of each.
VERSIONS, MAX_TEXT = 1_000, 20_000
# Runs of versions with the phrase that are named, the newest ones.
RUNS = 6
# Messages after the one that a link leads to.
AFTER = 10

HEADINGS = {
    Match.PHRASE: gettext_lazy("The phrase itself"),
    Match.WORDS: gettext_lazy("All its words"),
    Match.LESS: gettext_lazy("Some of its words"),
}


class Step(NamedTuple):
    """A part of the answer, and the address of the place that it names, or an empty text."""

    text: str
    url: str = ""


class Hit(NamedTuple):
    """A message that was found, and what became of it."""

    message: Spoken
    steps: Sequence[Step]
    pieces: Sequence[Piece]


class Run(NamedTuple):
    """Neighbouring versions that were shown with all words of the phrase. ``whole``: one has the phrase itself."""

    first: int
    last: int
    whole: bool
    first_url: str
    last_url: str


class Version(NamedTuple):
    """A version of the summary, and how its text matches, or None if it is not shown or was emptied."""

    number: int
    first_position: int
    last_position: int
    folds: bool
    match: Match | None

    @property
    def has_words(self) -> bool:
        return self.match is not None and self.match >= Match.WORDS


@dataclasses.dataclass
class Finding:
    """What is found of ``phrase`` in ``session``. ``context`` is what a model is sent now."""

    session: models.Session
    phrase: Phrase
    context: Context
    using: str

    @cached_property
    def groups(self) -> list[tuple[Any, list[Hit]]]:
        """The messages that are shown, by how they match, each group with its heading."""
        messages = [message for group in self._shown for message in group]
        ends = [(last, number) for _, last, number in sorted(explain.current_line(self._folds))]
        rows = [(message.position, message.role, message.tokens) for message in messages]
        explained = explain.explained(sorted(rows), self.context, ends)
        dispositions = {entry.position: entry for entry in explained}
        return [
            (
                HEADINGS[match],
                [
                    Hit(message, list(self._steps(dispositions[message.position])), self.phrase.passage(message.text))
                    for message in group
                ],
            )
            for match, group in zip(reversed(Match), self._shown, strict=True)
            if group
        ]

    @property
    def hidden(self) -> int:
        """How many messages have all words of the phrase and are not shown."""
        return max(0, self._having_words - sum(len(group) for group in self._shown[:2]))

    # The messages.

    @cached_property
    def _searchable(self) -> Searchable | None:
        """The index, or None if it has none of the words."""
        if self.phrase.query.empty:
            return None
        return searching.searchable(self.using, self.session.session_name, before=None, epoch=None)

    @cached_property
    def _searched(self) -> Searched | None:
        """The messages that have words of the phrase by the index, in any form of these, or None without an index."""
        if self._searchable is None:
            return None
        return postings.read([self._searchable.segments], self.phrase.query, after=None, before=None)

    @cached_property
    def _positions(self) -> list[int]:
        """The positions of the messages that have all words by the index."""
        if self._searched is None:
            return []
        positions = []
        for part in self._searched.parts:
            if len(part.postings) == len(self._searched.having):
                offsets = set.intersection(*(set(offsets) for _word, offsets, _repetitions in part.postings))
                positions += [part.first + offset for offset in sorted(offsets)]
        return positions

    @cached_property
    def _best(self) -> list[int]:
        """If few messages have all words, the best that have some of them by the index, the best first.

        This is not the ranking of :mod:`.recall.ranking`, which would read the index a second time.
        """
        if self._searched is None or len(self._positions) >= OTHERS:
            return []
        weights = [math.log(1 + self._searched.messages / having) if having else 0 for having in self._searched.having]
        scores: dict[int, float] = collections.defaultdict(float)
        for part in self._searched.parts:
            for word, offsets, _repetitions in part.postings:
                for offset in offsets:
                    scores[part.first + offset] += weights[word]
        return heapq.nlargest(OTHERS, scores, key=lambda position: (scores[position], position))

    @cached_property
    def _read(self) -> list[Spoken]:
        """The messages that may match, in order."""
        positions = {*_ends(self._positions, READ), *self._best}
        # The index has no pinned messages.
        positions |= {pinned.position for pinned in _ends(models.read_pinned(self.session.pinned), READ)}
        messages = spoken.at(self.using, [(self.session.pk, position) for position in sorted(positions)])
        if self._unindexed_after is not None:
            rows = models.Message.objects.using(self.using).filter(
                session=self.session, position__gt=self._unindexed_after, content__icontains=self.phrase.text
            )
            messages += spoken.read(rows.order_by("-session_id", "-position")[:READ])
        return sorted({message.position: message for message in messages}.values())

    @cached_property
    def _unindexed_after(self) -> int | None:
        """The position after which texts are read as they are, because the index cannot answer. None: it can."""
        last = self.session.last_position
        if self.phrase.query.empty:
            return max(0, last - UNINDEXED)
        if self._searchable is None or self._searchable.complete:
            return None
        return max(self.session.indexed_position, last - UNINDEXED)

    @cached_property
    def _matches(self) -> dict[Match, list[Spoken]]:
        matches: dict[Match, list[Spoken]] = {match: [] for match in Match}
        by_index = set(self._positions)
        for message in self._read:
            match = self.phrase.match(message.text)
            # The index also finds other forms of the words.
            if match == Match.LESS and message.position in by_index:
                match = Match.WORDS
            matches[match].append(message)
        return matches

    @property
    def _having_words(self) -> int:
        """How many messages have all words. Those beyond ``READ`` are counted by the index alone."""
        unread = len(self._positions) - len(_ends(self._positions, READ))
        return unread + sum(len(self._matches[match]) for match in (Match.PHRASE, Match.WORDS))

    @cached_property
    def _shown(self) -> list[list[Spoken]]:
        """The messages that are shown: those with the phrase, those with all words, and others."""
        whole = _ends(self._matches[Match.PHRASE], SHOWN)
        words = _ends(self._matches[Match.WORDS], SHOWN - len(whole))
        others = {message.position: message for message in self._matches[Match.LESS]}
        best = [others[position] for position in self._best if position in others]
        return [whole, words, best[: max(0, OTHERS - len(whole) - len(words))]]

    # The versions.

    @cached_property
    def versions(self) -> list[Version]:
        """The newest versions, the newest first."""
        rows = models.Summary.objects.using(self.using).filter(session=self.session).order_by("-version")
        columns = ("version", "first_position", "last_position", "building", "part_end", "invalidated_at")
        versions = []
        for number, first, last, building, part_end, invalidated_at, text in rows.values_list(
            *columns, Left("text", MAX_TEXT)
        )[:VERSIONS]:
            finished = not building and part_end is None
            folds = finished and invalidated_at is None and number <= self.session.current_version
            match = self.phrase.match(text) if finished and text else None
            versions.append(Version(number, first, last, folds, match))
        return versions

    @property
    def _folds(self) -> Iterator[tuple[int, int, int]]:
        return ((entry.first_position, entry.last_position, entry.number) for entry in self.versions if entry.folds)

    @cached_property
    def _readable(self) -> list[Version]:
        """The versions that contexts have shown and that still have a text, the oldest first."""
        return [version for version in reversed(self.versions) if version.match is not None]

    @cached_property
    def runs(self) -> list[Run]:
        """The versions with all words of the phrase."""
        runs = []
        for having, group in itertools.groupby(self._readable, key=lambda version: version.has_words):
            if having:
                numbers = list(group)
                first, last = numbers[0].number, numbers[-1].number
                whole = any(version.match == Match.PHRASE for version in numbers)
                runs.append(Run(first, last, whole, self._version_url(first), self._version_url(last)))
        return runs

    @property
    def newest_runs(self) -> list[Run]:
        return self.runs[-RUNS:]

    @property
    def hidden_runs(self) -> int:
        return len(self.runs) - len(self.newest_runs)

    # The answer.

    def _steps(self, explained: explain.Explained) -> Iterator[Step]:
        """Yield what became of a message."""
        position, version = explained.position, explained.version
        yield Step(_("message %(position)s") % {"position": position}, self._message_url(position))
        if explained.disposition is not Disposition.FOLDED:
            yield Step(
                {
                    Disposition.PINNED: _("pinned: in every context"),
                    Disposition.VERBATIM: _("verbatim in the context"),
                    Disposition.OMITTED: _("omitted: the context is full"),
                }[explained.disposition]
            )
        elif version is None:
            yield Step(_("folded"))
        else:
            yield Step(_("folded into version %(version)s") % {"version": version}, self._version_url(version))
            yield from self._fate(version)

    def _fate(self, folded_into: int) -> Iterator[Step]:
        """Yield through which version the words of a message stayed, from the one that folded it on."""
        later = [version for version in self._readable if version.number >= folded_into]
        if not later or later[0].number != folded_into:
            yield Step(_("the text of this version was removed"))
            return
        kept = list(itertools.takewhile(lambda version: version.has_words, later))
        if not kept:
            yield Step(_("some of the words are not in it"))
            return
        last = kept[-1].number
        if last == self.session.current_version:
            yield Step(_("still in version %(version)s, the current one") % {"version": last}, self._version_url(last))
            return
        yield Step(_("last in version %(version)s") % {"version": last}, self._version_url(last))
        if len(kept) < len(later):
            dropped = later[len(kept)].number
            yield Step(_("dropped in version %(version)s") % {"version": dropped}, self._version_url(dropped))

    def _message_url(self, position: int) -> str:
        return self._url(f"m{position}", before=page_of(self.session, position))

    def _version_url(self, number: int) -> str:
        return self._url("convmemory-summaries", version=number)

    def _url(self, element_id: str, **parameters: int) -> str:
        return f"?{urlencode([('find', self.phrase.text), *parameters.items()])}#{element_id}"

    # What was not searched.

    @property
    def notes(self) -> list[str]:
        """What was left out, in sentences."""
        notes = []
        if len(self._positions) > READ:
            text = _(
                "The index lists %(n)s messages with all the words. Only the first %(half)s and the last %(half)s of "
                "them were checked for the phrase itself."
            )
            notes.append(text % {"n": len(self._positions), "half": READ // 2})
        if self.phrase.query.empty:
            text = _("The index has none of these words, so only the newest %(n)s messages were searched.")
            notes.append(text % {"n": UNINDEXED})
        elif self._unindexed_after is not None:
            text = _(
                "The messages after position %(position)s are not in the index yet. Of these, the newest %(n)s were "
                "searched for the phrase itself, and the newest %(few)s for its words."
            )
            values = {"position": self.session.indexed_position, "n": UNINDEXED, "few": MOST_UNINDEXED}
            notes.append(text % values)
        if len(self.versions) == VERSIONS:
            text = _("Only the newest %(n)s versions of the summary were searched.")
            notes.append(text % {"n": VERSIONS})
        return notes


def page_of(session: models.Session, position: int) -> int:
    """Return ``before`` of a page that shows the message at ``position`` and a few after it."""
    return min(position + AFTER, session.last_position) + 1


def _ends(sequence: Sequence[Any], count: int) -> list[Any]:
    """Return ``sequence``, or its first and last items, ``count`` in all."""
    if len(sequence) <= count:
        return list(sequence)
    first = count - count // 2
    return [*sequence[:first], *sequence[len(sequence) - count // 2 :]]
