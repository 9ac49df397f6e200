"""Measures what summaries keep: which identifiers that were said are still in them, and where the others went.

It needs no model. See :mod:`.core.identifiers` for what counts as an identifier.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from django.db.models import QuerySet

from django_convmemory import models
from django_convmemory.core import identifiers
from django_convmemory.core.recall import queries, ranking
from django_convmemory.stores import columns
from django_convmemory.stores.orm import ORMStore

# A search for a lost identifier should have a message with it among so many hits.
_BEST = 10
_MOST_SEARCHES = 500
_RUN = re.compile(r"[a-z0-9]+")


class Lost(NamedTuple):
    """An identifier that the summary lacks: where it was last said, and the version that was the first without it.

    ``model`` and ``prompt_hash`` are those of that version. ``found``: a search for the identifier finds a message that
    has it, among the ten best. None: it was not searched, because 500 others of the session were.
    """

    identifier: str
    position: int
    version: int
    model: str
    prompt_hash: str
    found: bool | None


class Fold(NamedTuple):
    """What one version kept of the identifiers in the version before and in its own messages.

    Only the text of the model counts, and not the line that shows what it left out.
    """

    version: int
    model: str
    prompt_hash: str
    tokens: int
    given: int
    kept: int


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """What the current summary of a session keeps of the ``said`` identifiers of the messages that it covers.

    ``in_text`` are those that the model kept, and ``in_line`` those that only the last line has.
    """

    session_id: int
    said: int
    in_text: int
    in_line: int
    lost: list[Lost]
    folds: list[Fold]


def evaluate(session: models.Session) -> Evaluation | None:
    """Return what the summary of ``session`` keeps, or None if it has no summary."""
    chain = _chain(session)
    if not chain:
        return None
    said = _said(session, chain[-1].last_position)
    last_said = {identifier: position for position, mentioned in said for identifier in mentioned}
    finder = _Finder(last_said)
    held = [finder.within(version.text) for version in chain]
    in_text = finder.within(chain[-1].value.model_text)
    last_held = {identifier: number for number, found in enumerate(held) for identifier in found}
    ends = [version.last_position for version in chain[:-1]]
    lost = []
    finds = _Search(session, said)
    for identifier, position in last_said.items():
        if identifier not in held[-1] and identifier not in in_text:
            # The first version after all that have it, and not before it was said.
            first = chain[max(last_held.get(identifier, -1) + 1, bisect.bisect_left(ends, position))]
            lost.append(
                Lost(identifier, position, first.version, first.model, first.prompt_hash, finds.finds(identifier))
            )
    in_line = len(held[-1] - in_text)
    return Evaluation(session.pk, len(last_said), len(in_text), in_line, lost, list(_folds(chain, said, finder)))


class _Finder:
    """Finds out which of many ``identifiers`` are in a text, without a look at each of them."""

    def __init__(self, said: Iterable[str]) -> None:
        # By their first run of letters and digits: a text with the identifier has it as a run, too.
        self._by_run: dict[str, list[str]] = {}
        for identifier in said:
            match = _RUN.search(identifier.casefold())
            self._by_run.setdefault(match[0] if match else "", []).append(identifier)

    def within(self, text: str) -> set[str]:
        runs = {"", *_RUN.findall(text.casefold())}
        candidates = itertools.chain.from_iterable(self._by_run.get(run, ()) for run in runs)
        return {identifier for identifier in candidates if identifiers.contains(text, identifier)}


class _Search:
    """Finds out whether a search in ``session`` finds a message that ``said`` names for an identifier."""

    def __init__(self, session: models.Session, said: Iterable[tuple[int, list[str]]]) -> None:
        searchable = ORMStore(session._state.db).searchable(session.session_name)
        self._segments = searchable.segments if searchable is not None else ()
        self._searches = 0
        self._positions: dict[str, set[int]] = {}
        for position, mentioned in said:
            for identifier in mentioned:
                self._positions.setdefault(identifier, set()).add(position)

    def finds(self, identifier: str) -> bool | None:
        self._searches += 1
        if self._searches > _MOST_SEARCHES:
            return None
        matches = ranking.rank([self._segments], queries.query(identifier), limit=_BEST)
        return any(match.position in self._positions[identifier] for match in matches)


def _chain(session: models.Session) -> list[models.Summary]:
    """Return the versions from which the current one was made, and it, in order."""
    rows: QuerySet[models.Summary] = models.Summary.objects.using(session._state.db).filter(session=session)
    versions = {row.version: row for row in rows}
    chain: list[models.Summary] = []
    version = versions.get(session.current_version)
    while version is not None:
        chain.append(version)
        # An old version may have been pruned. A damaged row may name itself or a later one, and must not end in a loop.
        parent = version.parent_version or 0
        version = versions.get(parent) if parent < version.version else None
    return chain[::-1]


def _said(session: models.Session, last_position: int) -> list[tuple[int, list[str]]]:
    """Return the identifiers of the messages through ``last_position``, each with the position of its message."""
    rows = models.Message.objects.using(session._state.db).filter(session=session, position__lte=last_position)
    spoken = rows.filter(role__in=identifiers.ROLES, redacted_at__isnull=True).order_by("position")
    said = ((row.position, columns.message_of_row(row)) for row in spoken.iterator(chunk_size=1000))
    return [(position, identifiers.mentioned(message.text)) for position, message in said]


def _folds(chain: list[models.Summary], said: list[tuple[int, list[str]]], finder: _Finder) -> Iterator[Fold]:
    positions = [position for position, _ in said]
    in_previous: set[str] = set()
    for version in chain:
        first = bisect.bisect_left(positions, version.first_position)
        last = bisect.bisect_right(positions, version.last_position)
        given = in_previous.union(*(mentioned for _, mentioned in said[first:last]))
        in_text = finder.within(version.value.model_text)
        # No model was asked for a version that was carried over, and a part has not seen the whole message.
        if given and not version.carried and version.part_end is None:
            kept = len(given & in_text)
            yield Fold(version.version, version.model, version.prompt_hash, version.tokens, len(given), kept)
        in_previous = in_text
