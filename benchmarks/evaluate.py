"""Measures how many of the identifiers and dates that were said are still in the summaries of a site.

    DJANGO_SETTINGS_MODULE=mysite.settings PYTHONPATH=SITE python -m benchmarks.evaluate [--alias ALIAS] [--lost]

Identifiers are numbers of four digits or more, amounts, dates, e-mail addresses, URLs, and codes of letters and digits.
For each memory it prints how many of them the summaries keep, and for each model and prompt how many of those that a
fold was given are in the new text. It calls no model and changes nothing. ``docs/guides/evaluating.md`` describes it.
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import django
from django.apps import apps
from django.db.models import QuerySet

if not apps.ready:
    django.setup()

from django_convmemory import models
from django_convmemory.fold import identifiers
from django_convmemory.management.choices import counted, printable
from django_convmemory.memory import memories
from django_convmemory.search import ranking, searching, tokenizer
from django_convmemory.store import columns
from django_convmemory.store.orm import ORMStore

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
        read = ORMStore(session._state.db).read_index(session.session_name, before=None, epoch=None)
        self._segments = searching.searchable(read).segments if read is not None else ()
        self._searches = 0
        self._positions: dict[str, set[int]] = {}
        for position, mentioned in said:
            for identifier in mentioned:
                self._positions.setdefault(identifier, set()).add(position)

    def finds(self, identifier: str) -> bool | None:
        self._searches += 1
        if self._searches > _MOST_SEARCHES:
            return None
        matches = ranking.rank([self._segments], tokenizer.query(identifier), limit=_BEST)
        return any(match.position in self._positions[identifier] for match in matches)


def _chain(session: models.Session) -> list[models.Summary]:
    """Return the versions from which the current one was made, and it, in order."""
    rows: QuerySet[models.Summary] = models.Summary.objects.using(session._state.db).filter(session=session)
    versions = {row.version: row for row in rows}
    chain: list[models.Summary] = []
    version = versions.get(session.current_version)
    while version is not None:
        chain.append(version)
        # A damaged row may name itself or a later one, and must not end in a loop.
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures of each memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluate", description=__doc__.split("\n")[0])
    parser.add_argument("--alias", action="append", help="Only the memory with this alias (default: all).")
    parser.add_argument(
        "--limit", type=int, default=100, help="Sessions of each memory, the newest first (%(default)s)."
    )
    parser.add_argument("--lost", action="store_true", help="List each identifier that was lost, and where.")
    options = parser.parse_args(arguments)
    for alias in options.alias or memories:
        evaluations = list(_evaluations(alias, options.limit))
        print(_text(alias, _figures(evaluations), lost=options.lost))


def _evaluations(alias: str, limit: int) -> Iterator[Evaluation]:
    sessions = models.Session.objects.filter(alias=alias, current_version__gt=0)
    for session in sessions.order_by("-updated_at", "-pk")[: max(0, limit)]:
        evaluation = evaluate(session)
        if evaluation is not None:
            yield evaluation


def _figures(evaluations: list[Evaluation]) -> dict[str, Any]:
    return {
        "sessions": len(evaluations),
        "said": sum(evaluation.said for evaluation in evaluations),
        "in_text": sum(evaluation.in_text for evaluation in evaluations),
        "in_line": sum(evaluation.in_line for evaluation in evaluations),
        "lost": [
            {"session_id": evaluation.session_id, **lost._asdict()}
            for evaluation in evaluations
            for lost in evaluation.lost
        ],
        "folds": _by_prompt(fold for evaluation in evaluations for fold in evaluation.folds),
    }


@dataclasses.dataclass
class _Group:
    model: str
    prompt_hash: str
    versions: int = 0
    given: int = 0
    kept: int = 0
    tokens: int = 0


def _by_prompt(folds: Iterable[Fold]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], _Group] = {}
    for fold in folds:
        group = groups.setdefault((fold.model, fold.prompt_hash), _Group(fold.model, fold.prompt_hash))
        group.versions += 1
        group.given += fold.given
        group.kept += fold.kept
        group.tokens += fold.tokens
    return [dataclasses.asdict(group) for _, group in sorted(groups.items())]


def _text(alias: str, figures: dict[str, Any], *, lost: bool) -> str:
    said, losses = figures["said"], figures["lost"]
    lines = [f"{alias}: {counted(figures['sessions'], 'session')} with a summary, {counted(said, 'identifier')} said"]
    for name, count in (
        ("in the model's text", figures["in_text"]),
        ("in the line of identifiers", figures["in_line"]),
        ("lost", len(losses)),
    ):
        lines.append(f"  {name}: {count}{_share(count, said)}")
    for group in figures["folds"]:
        given, kept, versions = group["given"], group["kept"], group["versions"]
        lines.append(
            f"  {printable(group['model'])}, prompt {printable(group['prompt_hash'][:8])}: kept {kept} of {given}"
            f"{_share(kept, given)} in {counted(versions, 'fold')}, {group['tokens'] / versions:.0f} tokens each"
        )
    searched = [entry["found"] for entry in losses if entry["found"] is not None]
    if searched:
        lines.append(
            f"  lost, but found by a search: {sum(searched)} of {len(searched)}{_share(sum(searched), len(searched))}"
        )
    if lost:
        lines += [
            f"  session {entry['session_id']}: {printable(entry['identifier'])}, last said at {entry['position']}, "
            f"lost in version {entry['version']} "
            f"({printable(entry['model'])}, prompt {printable(entry['prompt_hash'][:8])})"
            f"{', found by a search' if entry['found'] else ''}"
            for entry in losses
        ]
    return "\n".join(lines)


def _share(count: int, total: int) -> str:
    return f" ({count / total:.0%})" if total else ""


if __name__ == "__main__":
    main()
