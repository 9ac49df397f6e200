"""What must hold for the rows of a session, looked at one by one.

Every finding is damage: no sequence of operations, however it was interrupted, leaves it behind. Rows are read in the
order of their key and forgotten again, so that memory does not grow with the conversation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.db import transaction

from django_convmemory import models
from django_convmemory.core.counters import MAX_PINNED, Counters
from django_convmemory.exceptions import ConvMemoryError, ToolResultRefused
from django_convmemory.messages import ROLES, ChatMessage
from django_convmemory.stores import columns

_CHUNK = 1000
_COUNTERS = (
    "last_position",
    "unpinned_count",
    "unpinned_tokens",
    "settled_tokens",
    "newest_position",
    "pinned",
    "call_position",
    "exchange_calls",
    "open_calls",
)


class Finding(NamedTuple):
    """A piece of damage: of which kind, in which session, and what exactly. ``name`` is the session's, for people."""

    code: str
    session_id: int
    message: str
    name: str = ""


def check(sessions: models.SessionQuerySet) -> Iterator[Finding]:
    """Yield what is wrong with ``sessions`` and the rows that belong to them.

    A session that changes while it is looked at is looked at again, and in the end under its lock.
    """
    last = 0
    while page := list(sessions.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:_CHUNK]):
        for session_id in page:
            yield from _settled(session_id, sessions.db)
        last = page[-1]


def _settled(session_id: int, using: str) -> list[Finding]:
    """Return what is wrong with a session that holds still."""
    rows = models.Session.objects.using(using).filter(pk=session_id)
    for _ in range(_TRIES):
        before = rows.values_list("revision", flat=True).first()
        found = _examined(rows)
        if not found or rows.values_list("revision", flat=True).first() == before:
            return found
    with transaction.atomic(using=using):
        rows.lock()
        return _examined(rows)


def _examined(rows: models.SessionQuerySet) -> list[Finding]:
    session_id, name = -1, ""
    try:
        for session_id in rows.values_list("pk", flat=True):
            for session in rows:
                name = str(session.session_name)
                return [Finding(code, session_id, message, name) for code, message in _Examination(session).findings()]
    except (ValueError, TypeError) as error:
        # JSON that is none, or pinned positions that are no numbers: the rest cannot be judged.
        return [Finding("unreadable", session_id, f"a row of it cannot be read: {error}", name)]
    return []


_TRIES = 3


class _Examination:
    """One session, its messages from the first to the last, and its summaries."""

    def __init__(self, session: models.Session) -> None:
        self.session = session
        self.using = session._state.db or "default"
        self.counters = Counters()
        # Running totals at the ends of summaries: unpinned messages and tokens through that position.
        self.totals: dict[int, tuple[int, int]] = {0: (0, 0)}
        self.answers: list[tuple[int, int]] = []

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield the kind of each finding, and what exactly it is."""
        summaries = list(self.session.convmemory_summaries.order_by("version"))
        ends = {summary.last_position for summary in summaries}
        yield from self._name()
        yield from self._messages(ends)
        yield from self._counters()
        yield from self._summaries(summaries)
        yield from self._pointer(summaries)
        yield from self._compaction()
        yield from self._copy()

    def _name(self) -> Iterator[tuple[str, str]]:
        if self.session.name_hash != self.session.session_name.name_hash:
            yield "name_hash", "its name_hash is not the hash of its alias, scope and key: no operation finds it"
        if self.session.owner_id is not None and self.session.visitor:
            yield "scope", "it belongs to an owner and to a visitor"

    def _messages(self, ends: set[int]) -> Iterator[tuple[str, str]]:
        rows = (
            models.Message.objects.using(self.using)
            .filter(session=self.session)
            .order_by("session_id", "position")
            .iterator(chunk_size=_CHUNK)
        )
        for row in rows:
            expected = self.counters.last_position + 1
            if row.position > expected:
                yield "gap", f"positions {expected} to {row.position - 1} are missing"
            elif row.position < expected:
                yield "duplicate", f"position {row.position} comes twice"
                continue
            self.counters = self.counters._replace(last_position=row.position - 1)
            message, problems = _value(row)
            yield from problems
            yield from self._book(row, message)
            if row.position in ends:
                self.totals[row.position] = (self.counters.unpinned_count, self.counters.unpinned_tokens)

    def _book(self, row: models.Message, message: ChatMessage) -> Iterator[tuple[str, str]]:
        """Enter a message into the books, and compare what the row says of it."""
        where = f"the message at {row.position}"
        answers = None
        try:
            self.counters, expected = self.counters.append_one(message, row.tokens)
            answers = expected.answers
        except ToolResultRefused:
            yield "stray_result", f"{where} is a result outside of its exchange"
            self.counters, _ = self.counters.append_one(ChatMessage.human(""), row.tokens)
        except ConvMemoryError:
            yield "pinned", f"{where} is one pinned message too many: there may be {MAX_PINNED}"
            self.counters = self.counters._replace(last_position=row.position)
        if row.tokens < 1:
            yield "tokens", f"{where} counts {row.tokens} tokens"
        if row.tokens_through != self.counters.unpinned_tokens:
            yield "total", f"the total through position {row.position} is {row.tokens_through}, not the sum"
            # Said once: what follows is compared with what is there.
            self.counters = self.counters._replace(unpinned_tokens=row.tokens_through)
        if row.answers != answers:
            yield "answers", f"{where} answers {row.answers}, and should answer {answers}"
        if row.answers is not None:
            self.answers.append((row.answers, row.position))

    def _counters(self) -> Iterator[tuple[str, str]]:
        kept = self.session.counters
        for name in _COUNTERS:
            found, expected = getattr(kept, name), getattr(self.counters, name)
            if found != expected:
                yield f"counter_{name}", f"{name} is {found!r:.60}, and should be {expected!r:.60}"
        pinned = kept.pinned
        if (self.session.pinned_count, self.session.pinned_tokens) != (len(pinned), sum(one.tokens for one in pinned)):
            yield "counter_pinned_total", "the number of pinned messages, or their tokens, is wrong"

    def _summaries(self, summaries: list[models.Summary]) -> Iterator[tuple[str, str]]:
        by_version = {summary.version: summary for summary in summaries}
        children: dict[int, int] = {}
        for summary in summaries:
            name = f"summary {summary.version}"
            if summary.version > self.session.last_version:
                yield "version", f"{name} is newer than the last version, {self.session.last_version}"
            if not 0 < summary.first_position <= summary.last_position:
                yield "range", f"{name} stands for {summary.first_position} to {summary.last_position}"
            if summary.invalidated_at is not None:
                continue
            yield from self._valid(name, summary)
            yield from self._line(name, summary, by_version)
            if summary.parent_version is not None:
                other = children.setdefault(summary.parent_version, summary.version)
                if other != summary.version and by_version[other].building == summary.building:
                    yield (
                        "fork_of_line",
                        f"summaries {other} and {summary.version} both follow {summary.parent_version}",
                    )

    def _valid(self, name: str, summary: models.Summary) -> Iterator[tuple[str, str]]:
        if not summary.text.strip():
            yield "blank", f"{name} is blank"
        if summary.tokens < 1:
            yield "tokens", f"{name} counts {summary.tokens} tokens"
        if summary.last_position > self.session.last_position:
            yield "beyond", f"{name} stands for more than there is, through {summary.last_position}"
            return
        expected = self.totals.get(summary.last_position)
        if expected is not None and (summary.covered_count, summary.covered_tokens) != expected:
            yield (
                "covered",
                f"{name} covers {summary.covered_count} messages of {summary.covered_tokens} tokens, not so",
            )
        cut = [at for call, at in self.answers if call <= summary.last_position < at]
        if cut or 0 < self.counters.open_position <= summary.last_position:
            yield "cut", f"{name} ends inside of an exchange"

    def _line(
        self, name: str, summary: models.Summary, by_version: dict[int, models.Summary]
    ) -> Iterator[tuple[str, str]]:
        parent = by_version.get(summary.parent_version or 0)
        if summary.parent_version is None:
            if summary.first_position != 1:
                yield "hole", f"{name} begins a line at {summary.first_position}"
        elif parent is None:
            yield "parent", f"{name} follows {summary.parent_version}, which is not there"
        elif parent.version >= summary.version or parent.invalidated_at is not None:
            yield "parent", f"{name} follows {parent.version}, which is not valid"
        elif parent.last_position + 1 != summary.first_position:
            yield "hole", f"{name} begins at {summary.first_position}, after one that ends at {parent.last_position}"

    def _pointer(self, summaries: list[models.Summary]) -> Iterator[tuple[str, str]]:
        session = self.session
        shown = [one for one in summaries if one.invalidated_at is None and not one.building]
        newest = shown[-1] if shown else None
        if session.current_version != (newest.version if newest else 0):
            yield "pointer", f"the current version is {session.current_version}, and not the newest valid one"
            return
        covered = (session.covered_position, session.covered_count, session.covered_tokens)
        expected = (newest.last_position, newest.covered_count, newest.covered_tokens) if newest else (0, 0, 0)
        if covered != expected:
            yield (
                "covered_by_session",
                f"what the session takes for covered, {covered}, is not its summary's, {expected}",
            )

    def _compaction(self) -> Iterator[tuple[str, str]]:
        session = self.session
        if bool(session.lease_token) != (session.lease_expires_at is not None):
            yield "lease", "a lease without an end, or an end without a lease"
        if session.due_since is not None and session.settled_tokens <= session.covered_tokens:
            yield "due", "it is marked due, and has nothing that could be folded"

    def _copy(self) -> Iterator[tuple[str, str]]:
        session = self.session
        if session.forked_from_id is None:
            return
        if session.fork_position is None:
            yield "copy", "it is a copy, and does not say through which position"
        if session.forked_from_id >= session.pk:
            yield "copy", f"it is a copy of session {session.forked_from_id}, which is not older"


def _value(row: models.Message) -> tuple[ChatMessage, list[tuple[str, str]]]:
    """Return the message of a row, or one in its place, and what is wrong with the row."""
    where, problems = f"the message at {row.position}", []
    if row.payload_hash and row.idempotency_key is None:
        problems.append(("key", f"{where} has the hash of a payload, and no idempotency key"))
    if row.wire is not None and not (isinstance(row.wire, dict) and row.wire.keys() <= columns.WIRE_FIELDS):
        problems.append(("wire", f"{where} has a wire form with fields of its own"))
    elif row.wire is not None and "content" in row.wire and row.content is not None:
        problems.append(("wire", f"{where} says two things: one in its content, one in its wire form"))
    if row.usage is not None and not isinstance(row.usage, dict):
        problems.append(("usage", f"the usage of {where} is no object"))
    try:
        message = columns.message_of_row(row)
        if row.role not in ROLES:
            raise ValueError(f"{row.role!r} is no role")
        message = dataclasses.replace(message)  # checked as when it was made
    except (ConvMemoryError, ValueError, TypeError, AttributeError, KeyError) as error:
        problems.append(("message", f"{where} cannot be read: {error}"))
        message = ChatMessage.human("")
    if row.redacted_at is not None and message.emptied() != message:
        problems.append(("redacted", f"{where} is redacted, and still says something"))
    return message, problems


def orphans(using: str) -> Iterator[Finding]:
    """Yield the messages and summaries whose session is not there."""
    for model in (models.Message, models.Summary):
        rows: Iterable[Any] = (
            model.objects.using(using)
            .exclude(session_id__in=models.Session.objects.using(using).values("pk"))
            .order_by("session_id")
            .values_list("session_id", flat=True)
            .distinct()
        )
        for session_id in rows:
            yield Finding("orphan", session_id, f"rows of {model._meta.verbose_name_plural} belong to no session")
