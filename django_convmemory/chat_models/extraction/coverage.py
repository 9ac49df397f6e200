"""Chooses the statements that cover most of a conversation in few tokens.

The algorithm is the budgeted greedy of Lin and Bilmes, "A Class of Submodular Functions for Document Summarization"
(2011). It maximizes the weight of the covered concepts, with their reward for diversity:

- A covered concept is worth nothing a second time. This removes redundancy without a comparison of pairs of sentences.
- Each fold of the conversation is a cluster. The value of a statement is divided by the value already chosen from its
  fold, which is the slope of a logarithm. So the first sentence of a fold is worth more than the second of another, and
  old folds keep their place however many follow.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import heapq
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from django_convmemory.chat_models.extraction import concepts, statements

# The penalty of a statement's length: 0 is none, and 1 chooses by concepts per token.
_LENGTH_EXPONENT = 0.85
# The newest fold is sure of twice its equal part of the token limit, but at most of this part. Then it competes.
_NEWEST_SHARE = 0.15
# A statement repeats the chosen ones if no larger part of its concepts than this is new.
_NOVELTY = 0.2
# An answer with fewer concepts than this is not understood without its question. One with a number needs fewer: "The
# number is 555-0199" says what the number is.
_ELLIPTIC = 3
_ELLIPTIC_WITH_NUMBER = 2
# Picks go beyond the token limit by this factor, because costs are estimates and statements may share a label.
_SLACK = 1.5

# In a summary of several folds, facts outlast the rest. In a single fold, only identifiers count as facts. The first
# weight adds to that of the concepts, and falls with the value already chosen from the fold. The second does not fall,
# so a fold may keep many facts.
_FACT_WEIGHT = 5.0
_FACT_ALONE = 2.0
_IDENTIFIER = 2.0

# Factors for the form of a sentence:
# - The answer to a question says more than the question.
# - A sentence that begins with a pronoun refers to a sentence that may be missing.
# - A sentence to "you" is mostly encouragement.
# - A sentence that begins with "I" or "we" tells what happened to the speaker, or what they want.
_QUESTION_FACTOR = 0.5
_FORMS = (
    (0.7, re.compile(r"\A(?:it|its|they|them|their|he|she|that|this|these|those|and|but|or|plus)\b", re.IGNORECASE)),
    (0.7, re.compile(r"\b(?:you|your|yours|yourself|ya)\b", re.IGNORECASE)),
    (1.2, re.compile(r"\A(?:I|My|We|Our)\b")),
)


class Candidate(NamedTuple):
    """A statement that may be chosen.

    - ``place`` is its place in the conversation.
    - ``weights`` are the weights of its concepts.
    - ``cost`` is an estimate of its tokens, with the speaker's label.
    - ``factor`` is the factor for its form.
    - ``question`` is the index of the question that it answers, if it is not understood without the question.
    - ``day`` is the day on which it was said, or None.
    - ``fact`` is its value as a lasting fact.
    - ``identifies`` says that it tells an identifier: a phone number, an address of mail, the number of an order.
    - ``idle`` says that it is chosen only if all others fit: a greeting, or a question that is asked again.
    - ``rank`` decides between candidates of the same value: the lower one is chosen. It is a hash of the text, so that
      neither old nor new statements are preferred.
    """

    place: int
    fold: int
    weights: Mapping[str, float]
    cost: int
    factor: float
    question: int | None
    day: dt.date | None
    fact: float
    identifies: bool
    idle: bool
    rank: bytes


class Pick(NamedTuple):
    """The indices of a statement, after its question if it needs the question, and an estimate of their tokens."""

    indices: list[int]
    cost: int


def candidates(spoken: Sequence[statements.Statement], cost: Callable[[statements.Statement], int]) -> list[Candidate]:
    """Return a candidate for each statement, in order. ``cost`` returns the tokens of one statement without its day."""
    speakers = {statement.speaker for statement in spoken}
    labels = frozenset(word.lower() for speaker in speakers for word in speaker.split())
    contents = [concepts.of(statement.text, labels) for statement in spoken]
    weights = concepts.weights(contents)
    asks = [statement.text.endswith(("?", "？")) for statement in spoken]
    identifies = [concepts.has_identifier(statement.text) for statement in spoken]
    repeated = _repeated_questions(spoken, contents, asks)
    return [
        Candidate(
            place=index,
            fold=statement.fold,
            weights={concept: weights[concept] for concept in content.all},
            cost=max(1, cost(statement)),
            factor=_factor(statement.text) * (_QUESTION_FACTOR if asks[index] else 1),
            question=index - 1 if _is_elliptic(content) and _is_answer(spoken, index, asks) else None,
            rank=hashlib.sha256(statement.text.encode()).digest(),
            day=statement.day,
            fact=concepts.signals_of_a_fact(statement.text) + identifies[index] * _IDENTIFIER + bool(content.named),
            identifies=identifies[index] and not asks[index],
            idle=index in repeated or concepts.is_idle(statement.text),
        )
        for index, (statement, content) in enumerate(zip(spoken, contents, strict=True))
    ]


def _factor(text: str) -> float:
    """Return the factor for the form of a sentence."""
    return math.prod([factor for factor, form in _FORMS if form.search(text)])


def _repeated_questions(
    spoken: Sequence[statements.Statement], contents: Sequence[concepts.Concepts], asks: Sequence[bool]
) -> set[int]:
    """Return the indices of questions that are asked more than once."""
    asked: dict[frozenset[str], list[int]] = {}
    for index in itertools.compress(range(len(spoken)), asks):
        asked.setdefault(contents[index].all, []).append(index)
    return {index for indices in asked.values() for index in indices if len(indices) > 1 or spoken[index].repeated}


def _is_answer(spoken: Sequence[statements.Statement], index: int, asks: Sequence[bool]) -> bool:
    """Whether the statement at ``index`` directly follows a question of another speaker."""
    if index == 0 or not asks[index - 1]:
        return False
    before, statement = spoken[index - 1], spoken[index]
    return before.fold == statement.fold and before.speaker != statement.speaker


def _is_elliptic(content: concepts.Concepts) -> bool:
    """Whether an answer is not understood without its question."""
    return len(content.all) < (_ELLIPTIC_WITH_NUMBER if content.numbers else _ELLIPTIC)


def choose(pool: Sequence[Candidate], max_tokens: int, day_cost: int = 0) -> list[Pick]:
    """Return picks, best first. ``day_cost`` are the tokens of the line of a day.

    If there are enough statements, the picks cost more than ``max_tokens``. Costs are estimates, and the caller fills
    the limit by an exact count. Statements that add no new concept are left out.
    """
    if not pool:
        return []
    newest = pool[-1].fold
    choice = _Choice(pool, day_cost)
    picks: list[Pick] = []
    busy = pool
    if pool[0].fold != newest:
        busy = [candidate for candidate in pool if not candidate.idle]
        recent = [candidate for candidate in busy if candidate.fold == newest]
        folds = len({candidate.fold for candidate in pool})
        picks += choice.greedy(recent, max_tokens, min(_NEWEST_SHARE, 2 / folds) * max_tokens)
    for part in (busy, pool):
        picks += choice.greedy(part, max_tokens, _SLACK * max_tokens)
    return picks


class _Choice:
    """The statements chosen so far, and the value that one more would add."""

    def __init__(self, pool: Sequence[Candidate], day_cost: int) -> None:
        self.pool = pool
        self.day_cost = day_cost
        self.days: set[dt.date | None] = {None}
        self.covered: set[str] = set()
        self.chosen: set[int] = set()
        self.value_of_fold: dict[int, float] = {}
        self.cost = 0
        self.several_folds = pool[0].fold != pool[-1].fold

    def greedy(self, pool: Iterable[Candidate], largest: float, until: float) -> list[Pick]:
        """Choose the best statements of ``pool`` until ``until`` tokens are spent, and return the picks.

        Statements that cost more than ``largest`` are ignored. The value of a statement can only fall while others are
        chosen. So only the top of a heap of old values must be computed again (Minoux's accelerated greedy, 1978).
        There is a heap of statements for each fold, and a heap of the folds.
        """
        if self.cost >= until:
            return []
        heaps: dict[int, list[tuple[float, bytes, int]]] = {}
        for candidate in pool:
            if candidate.place not in self.chosen and self._cost(candidate) <= largest:
                entry = (-self._merit(candidate), candidate.rank, candidate.place)
                heaps.setdefault(candidate.fold, []).append(entry)
        folds = []
        for fold, heap in heaps.items():
            heapq.heapify(heap)
            folds.append((*self._best(heap), fold))
        heapq.heapify(folds)
        picks: list[Pick] = []
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
        """Move the best statement of a fold to the top of its ``heap``; return its negated value and its rank.

        The value is 0 if no statement is left.
        """
        while heap:
            _, rank, index = heap[0]
            merit = 0.0 if index in self.chosen else self._merit(self.pool[index])
            if merit <= 0:
                heapq.heappop(heap)
            elif len(heap) > 1 and (-merit, rank, index) > min(heap[1:3]):
                heapq.heapreplace(heap, (-merit, rank, index))
            else:
                candidate = self.pool[index]
                alone = _FACT_ALONE * candidate.fact if self.several_folds else 0.0
                alone /= math.pow(self._cost(candidate), _LENGTH_EXPONENT)
                return -alone - merit / (1 + self.value_of_fold.get(candidate.fold, 0.0)), rank
        return 0.0, b""

    def _merit(self, candidate: Candidate) -> float:
        """Return the value that ``candidate`` adds, for its length; 0 if it repeats the chosen statements."""
        new = self._new_weights(candidate)
        if len(new) <= _NOVELTY * len(candidate.weights):
            return 0.0
        value = math.fsum(new) * candidate.factor
        if self.several_folds or candidate.identifies:
            value += _FACT_WEIGHT * candidate.fact
        return value / math.pow(self._cost(candidate), _LENGTH_EXPONENT)

    def _new_weights(self, candidate: Candidate) -> list[float]:
        """Return the weights that ``candidate`` adds, in no order. fsum() adds them to the same in every process."""
        return [weight for concept, weight in candidate.weights.items() if concept not in self.covered]

    def _cost(self, candidate: Candidate) -> int:
        cost = candidate.cost if candidate.day in self.days else candidate.cost + self.day_cost
        if candidate.question is None or candidate.question in self.chosen:
            return cost
        return cost + self.pool[candidate.question].cost

    def _take(self, candidate: Candidate) -> Pick:
        cost = self._cost(candidate)
        self.cost += cost
        self.days.add(candidate.day)
        value = math.fsum(self._new_weights(candidate)) * candidate.factor
        self.value_of_fold[candidate.fold] = self.value_of_fold.get(candidate.fold, 0.0) + value
        indices = [candidate.place]
        if candidate.question is not None and candidate.question not in self.chosen:
            indices.insert(0, candidate.question)
        for index in indices:
            self.chosen.add(index)
            self.covered.update(self.pool[index].weights)
        return Pick(indices, cost)
