"""Reranking: a second judgement of the best matches that the words of a query have found.

The words choose, and the reranker only changes the order of what they chose. Only searches use it. The quotes of a
context come from the words alone: they stay the same between two folds, and no prompt waits for a model.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from django_convmemory.search.ranking import Match

logger = logging.getLogger(__name__)

# So many matches are judged. The others keep their places, after them.
MOST = 200


class Found(NamedTuple):
    """A match of a search: a message, and how well the words match. Scores compare only within one search."""

    session_id: int
    position: int
    score: float


class Reranker(Protocol):
    """Judges what a search has found. It limits its own time: the search waits for it."""

    def rerank(self, query: str, found: Sequence[Found]) -> Sequence[float]:
        """Return a score for each match, the best of which comes first. An error keeps the order of the words."""

    def prepare(self, session_id: int) -> None:
        """Make ready what later searches of the session need. A worker calls it whenever it has worked on a session."""


def reranked(reranker: Reranker, query: str, matches: Sequence[Match], session_ids: Sequence[int]) -> list[Match]:
    """Return ``matches`` with the first ``MOST`` in the order of the reranker. Equal ones keep their order."""
    first, rest = matches[:MOST], matches[MOST:]
    try:
        scores = reranker.rerank(query, [Found(session_ids[at], position, score) for at, position, score, _ in first])
        judged = [match._replace(score=float(score)) for match, score in zip(first, scores, strict=True)]
        if not all(math.isfinite(match.score) for match in judged):
            raise ValueError("A score of the reranker is NaN or infinity.")
        return [*sorted(judged, key=lambda match: match.score, reverse=True), *rest]
    except Exception:
        logger.exception("The reranker failed, so a search has the order of the words: %r", reranker)
        return list(matches)


def prepare(reranker: Reranker, session_id: int) -> None:
    """Let the reranker prepare a session. An error is only logged."""
    try:
        reranker.prepare(session_id)
    except Exception:
        logger.exception("The reranker could not prepare session %s: %r", session_id, reranker)
