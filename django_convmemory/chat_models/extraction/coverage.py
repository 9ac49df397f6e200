"""The choice of the statements that say most of a conversation in few tokens.

It is the budgeted greedy of Lin and Bilmes, "A Class of Submodular Functions for Document Summarization" (2011), over
the concepts that are covered, with their reward for diversity: each fold of the conversation is a cluster, and what a
statement adds is divided by what its fold has told already (the slope of a logarithm). The first sentence of a fold is
therefore worth more than the second of another, and old folds keep their place however many come after them. Covered
concepts are worth nothing again, which is what removes redundancy: no step compares pairs of sentences.
"""

from __future__ import annotations

import dataclasses
import hashlib
import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from django_convmemory.chat_models.extraction import concepts, statements

# How much a statement's length counts against it: 0 not at all, 1 chooses by concepts per token.
_LENGTH_EXPONENT = 0.85
# The newest fold is sure of twice its equal part of the cap, but of no more than this; beyond, it competes.
_NEWEST_SHARE = 0.15
# A statement of whose concepts a smaller part than this is new repeats what was chosen.
_NOVELTY = 0.2
# An answer with fewer concepts than this is not understood without its question.
_ELLIPTIC = 3
# Picks go on beyond the cap by this factor, because the costs are estimates and lines share their labels.
_SLACK = 1.5

# What a sentence's form says of its use in a summary, as factors: a question asks for what its answer says; a sentence
# that begins with a pronoun points at one that may be missing; one to "you" is mostly encouragement; one about "I" is
# what happened to the speaker, or what they want.
_QUESTION = re.compile(r"[?？][\"'”’」』）)]*\Z")
_FORMS = (
    (0.5, _QUESTION),
    (0.7, re.compile(r"\A(?:it|its|they|them|their|he|she|that|this|these|those|and|but|or|plus)\b", re.IGNORECASE)),
    (0.7, re.compile(r"\b(?:you|your|yours|yourself|ya)\b", re.IGNORECASE)),
    (1.2, re.compile(r"\A(?:I|My|We|Our)\b")),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A statement that may be chosen.

    ``index`` is its place in the conversation; ``weights`` those of its concepts; ``cost`` an estimate of its tokens,
    its speaker's label included; ``factor`` what its form says of its use; ``question`` the index of the statement that
    it is the answer to, where it is not understood without it. Of candidates that are worth the same the one of lower
    ``rank`` is chosen: a hash of the text, so that neither old nor new ones go first.
    """

    index: int
    fold: int
    weights: Mapping[str, float]
    cost: int
    factor: float
    question: int | None
    rank: bytes


def candidates(said: Sequence[statements.Statement], cost: Callable[[statements.Statement], int]) -> list[Candidate]:
    """Return the candidates for ``said``, one each and in order; ``cost`` tells the tokens of a statement alone."""
    speakers = frozenset(word.lower() for speaker in {one.speaker for one in said} for word in speaker.split())
    found = [concepts.of(statement.text, speakers) for statement in said]
    weights = concepts.weights(found)
    return [
        Candidate(
            index=index,
            fold=statement.fold,
            weights={concept: weights[concept] for concept in concepts_.all},
            cost=max(1, cost(statement)),
            factor=math.prod(factor for factor, form in _FORMS if form.search(statement.text)),
            question=index - 1 if len(concepts_.all) < _ELLIPTIC and _answers(said, index) else None,
            rank=hashlib.sha256(statement.text.encode()).digest(),
        )
        for index, (statement, concepts_) in enumerate(zip(said, found, strict=True))
    ]


def _answers(said: Sequence[statements.Statement], index: int) -> bool:
    """Whether the statement at ``index`` answers a question of another speaker right before it."""
    if index == 0:
        return False
    before, statement = said[index - 1], said[index]
    return before.fold == statement.fold and before.speaker != statement.speaker and bool(_QUESTION.search(before.text))


def choose(pool: Sequence[Candidate], max_tokens: int) -> list[list[int]]:
    """Return the indices of what to tell, best first: each a statement, with its question where it needs it.

    The costs of the first ones make ``max_tokens``; some more follow, for the caller to fill what remains when it
    counts exactly. Statements that say nothing are not among them.
    """
    if not pool:
        return []
    newest = pool[-1].fold
    choice = _Choice(pool)
    picks: list[list[int]] = []
    if pool[0].fold != newest:
        recent = [candidate for candidate in pool if candidate.fold == newest]
        folds = len({candidate.fold for candidate in pool})
        picks += choice.greedy(recent, max_tokens, min(_NEWEST_SHARE, 2 / folds) * max_tokens)
    return picks + choice.greedy(pool, max_tokens, _SLACK * max_tokens)


class _Choice:
    """What is chosen so far, and what one more statement would add."""

    def __init__(self, pool: Sequence[Candidate]) -> None:
        self.pool = pool
        self.covered: set[str] = set()
        self.chosen: set[int] = set()
        self.told: dict[int, float] = {}
        self.cost = 0

    def greedy(self, pool: Iterable[Candidate], largest: float, until: float) -> list[list[int]]:
        """Choose of ``pool`` the best statement again and again until ``until`` tokens are spent; return the picks.

        What a statement adds only falls as others are chosen. So a heap of stale values needs to look again at its top
        alone (Minoux's accelerated greedy, 1978): one heap of the statements of each fold, one of the folds.
        """
        heaps: dict[int, list[tuple[float, bytes, int]]] = {}
        for one in pool:
            if one.index not in self.chosen and self._cost(one) <= largest:
                heaps.setdefault(one.fold, []).append((-self._merit(one), one.rank, one.index))
        folds = []
        for fold, heap in heaps.items():
            heapq.heapify(heap)
            folds.append((*self._best(heap), fold))
        heapq.heapify(folds)
        picks: list[list[int]] = []
        while folds and self.cost < until:
            *_, fold = heapq.heappop(folds)
            best = self._best(heaps[fold])
            if not best[0]:
                continue
            if not folds or best <= folds[0][:2]:
                *_, index = heapq.heappop(heaps[fold])
                picks.append(self._take(self.pool[index]))
                best = self._best(heaps[fold])
            heapq.heappush(folds, (*best, fold))
        return picks

    def _best(self, heap: list[tuple[float, bytes, int]]) -> tuple[float, bytes]:
        """Bring the best statement of a fold to the top of its ``heap``; return its value, negated, and its rank.

        The value is 0 where none is left.
        """
        while heap:
            _, rank, index = heap[0]
            merit = 0.0 if index in self.chosen else self._merit(self.pool[index])
            if merit <= 0:
                heapq.heappop(heap)
            elif len(heap) > 1 and (-merit, rank, index) > min(heap[1:3]):
                heapq.heapreplace(heap, (-merit, rank, index))
            else:
                return -merit / (1 + self.told.get(self.pool[index].fold, 0.0)), rank
        return 0.0, b""

    def _merit(self, candidate: Candidate) -> float:
        """Return what ``candidate`` adds for its length; 0 where it repeats what is chosen."""
        new = sum(concept not in self.covered for concept in candidate.weights)
        if new <= _NOVELTY * len(candidate.weights):
            return 0.0
        return self._novelty(candidate) * candidate.factor / math.pow(self._cost(candidate), _LENGTH_EXPONENT)

    def _novelty(self, candidate: Candidate) -> float:
        return sum(weight for concept, weight in candidate.weights.items() if concept not in self.covered)

    def _cost(self, candidate: Candidate) -> int:
        if candidate.question is None or candidate.question in self.chosen:
            return candidate.cost
        return candidate.cost + self.pool[candidate.question].cost

    def _take(self, candidate: Candidate) -> list[int]:
        self.cost += self._cost(candidate)
        self.told[candidate.fold] = self.told.get(candidate.fold, 0.0) + self._novelty(candidate) * candidate.factor
        taken = [candidate.index]
        if candidate.question is not None and candidate.question not in self.chosen:
            taken.insert(0, candidate.question)
        for index in taken:
            self.chosen.add(index)
            self.covered.update(self.pool[index].weights)
        return taken
