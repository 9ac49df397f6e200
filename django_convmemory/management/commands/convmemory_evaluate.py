"""Measures how many of the identifiers and dates that were said are still in the summaries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_convmemory import models
from django_convmemory.maintenance.evaluate import Evaluation, Fold, evaluate
from django_convmemory.management import choices, interrupts
from django_convmemory.management.progress import counted, printable


class Command(BaseCommand):
    """``manage.py convmemory_evaluate``: compares summaries with the messages that they stand for. It needs no model.

    Identifiers are numbers of four digits or more, amounts, dates, e-mail addresses, URLs, and codes of letters and
    digits. For each memory the command shows how many of them the summaries keep, and for each model and prompt how
    many of those that a fold was given are in the new text.
    """

    help = "Show how many of the identifiers and dates that were said are still in the summaries."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        choices.add_aliases(parser)
        choices.add_database(parser)
        parser.add_argument(
            "--limit",
            type=int,
            default=100,
            help="How many sessions of each memory to look at: those with the newest changes (default: %(default)s).",
        )
        parser.add_argument("--lost", action="store_true", help="List each identifier that was lost, and where.")
        parser.add_argument("--json", action="store_true", help="Print JSON: an object with an entry for each alias.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Evaluate the sessions, and print the figures of each alias."""
        using = choices.database(options)
        with interrupts.explained("Nothing was changed. To evaluate again, run the command again."):
            figures = {
                alias: _figures(list(_evaluations(alias, using, options["limit"])))
                for alias in choices.aliases(options, using)
            }
        if options["json"]:
            self.stdout.write(json.dumps(figures, ensure_ascii=False, indent=2))
        else:
            texts = [_text(alias, values, lost=options["lost"]) for alias, values in figures.items()]
            self.stdout.write("\n\n".join(texts))


def _evaluations(alias: str, using: str, limit: int) -> Iterator[Evaluation]:
    sessions = models.Session.objects.using(using).filter(alias=alias, current_version__gt=0)
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
