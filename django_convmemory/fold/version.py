"""The new version of a summary, made from the summary before it and a chunk, and published."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel
from django_convmemory.fold import call, identifiers, replacing, validate
from django_convmemory.fold.base import Fold, LeaseLost, Steps
from django_convmemory.fold.chunk import Chunk
from django_convmemory.fold.request import Requests
from django_convmemory.rules import transcript
from django_convmemory.rules.values import AttemptOutcome, AttemptRecord, NewVersion, is_final

logger = logging.getLogger(__name__)

# The line with identifiers takes at most this part of a summary: a sixth.
_IDENTIFIERS_SHARE = 6
# Two texts together may have so many tokens more than the sum of their counts, because each count is rounded.
_ROUNDING = 1


def write(fold: Fold, chunk: Chunk, model: ChatModel) -> Steps[None]:
    """Have ``model`` make a version from the current summary and ``chunk``, and publish it.

    Raises :class:`.LeaseLost`, or the :class:`~django_convmemory.exceptions.ChatModelError` of the model.
    """
    requests = fold.memory.requests
    known = _identifiers(fold, chunk)
    room = _room(requests, known)
    cap = fold.memory.options.summary_tokens - room
    request = requests.fold(fold.previous, chunk.turns, part=chunk.part, max_tokens=cap)
    try:
        answer = yield from call.ask(fold, chunk, model, request)
    except replacing.TooLittle as error:
        answer = yield from call.ask(fold, chunk, model, requests.again(request, error.text, str(error)))
    text, is_recorded = answer.text, False
    if requests.count(text) > cap:
        call.record(fold, chunk, answer, AttemptOutcome.SHORTEN)
        try:
            answer = yield from call.ask(fold, chunk, model, requests.shorten(text, max_tokens=cap))
        except exceptions.ChatModelError:
            is_recorded = True  # Use the first answer.
        text = validate.fitting(answer.text, lambda text: requests.count(text) <= cap)
        try:
            if not text:
                raise exceptions.BadModelOutput("Not even the beginning of the answer fits into max_summary_tokens.")
            validate.refuse(text)
            call.judge(fold, model, request, text)
        except exceptions.ChatModelError as error:
            if not is_recorded:
                call.record(fold, chunk, answer, AttemptOutcome.BAD_OUTPUT, error)
            raise
    by_fallback = model is fold.memory.fallback
    was_unavailable = fold.own_error is None or isinstance(fold.own_error, exceptions.ModelUnavailable)
    stand_in = by_fallback and was_unavailable and fold.memory.options.rebuild_stand_ins
    made = {"model": answer.model, "shortened": text != answer.text, "fallback": by_fallback, "stand_in": stand_in}
    version = _version(fold, chunk, text, known, room, **made)
    attempt = None if is_recorded else call.attempt(fold, chunk, answer, AttemptOutcome.PUBLISHED)
    _publish(fold, version, attempt)
    logger.log(
        logging.WARNING if by_fallback else logging.INFO,
        "Folded messages %d to %d%s of session %s into its summary %d: %s%s, %.1f s.",
        chunk.first,
        chunk.last,
        f", part {chunk.part}," if chunk.part else "",
        fold.run.session_id,
        fold.claim.last_version,
        "the fallback, " if by_fallback else "",
        version.model,
        answer.seconds,
    )


def carry(fold: Fold, chunk: Chunk) -> None:
    """Publish a version that covers ``chunk`` with the text of the summary before it. Raises :class:`.LeaseLost`."""
    known = _identifiers(fold, chunk)
    room = _room(fold.memory.requests, known)
    made = {"model": "", "shortened": False, "fallback": False, "carried": True}
    _publish(fold, _version(fold, chunk, fold.previous, known, room, **made))
    logger.warning(
        "Messages %d to %d of session %s have nothing that could be summarized. Its summary %d is the same text.",
        chunk.first,
        chunk.last,
        fold.run.session_id,
        fold.claim.last_version,
    )


def _version(fold: Fold, chunk: Chunk, text: str, known: tuple[str, ...], room: int, **made: Any) -> NewVersion:
    counters = fold.claim.counters
    whole = _with_identifiers(fold.memory.requests, text, known, room)
    return NewVersion(
        first_position=chunk.first,
        last_position=chunk.last,
        covered_count=counters.covered_count + chunk.count,
        covered_tokens=counters.covered_tokens + chunk.tokens,
        prompt_hash=fold.memory.requests.prompt_hash,
        cut=chunk.cut,
        part_end=chunk.part_end,
        text=whole,
        tokens=fold.memory.requests.count(whole) if whole else 0,
        identifiers=known,
        model_length=len(text) if whole != text else None,
        **made,
    )


def _publish(fold: Fold, version: NewVersion, attempt: AttemptRecord | None = None) -> None:
    final = is_final(fold.claim, version)
    claim = fold.memory.store.publish(fold.claim, version, attempt, fold.memory.threshold, lease=fold.lease)
    if claim is None:
        raise LeaseLost
    fold.claim = claim
    if final:
        fold.memory.store.on_commit(lambda: fold.memory.published(claim))


def _identifiers(fold: Fold, chunk: Chunk) -> tuple[str, ...]:
    if not fold.memory.options.keep_identifiers:
        return ()
    known = fold.claim.summary.identifiers if fold.claim.summary else ()
    update = identifiers.of_later_part if chunk.number > 1 else identifiers.updated
    days = [transcript.day(row.created_at, fold.memory.requests.zone) for row in chunk.turns]
    return update(known, zip(chunk.messages, days, strict=True))


def _with_identifiers(requests: Requests, text: str, known: Sequence[str], room: int) -> str:
    """Return ``text`` with a last line that has the identifiers that it lacks, as far as there is room."""
    if not known:
        return text
    count = requests.count
    cap = min(requests.options.summary_tokens, count(text) + room)
    start = f"{text}\n\n" if text else ""
    line = identifiers.line(known, text, lambda line: count(start + line) <= cap)
    return start + line if line else text


def least_summary_tokens(requests: Requests) -> int:
    """Return the smallest ``max_summary_tokens`` with room for the shortest identifier, a number of four digits."""
    line = identifiers.line(["1234"], "", lambda line: True)
    return _IDENTIFIERS_SHARE * _tokens_of_line(requests, line)


def _room(requests: Requests, known: Sequence[str]) -> int:
    """Return how many tokens of a summary are left free for the line with identifiers: what all of them take."""
    share = requests.options.summary_tokens // _IDENTIFIERS_SHARE
    line = identifiers.line(known, "", lambda line: _tokens_of_line(requests, line) <= share)
    return _tokens_of_line(requests, line) if line else 0


def _tokens_of_line(requests: Requests, line: str) -> int:
    """Return how many tokens ``line`` adds to a summary at most."""
    return requests.count(f"\n\n{line}") - requests.tokens_of_empty + _ROUNDING
