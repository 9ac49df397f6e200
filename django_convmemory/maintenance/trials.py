"""Trials: a summary of a session's messages by any model and with any instructions, which is stored nowhere.

A trial takes no lease and opens no transaction. It tells nothing to the breaker and records no attempt.
"""

from __future__ import annotations

import contextvars
import dataclasses
import enum
import logging
import threading
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django_convmemory import exceptions, models
from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse, Usage
from django_convmemory.conversation import ConversationMemory
from django_convmemory.core import chunks, exchanges, transcript, validation
from django_convmemory.core.attempts import Price
from django_convmemory.core.exchanges import Placed, Turn
from django_convmemory.messages import PINNED_ROLES
from django_convmemory.stores import columns

logger = logging.getLogger(__name__)

# A person waits for the answer, and so does a process of the server. In seconds.
LONGEST_WAIT = 60.0
# A model that raises at its deadline gets this time to do so.
GRACE = 1.0
# More messages than a trial covers.
_MAX_TURNS = 5000


class Covers(enum.StrEnum):
    """What a trial covers: the messages of the current version again, or those of the next fold."""

    VERSION = "version"
    NEXT = "next"


@dataclasses.dataclass(frozen=True, slots=True)
class Material:
    """The messages from ``first`` to ``last``, and the summary ``previous`` to which they are added.

    ``part``: only a part of a long exchange fits into one call. ``more``: further messages would take more calls.
    """

    previous: str
    turns: Sequence[Placed]
    first: int
    last: int
    part: int | None = None
    more: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of a trial. ``tokens`` are those of ``text``, and ``limit`` is how many a summary may have.

    With an ``error``, ``text`` is what the model wrote all the same, or "".
    """

    material: Material
    model: str
    text: str
    tokens: int
    limit: int
    seconds: float
    usage: Usage | None
    cost: Decimal | None
    error: str = ""


def material(memory: ConversationMemory, session: models.Session, covers: Covers) -> Material | None:
    """Return what one call would fold of what ``covers`` says, or None if there is nothing to fold."""
    if covers is Covers.VERSION:
        version = _summaries(session).filter(version=session.current_version).first()
        if version is None:
            return None
        first, last, previous = version.first_position, version.last_position, _text_of(session, version.parent_version)
    else:
        first, last = session.covered_position + 1, session.last_position
        previous = _text_of(session, session.current_version)
    turns = _turns(session, first, last)
    if not turns:
        return None
    starts = exchanges.starts(turns, session.counters.open_position if covers is Covers.NEXT else 0)
    split = len(turns) if covers is Covers.VERSION else _split(memory, turns, starts)
    ends = [*(start for start in starts if 0 < start < split), split]
    window = memory.options.chunk_tokens(memory.strategy.threshold.tokens)
    end = chunks.end_of(turns, ends, 0, window)
    last = turns[end - 1].position
    rows, part = _rows(session, turns[0].position, last), None
    if end == ends[0]:
        # One exchange, which may be longer than a call. The trial has its first part.
        beginning = transcript.part(rows, 0, window, memory.counter)
        rows, part = beginning.turns, None if beginning.last else 1
    more = end < split or len(turns) == _MAX_TURNS
    return Material(previous, rows, turns[0].position, last, part=part, more=more)


def run(
    memory: ConversationMemory, material: Material, model: ChatModel, *, price: Price | None, instructions: str
) -> Trial:
    """Ask ``model`` for a summary of ``material``, with the prompts of ``memory`` and these ``instructions``.

    It waits for the model's deadline, and at most for :data:`LONGEST_WAIT`.
    """
    options = dataclasses.replace(memory.options, instructions=instructions)
    requests = dataclasses.replace(memory.requests, options=options)
    limit = options.max_summary_tokens
    request = requests.fold(material.previous, material.turns, part=material.part, max_tokens=limit)
    # The database may close an idle connection while the model answers.
    memory.store.release_connection()
    began = time.monotonic()
    response: ChatResponse | None = None
    text, error = "", ""
    try:
        response = _answer(model, request)
        text = response.message.text
        text = validation.checked(response)
    except exceptions.ChatModelError as failure:
        error = f"{type(failure).__name__}: {failure}"
    usage = response.usage if response else None
    return Trial(
        material=material,
        model=(response.model if response else "") or model.name,
        text=text,
        tokens=requests.count(text) if text else 0,
        limit=limit,
        seconds=time.monotonic() - began,
        usage=usage,
        cost=price.of(usage) if price is not None and usage is not None else None,
        error=error,
    )


def _answer(model: ChatModel, request: ChatRequest) -> ChatResponse:
    """Return the model's answer. Raises ChatModelError, also if there is none after :data:`LONGEST_WAIT`."""
    outcome: list[object] = []

    def ask() -> None:
        try:
            outcome.append(model.chat(request))
        except BaseException as error:  # noqa: BLE001  the thread that waits shows it
            outcome.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(ask,), name="convmemory-trial", daemon=True)
    thread.start()
    longest = min(model.deadline, LONGEST_WAIT)
    thread.join(longest + GRACE)
    if not outcome:
        raise exceptions.ModelUnavailable(f"No answer after {longest:.0f} seconds.")
    [answered] = outcome
    if isinstance(answered, exceptions.ChatModelError):
        raise answered
    if isinstance(answered, BaseException):
        # Whatever it is, it ends the call and not this process, not even if it is SystemExit.
        logger.error("A chat model raised an error that chat models must not raise.", exc_info=answered)
        raise exceptions.BadModelOutput(f"The chat model raised {type(answered).__name__}. The log has the traceback.")
    if not isinstance(answered, ChatResponse):
        raise exceptions.BadModelOutput(f"The chat model returned no ChatResponse, but a {type(answered).__name__}.")
    return answered


def _split(memory: ConversationMemory, turns: Sequence[Turn], starts: Sequence[int]) -> int:
    """Return how many turns the next fold has. If none is due, all but the newest exchange, or all."""
    user_starts = [start for start in starts if turns[start].role == "user"]
    planned = memory.strategy.plan([turn.tokens for turn in turns], starts, user_starts)
    return planned or (starts[-1] if starts and starts[-1] else len(turns))


def _summaries(session: models.Session) -> models.SummaryQuerySet:
    return models.Summary.objects.using(session._state.db).filter(session=session)


def _text_of(session: models.Session, version: int | None) -> str:
    """Return what the model wrote of a version, or "" if there is none."""
    summary = _summaries(session).filter(version=version).first() if version else None
    return summary.value.model_text if summary is not None else ""


def _messages(session: models.Session, first: int, last: int) -> Any:
    rows = models.Message.objects.using(session._state.db).filter(session=session)
    return rows.filter(position__gte=first, position__lte=last).exclude(role__in=PINNED_ROLES).order_by("position")


def _turns(session: models.Session, first: int, last: int) -> list[Turn]:
    return [Turn(*row) for row in _messages(session, first, last).values_list(*Turn._fields)[:_MAX_TURNS]]


def _rows(session: models.Session, first: int, last: int) -> list[Placed]:
    rows = []
    for row in _messages(session, first, last):
        message = columns.message_of_row(row)
        message = exchanges.redacted(message) if row.redacted_at else message
        rows.append(Placed(row.position, message, row.tokens, row.answers, row.created_at))
    return rows
