"""A chat model that summarizes without a network and without a key: it picks the sentences that carry the conversation.

The turns and the summary before become statements (:mod:`.statements`), the statements that cover most concepts are
chosen (:mod:`.coverage`), and told in their order. The text carries its own state to the next fold: a paragraph for
each fold, oldest first, and in it lines that say who spoke.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import math
from collections.abc import Iterable, Sequence

from django_convmemory import exceptions, messages
from django_convmemory.chat_models import base
from django_convmemory.chat_models.extraction import coverage, sentences, statements

DEFAULT_MAX_TOKENS = 500
"""The cap where a request names no fold, in tokens of four UTF-8 bytes."""

# Picks that are tried in vain, one after the other, before the summary counts as full.
_MISSES = 24
# Picks that are tried at all by an exact count, for a count may take as long as the summary.
_TRIES = 100
# Characters of a text that are looked at where only its beginning is told.
_CUT_FROM = 20_000


_REMARKS = "Said so far"
_TOO_SHORT = 12


class ExtractiveChatModel:
    """Summarizes by choosing sentences of the conversation and of the summary before; the same input, the same text.

    It reads ``request.fold`` and never a prompt, so nothing that a transcript says changes what it does. A request
    without a fold is taken as the turns of a conversation, to be told in :data:`DEFAULT_MAX_TOKENS`; its system
    messages are left out where there are others.
    """

    @property
    def name(self) -> str:
        """The name that is stored with each summary."""
        return "extractive"

    @property
    def deadline(self) -> float:
        """The seconds within which a call returns or raises: far more than a fold takes."""
        return 10.0

    def chat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Return the summary that ``request`` asks for.

        Raises :class:`~django_convmemory.exceptions.BadModelOutput` where there is nothing to summarize, or the cap
        has no room for a single character.
        """
        fold = request.fold or _whole(request.messages)
        text = summarize(fold)
        if not any(character.isalnum() for character in text) or len(text) < _TOO_SHORT:
            # Of symbols, or of a word or two: told as what it is.
            told = f"{_REMARKS}: {text}"
            text = told if fold.count(told) <= fold.max_tokens else text
        return base.ChatResponse(messages.ChatMessage.ai(text), usage=None, finish_reason="stop", model=self.name)

    async def achat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Do as :meth:`chat`, in a thread."""
        return await asyncio.to_thread(self.chat, request)


def summarize(fold: base.Fold) -> str:
    """Return a summary of ``fold.previous`` and ``fold.turns`` that counts at most ``fold.max_tokens`` tokens.

    It is never blank, and its only control character is the line feed. Raises
    :class:`~django_convmemory.exceptions.BadModelOutput` where nothing is said, or not one character fits.
    """
    said = statements.of_summary(fold.previous)
    newest = said[-1].fold + 1 if said else 0
    said.extend(statements.of_turns(fold.turns, newest))
    pool = coverage.candidates(said, lambda statement: fold.count(render([statement])))
    picks = coverage.choose(pool, fold.max_tokens)
    text = _packed(picks, said, pool, fold)
    if text:
        return text
    # Nothing fits whole, or nothing is said but pleasantries: the beginning of the weightiest, or of all.
    weightiest = max(pool, key=lambda one: sum(one.weights.values()) * one.factor, default=None)
    if weightiest is not None:
        return _cut(said[weightiest.index].text, fold)
    return _cut(" ".join([fold.previous, *(turn.text for turn in fold.turns)]), fold)


def render(said: Sequence[statements.Statement]) -> str:
    """Return ``said`` as text: a paragraph for each fold, in it a line for each run of one speaker."""
    pieces: list[str] = []
    last: statements.Statement | None = None
    for statement in said:
        if last is not None and (last.fold, last.speaker) == (statement.fold, statement.speaker):
            pieces.append("" if last.text.endswith(("。", "！", "？", "；")) else " ")
        else:
            pieces.append("" if last is None else "\n" if last.fold == statement.fold else "\n\n")
            if statement.speaker:
                pieces.append(f"{statement.speaker}{'：' if sentences.is_chinese(statement.speaker) else ': '}")
        pieces.append(statement.text)
        last = statement
    return "".join(pieces)


def _packed(
    picks: Sequence[Sequence[int]],
    said: Sequence[statements.Statement],
    pool: Sequence[coverage.Candidate],
    fold: base.Fold,
) -> str:
    """Return as many of ``picks`` as fit the cap by an exact count, the first ones first; "" where none does."""

    def told(taken: Iterable[int]) -> str:
        return render([said[index] for index in sorted(taken)])

    taken: list[int] = []
    estimate = 0
    later = iter(picks)
    for pick in later:
        estimate += sum(pool[index].cost for index in pick)
        if estimate > fold.max_tokens:
            later = itertools.chain([pick], later)
            break
        taken += pick
    text = told(taken)
    excess = 1
    while taken and fold.count(text) > fold.max_tokens:
        del taken[-excess:]
        excess *= 2
        text = told(taken)
    misses = 0
    for pick in itertools.islice(later, _TRIES):
        longer = told([*taken, *pick])
        if fold.count(longer) <= fold.max_tokens:
            taken += pick
            text, misses = longer, 0
        else:
            misses += 1
            if misses == _MISSES:
                break
    return text


def _cut(text: str, fold: base.Fold) -> str:
    """Return the beginning of ``text``, on one line, as far as it fits the cap.

    Raises :class:`~django_convmemory.exceptions.BadModelOutput`.
    """
    line = sentences.one_line(text[:_CUT_FROM]) or sentences.one_line(text)
    if not line:
        raise exceptions.BadModelOutput("There is nothing to summarize: no turn has text, an image or a tool call.")
    kept = bisect.bisect_right(range(1, len(line) + 1), fold.max_tokens, key=lambda end: fold.count(line[:end]))
    # A counter may count more for a prefix than for a longer text, which a bisection does not see.
    while kept and fold.count(line[:kept].rstrip()) > fold.max_tokens:
        kept -= 1
    if kept < len(line):
        word = line.rfind(" ", kept // 2, kept + 1)
        if word > 0 and fold.count(line[:word].rstrip()) <= fold.max_tokens:
            kept = word
    shown = line[:kept].rstrip()
    if shown:
        return shown
    for mark in ("…", "?"):
        if fold.count(mark) <= fold.max_tokens:
            return mark
    raise exceptions.BadModelOutput(
        f"A summary of {fold.max_tokens} tokens has no room for a character; raise the cap."
    )


def _whole(turns: Sequence[messages.ChatMessage]) -> base.Fold:
    return base.Fold(
        previous="",
        turns=[turn for turn in turns if not turn.pinned] or turns,
        max_tokens=DEFAULT_MAX_TOKENS,
        count=lambda text: math.ceil(len(text.encode()) / 4),
    )
