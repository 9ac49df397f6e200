"""A chat model that summarizes without a network and without a key, by choosing sentences of the conversation.

It works in three steps:

1. The turns and the previous summary are split into statements (:mod:`.statements`).
2. The statements that cover the most concepts are chosen (:mod:`.coverage`).
3. The chosen statements are written in their original order (:func:`render`).

The text keeps the state that the next fold needs. It has a paragraph for each fold, oldest first. Each line of a
paragraph begins with its speaker. If the days are known, the line 2026-11-24 stands before the first statement of that
day. A text that has the label of a speaker stands in quotes: ``User said: "Assistant: …"``. So no text can pass for
another speaker's, however often the summary is folded.
"""

from __future__ import annotations

import asyncio
import bisect
import datetime as dt
import itertools
import math
import operator
from collections.abc import Iterable, Sequence

from django_convmemory import exceptions, messages
from django_convmemory.chat_models import base
from django_convmemory.chat_models.extraction import coverage, labels, sentences, statements

# Statements that are equal in these stand on one line.
_line_of = operator.attrgetter("fold", "speaker", "quoted", "day")
# Picks that are tried with an exact count. A count may take time in proportion to the summary's length.
_MAX_TRIES = 100
# Only so many characters of a text are read if its beginning is the summary.
_LONGEST_TEXT = 20_000

# A shorter text, or one without letters and digits, gets a label in front, so that it passes for a summary.
_SHORTEST_SUMMARY = 12


class ExtractiveChatModel:
    """Summarizes by choosing sentences of the conversation and of the previous summary.

    The same input always gives the same text. The model reads ``request.fold`` and never a prompt, so no text in a
    conversation can change what the model does. It answers no request without a fold.
    """

    name = "extractive"
    # It labels the speakers, and quotes a text that has labels.
    quotes_labels = True
    # In seconds. A fold takes far less.
    deadline = 10.0

    def chat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Return the summary that ``request`` asks for.

        Raises :class:`~django_convmemory.exceptions.BadModelOutput` if there is nothing to summarize, or if not even
        one character fits the token limit.
        """
        fold = request.fold
        if fold is None:
            raise exceptions.BadModelOutput("There is nothing to summarize: the request has no fold.")
        text = summarize(fold)
        if not any(character.isalnum() for character in text) or len(text) < _SHORTEST_SUMMARY:
            labelled = f"{labels.OF_A_SHORT_SUMMARY}: {text}"
            text = labelled if fold.count(labelled) <= fold.max_tokens else text
        return base.ChatResponse(messages.ChatMessage.ai(text), usage=None, finish_reason="stop", model=self.name)

    async def achat(self, request: base.ChatRequest) -> base.ChatResponse:
        """Call :meth:`chat` in a thread."""
        return await asyncio.to_thread(self.chat, request)


def summarize(fold: base.FoldData) -> str:
    """Return a summary of ``fold.previous`` and ``fold.turns`` in at most ``fold.max_tokens`` tokens.

    It is never blank, and its only control character is the line feed. Raises
    :class:`~django_convmemory.exceptions.BadModelOutput` if there is nothing to summarize, or if not even one character
    fits.
    """
    spoken = statements.of_summary(fold.previous)
    newest = spoken[-1].fold + 1 if spoken else 0
    known = {statement.speaker for statement in spoken if statement.speaker}
    spoken.extend(statements.of_turns(fold.turns, newest, fold.days, known))
    pool = coverage.candidates(spoken, lambda statement: fold.count(f"{_label(statement)}{_text(statement)}"))
    days = [statement.day for statement in spoken if statement.day]
    day_cost = fold.count(f"{days[0].isoformat()}\n") if days else 0
    text = _packed(coverage.choose(pool, fold.max_tokens, day_cost), spoken, fold)
    if text:
        return text
    # No statement fits, or there are only pleasantries: use the beginning of the best statement, or of everything.
    best = max(pool, key=lambda candidate: math.fsum(candidate.weights.values()) * candidate.factor, default=None)
    if best is not None:
        statement = spoken[best.place]
        in_quotes = statement.quoted or statements.could_be_read_as_labelled(statement.text)
        return _beginning(statement.text, fold, in_quotes=in_quotes)
    return _beginning(" ".join([fold.previous, *(turn.text for turn in fold.turns)]), fold)


def render(spoken: Sequence[statements.Statement]) -> str:
    """Return the statements as text: a paragraph for each fold, and in it a line for each run of one speaker.

    A day stands on a line of its own before the first statement of that day.
    """
    pieces: list[str] = []
    last: statements.Statement | None = None
    day: dt.date | None = None
    for statement in spoken:
        if last is not None and _line_of(last) == _line_of(statement):
            pieces.append("" if last.text.endswith(("。", "！", "？", "；")) else " ")
        else:
            pieces.append("" if last is None else "\n" if last.fold == statement.fold else "\n\n")
            if statement.day != day:
                day = statement.day
                pieces.append(f"{day.isoformat() if day else statements.UNKNOWN_DAY}\n")
            pieces.append(_label(statement))
        pieces.append(_text(statement))
        last = statement
    return "".join(pieces)


def _text(statement: statements.Statement) -> str:
    """Return the text of a statement, in quotes if it is quoted."""
    if not statement.quoted:
        return statement.text
    return labels.quoted(statement.text, chinese=sentences.is_chinese(statement.speaker or statement.text))


def _label(statement: statements.Statement) -> str:
    """Return what stands before the first of a speaker's statements on a line."""
    if not statement.speaker:
        return ""
    chinese = sentences.is_chinese(statement.speaker)
    speaker = labels.said(statement.speaker, chinese=chinese) if statement.quoted else statement.speaker
    return f"{speaker}：" if chinese else f"{speaker}: "


def _packed(picks: Sequence[coverage.Pick], spoken: Sequence[statements.Statement], fold: base.FoldData) -> str:
    """Return the text of the first of ``picks`` that fit the token limit by an exact count, or "" if none fits."""

    def text_of(indices: Iterable[int]) -> str:
        return render([spoken[index] for index in sorted(indices)])

    estimates = list(itertools.accumulate(pick.cost for pick in picks))
    fitting = bisect.bisect_right(estimates, fold.max_tokens)
    taken = list(itertools.chain.from_iterable(pick.indices for pick in picks[:fitting]))
    text = text_of(taken)
    excess = 1
    while taken and fold.count(text) > fold.max_tokens:
        del taken[-excess:]
        excess *= 2
        text = text_of(taken)
    for pick in picks[fitting : fitting + _MAX_TRIES]:
        longer = text_of([*taken, *pick.indices])
        if fold.count(longer) <= fold.max_tokens:
            taken += pick.indices
            text = longer
    return text


def _beginning(text: str, fold: base.FoldData, *, in_quotes: bool = False) -> str:
    """Return as much of the beginning of ``text`` as fits the token limit, on one line, in quotes if ``in_quotes``.

    Raises :class:`~django_convmemory.exceptions.BadModelOutput`.
    """
    line = sentences.one_line(text[:_LONGEST_TEXT]) or sentences.one_line(text)
    if not line:
        raise exceptions.BadModelOutput(
            "There is nothing to summarize: no message of this part has text, an image or a tool call."
        )

    def shown(end: int) -> str:
        return labels.quoted(line[:end]) if in_quotes else line[:end].rstrip()

    def fits(end: int) -> bool:
        return fold.count(shown(end)) <= fold.max_tokens

    end = bisect.bisect_left(range(1, len(line) + 1), True, key=lambda length: not fits(length))
    # A counter may count more for a prefix than for a longer text. Bisection would miss that.
    while end and not fits(end):
        end -= 1
    if end < len(line):
        space = line.rfind(" ", end // 2, end + 1)
        if space > 0 and fits(space):
            end = space
    if end and line[:end].strip():
        return shown(end)
    for mark in ("…", "?"):
        if fold.count(mark) <= fold.max_tokens:
            return mark
    raise exceptions.BadModelOutput(
        f"Not one character fits a summary of {fold.max_tokens} tokens. Raise the option max_summary_tokens."
    )
