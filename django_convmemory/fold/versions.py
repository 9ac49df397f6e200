"""One new version of a summary, made from the summary before it and a chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from django_convmemory import exceptions
from django_convmemory.chat_models.base import ChatModel, ChatRequest, ChatResponse
from django_convmemory.fold import identifiers, quoting, validation
from django_convmemory.fold.attempts import Answer
from django_convmemory.fold.chunks import Chunk
from django_convmemory.fold.model_calls import ModelCaller
from django_convmemory.fold.requests import Requests
from django_convmemory.observers import Call
from django_convmemory.rules.options import Options
from django_convmemory.rules.transcript import spoken
from django_convmemory.rules.values import AttemptOutcome, AttemptRecord, Claim, NewVersion
from django_convmemory.store.either import Store

# The line with identifiers takes at most this part of a summary: a sixth.
_IDENTIFIERS_SHARE = 6
# Two texts together may have so many tokens more than the sum of their counts, because each count is rounded.
_ROUNDING = 1


class Made(NamedTuple):
    """A version to publish, and the call that made it: what is recorded of it, and how many seconds it took.

    ``attempt`` is None if that is recorded already.
    """

    version: NewVersion
    attempt: AttemptRecord | None
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VersionMaker:
    """Makes the versions of one run. The run publishes them."""

    store: Store
    options: Options
    requests: Requests
    caller: ModelCaller

    def fold(
        self, claim: Claim, chunk: Chunk, model: ChatModel, *, own_error: exceptions.ChatModelError | None
    ) -> Generator[Call, ChatResponse, Made]:
        """Have ``model`` make a version from the current summary and ``chunk``.

        ``own_error`` is the error of the alias's own model with this chunk, if that was asked before.
        Raises :class:`.LeaseLost`, or the :class:`~django_convmemory.exceptions.ChatModelError` of the model.
        """
        known = self._identifiers(claim, chunk)
        cap = self.options.max_summary_tokens - _room(self.requests, known)
        request = self.requests.fold(_previous(claim), chunk.turns, part=chunk.part, max_tokens=cap)
        answer = yield from self._ask(model, request, claim, chunk)
        text, attempt = answer.text, None
        if self.requests.count(text) > cap:
            self.store.record(claim, answer.attempt(AttemptOutcome.SHORTEN))
            answer, is_new = yield from self._shorten(answer, claim, chunk, cap)
            text = validation.fitting(answer.text, lambda text: self.requests.count(text) <= cap)
            if not text:
                error = exceptions.BadModelOutput("Not even the beginning of the answer fits into max_summary_tokens.")
                if is_new:
                    self.store.record(claim, answer.attempt(AttemptOutcome.BAD_OUTPUT, error))
                raise error
            attempt = answer.attempt(AttemptOutcome.PUBLISHED) if is_new else None
        else:
            attempt = answer.attempt(AttemptOutcome.PUBLISHED)
        was_unavailable = own_error is None or isinstance(own_error, exceptions.ModelUnavailable)
        version = self._version(
            claim,
            chunk,
            text=text,
            known=known,
            model=answer.model,
            shortened=text != answer.text,
            fallback=answer.by_fallback,
            stand_in=answer.by_fallback and was_unavailable and self.options.rebuild_stand_ins,
        )
        return Made(version, attempt, answer.duration)

    def carried(self, claim: Claim, chunk: Chunk) -> NewVersion:
        """Return a version that covers ``chunk`` with the text of the summary before it."""
        return self._version(
            claim,
            chunk,
            text=_previous(claim),
            known=self._identifiers(claim, chunk),
            model="",
            shortened=False,
            fallback=False,
            carried=True,
        )

    def _version(self, claim: Claim, chunk: Chunk, *, text: str, known: tuple[str, ...], **made: Any) -> NewVersion:
        counters = claim.counters
        whole = self._with_identifiers(text, known)
        return NewVersion(
            first_position=chunk.first,
            last_position=chunk.last,
            covered_count=counters.covered_count + chunk.count,
            covered_tokens=counters.covered_tokens + chunk.tokens,
            prompt_hash=self.requests.prompt_hash,
            cut=chunk.cut,
            part_end=chunk.part_end,
            text=whole,
            tokens=self.requests.count(whole) if whole else 0,
            identifiers=known,
            model_length=len(text) if whole != text else None,
            folds=_folds(claim, chunk),
            **made,
        )

    def _ask(
        self, model: ChatModel, request: ChatRequest, claim: Claim, chunk: Chunk
    ) -> Generator[Call, ChatResponse, Answer]:
        def quoted(text: str) -> str:
            """Put quotes around what passes for another speaker's turn."""
            if getattr(model, "quotes_labels", False):
                return quoting.one_form(text)
            names = [message.name for message in chunk.messages if message.name]
            return quoting.quoted(text, _previous(claim), map(spoken, chunk.messages), names)

        return self.caller.ask(model, request, claim=claim, last_position=chunk.last, finish=quoted)

    def _shorten(
        self, answer: Answer, claim: Claim, chunk: Chunk, cap: int
    ) -> Generator[Call, ChatResponse, tuple[Answer, bool]]:
        """Ask once more, for a text of ``cap`` tokens. If that fails, use the first answer.

        Returns the answer to use, and whether it is the new one.
        """
        request = self.requests.shorten(answer.text, max_tokens=cap)
        try:
            return (yield from self._ask(answer.asked, request, claim, chunk)), True
        except exceptions.ChatModelError:
            return answer, False

    def _identifiers(self, claim: Claim, chunk: Chunk) -> tuple[str, ...]:
        if not self.options.keep_identifiers:
            return ()
        summary = claim.summary
        known: Sequence[str] = ()
        if summary is not None:
            known = summary.identifiers
            if not known and not summary.folds:
                # A release that knew of no identifiers may have made this version. Those in its text must not vanish.
                known = identifiers.mentioned(summary.model_text)
        update = identifiers.of_later_part if chunk.number > 1 else identifiers.updated
        return update(known, chunk.messages)

    def _with_identifiers(self, text: str, known: Sequence[str]) -> str:
        """Return ``text`` with a last line that has the identifiers that it lacks, as far as there is room."""
        count, room = self.requests.count, _room(self.requests, known)
        cap = min(self.options.max_summary_tokens, count(text) + room)
        start = f"{text}\n\n" if text else ""
        line = identifiers.line(known, text, lambda line: count(start + line) <= cap)
        return start + line if line else text


def least_summary_tokens(requests: Requests) -> int:
    """Return the smallest ``max_summary_tokens`` with room for the shortest identifier, a number of four digits."""
    line = identifiers.line(["1234"], "", lambda line: True)
    return _IDENTIFIERS_SHARE * _tokens_of_line(requests, line)


def _room(requests: Requests, known: Sequence[str]) -> int:
    """Return how many tokens of a summary are left free for the line with identifiers: what all of them take."""
    share = requests.options.max_summary_tokens // _IDENTIFIERS_SHARE
    line = identifiers.line(known, "", lambda line: _tokens_of_line(requests, line) <= share)
    return _tokens_of_line(requests, line) if line else 0


def _tokens_of_line(requests: Requests, line: str) -> int:
    """Return how many tokens ``line`` adds to a summary at most."""
    return requests.count(f"\n\n{line}") - requests.count("") + _ROUNDING


def _previous(claim: Claim) -> str:
    return claim.summary.model_text if claim.summary else ""


def _folds(claim: Claim, chunk: Chunk) -> int:
    """Return how many folds ago the summary was made from messages alone. A part is no fold."""
    before = claim.summary.folds if claim.summary else 0
    if chunk.part_end is not None or (claim.rebuilding and not before):
        return before
    return before + 1
