"""Checks of the rows of a session against everything that must hold for them, and the repairs that are possible.

Every finding is damage: no sequence of operations leaves one behind, even if it was interrupted. Messages are read in
the order of their key and not kept, so that the check's memory does not grow with the conversation.

:func:`recount` is also for a site that has changed its token counter.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Exists, OuterRef

from django_convmemory import models
from django_convmemory.exceptions import ConvMemoryError, ToolResultRefused
from django_convmemory.maintenance.paging import paged
from django_convmemory.messages import ROLES, ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules import segments
from django_convmemory.rules.counters import MAX_PINNED, Counters, Previous
from django_convmemory.rules.segments import Indexable, Segment
from django_convmemory.search import indexing
from django_convmemory.store import columns, editing, index_rows, sql, transactions
from django_convmemory.store.orm import ORMStore

_CHUNK = 1000
# A session that changes this often while it is checked is locked for the next check.
_TRIES = 3
# Each change of a session changes one of these columns.
_CHANGING = ("revision", "epoch", "indexed_position", "last_version", "current_version")
# The number of segments that are read at a time.
_SEGMENTS = 16
# Messages that are counted between two statements. A slow counter must not leave the transaction idle for so long that
# the database ends it.
_COUNTED = 100
_UPDATE = f"UPDATE {sql.MESSAGE} SET tokens = %s, tokens_through = %s WHERE session_id = %s AND position = %s"  # noqa: S608
# The counters that follow from the messages. The others follow from the summaries.
_COUNTERS = [name for name in Counters._fields if not name.startswith("covered_")]

# What convmemory_check --reindex repairs: the index is made of the messages.
OF_INDEX = frozenset({"index", "index_range", "index_version"})
# What convmemory_check --recount repairs: it follows from the messages and summaries. A wrong last_position is not
# among it, because messages are missing.
OF_COUNTS = frozenset(
    {"tokens", "total", "covered", "covered_by_session", "pointer", "due", "lease", "counter_pinned_total"}
    | {f"counter_{name}" for name in _COUNTERS if name != "last_position"}
)


class Finding(NamedTuple):
    """A piece of damage: its kind, the session, and a description. ``name`` is the alias, scope and key for people."""

    code: str
    session_id: int
    message: str
    name: str = ""


def repair_of(finding: Finding, findings: Iterable[Finding]) -> str:
    """Return the option of convmemory_check that repairs ``finding``, or "". ``findings`` are all of its session.

    Beside damage of another kind nothing is repaired: a recount would hide that messages are missing, and an index
    cannot be made from messages that cannot be read.
    """
    if any(other.code not in OF_COUNTS | OF_INDEX for other in findings):
        return ""
    return "--recount" if finding.code in OF_COUNTS else "--reindex"


def check(sessions: models.SessionQuerySet) -> Iterator[Finding]:
    """Yield the damage in ``sessions`` and in the rows that belong to them."""
    for session_id in sessions.ids():
        yield from check_session(session_id, using=sessions.db)


def orphans(using: str) -> Iterator[Finding]:
    """Yield a finding for each session that has messages, summaries, segments or used keys, but no row."""
    for model in (models.Message, models.Summary, models.Segment, models.UsedKey):
        # NOT EXISTS: for NOT IN, PostgreSQL reads all sessions again for each row if they do not fit into its memory.
        session = models.Session.objects.filter(pk=OuterRef("session_id"))
        rows: Any = model.objects.using(using).filter(~Exists(session)).order_by("session_id")
        for session_id in rows.values_list("session_id", flat=True).distinct():
            yield Finding("orphan", session_id, f"there are {model._meta.verbose_name_plural}, but there is no session")


def check_session(session_id: int, *, using: str) -> list[Finding]:
    """Return the damage in a session and in the rows that belong to it. A session that does not exist has none.

    If the session changes meanwhile, it is checked again, and in the end under its lock.
    """
    rows = models.Session.objects.using(using).filter(pk=session_id)
    for _ in range(_TRIES):
        before = rows.values_list(*_CHANGING).first()
        findings = _check_session(session_id, rows)
        if not findings or rows.values_list(*_CHANGING).first() == before:
            return findings

    def check_locked() -> list[Finding]:
        rows.lock()
        return _check_session(session_id, rows)

    return transactions.run(using, check_locked, savepoint=True, idle=transactions.LONG_IDLE_SECONDS)


def _check_session(session_id: int, rows: models.SessionQuerySet) -> list[Finding]:
    name = ""
    try:
        for session in rows.all():  # Read again at each check. There is none if it was deleted.
            name = str(session.session_name)
            return [Finding(code, session_id, message, name) for code, message in _Examination(session).findings()]
    except (ValueError, TypeError) as error:
        # A column holds invalid JSON, or pinned positions that are no numbers. The rest cannot be checked.
        return [Finding("unreadable", session_id, f"a row of it cannot be read: {error}", name)]
    return []


class _Examination:
    """The check of one session, its messages from the first to the last, and its summaries.

    Its methods yield the kind and the description of each finding.
    """

    def __init__(self, session: models.Session) -> None:
        self.session = session
        self.using = session._state.db or "default"
        self.counters = Counters()
        # The message before, as far as an item depends on it.
        self.previous: Previous | None = None
        # The unpinned messages and their tokens through each position at which a summary ends.
        self.totals: dict[int, tuple[int, int]] = {0: (0, 0)}
        # For each message that continues an exchange, where that begins, and its own position.
        self.answers: list[tuple[int, int]] = []
        self.index = _Index(session, self.using)

    def findings(self) -> Iterator[tuple[str, str]]:
        summaries = list(self.session.convmemory_summaries.using(self.using).order_by("version"))
        yield from self._name()
        yield from self._messages({summary.last_position for summary in summaries})
        yield from self.index.end()
        yield from self._counters()
        yield from self._used_keys()
        yield from self._summaries(summaries)
        yield from self._pointer(summaries)
        yield from self._compaction()
        yield from self._fork()

    def _name(self) -> Iterator[tuple[str, str]]:
        if self.session.name_hash != self.session.session_name.name_hash:
            yield "name_hash", "name_hash is not the hash of the alias, scope and key: no operation finds the session"
        if self.session.owner_id is not None and self.session.visitor:
            yield "scope", "the session belongs to an owner and to a visitor"

    def _messages(self, ends: set[int]) -> Iterator[tuple[str, str]]:
        messages = self.session.convmemory_messages.using(self.using).order_by("session_id", "position")
        # A table that has lost its key may have a position twice. Both come, unless a page ends between them.
        for row in paged(messages, "position", operator.attrgetter("position"), size=_CHUNK):
            expected = self.counters.last_position + 1
            if row.position > expected:
                yield "gap", f"the messages at positions {expected} to {row.position - 1} are missing"
            elif row.position < expected:
                yield "duplicate", f"there are two messages at position {row.position}"
                continue
            self.counters = self.counters._replace(last_position=row.position - 1)
            message, problems = _read(row)
            yield from problems
            yield from self.index.compare(row, message)
            yield from self._count(row, message)
            if row.position in ends:
                self.totals[row.position] = (self.counters.unpinned_count, self.counters.unpinned_tokens)

    def _count(self, row: models.Message, message: ChatMessage) -> Iterator[tuple[str, str]]:
        """Append a message to the counters, and compare its row with what an append would have written."""
        where = f"the message at {row.position}"
        answers = None
        try:
            self.counters, expected = self.counters.append_one(message, row.tokens, self.previous)
            answers = expected.answers
        except ToolResultRefused:
            yield "stray_result", f"{where} is a tool result outside an open exchange"
            self.counters, _ = self.counters.append_one(ChatMessage.human(""), row.tokens)
        except ConvMemoryError:
            yield "pinned", f"{where} is pinned, but {MAX_PINNED} messages before it are, and more must not be"
            self.counters = self.counters._replace(last_position=row.position)
        self.previous = Previous.of(message, row.position, answers)
        if row.tokens < 1:
            yield "tokens", f"{where} has {row.tokens} tokens, but must have 1 or more"
        total = self.counters.unpinned_tokens
        if row.tokens_through != total:
            yield "total", f"tokens_through of {where} is {row.tokens_through}, but should be {total}"
            # Later rows are compared with this one, so that the difference is reported once.
            self.counters = self.counters._replace(unpinned_tokens=row.tokens_through)
        if row.answers != answers:
            yield "answers", f"answers of {where} is {row.answers}, but should be {answers}"
        if row.answers is not None:
            self.answers.append((row.answers, row.position))

    def _counters(self) -> Iterator[tuple[str, str]]:
        stored = self.session.counters
        for name in _COUNTERS:
            value, expected = getattr(stored, name), getattr(self.counters, name)
            if value != expected:
                yield f"counter_{name}", f"{name} is {value!r:.60}, but should be {expected!r:.60}"
        totals = (self.session.pinned_count, self.session.pinned_tokens)
        expected = (len(stored.pinned), sum(message.tokens for message in stored.pinned))
        if totals != expected:
            yield "counter_pinned_total", f"pinned_count and pinned_tokens are {totals}, but should be {expected}"

    def _used_keys(self) -> Iterator[tuple[str, str]]:
        rows = models.UsedKey.objects.using(self.using).filter(session=self.session, gone_at__isnull=True)
        keys = rows.order_by("first_position", "-size", "key_hash").values_list("first_position", "size")
        end = 0
        for first, size in keys:
            last = first + size - 1
            # The key of an answer has the place of its question, which may have been stored with a key.
            if size == 1 and first <= end and self._questions(first, end) == [first]:
                continue
            if not end < first <= last:
                yield "key", f"an idempotency key has the messages from {first} to {last}, but one before ends at {end}"
            elif last > self.session.last_position:
                end_of_session = self.session.last_position
                yield "key", f"an idempotency key has messages through {last}, but the session ends at {end_of_session}"
            end = max(end, last)

    def _questions(self, first: int, last: int) -> list[int]:
        rows = models.Message.objects.using(self.using).filter(session=self.session, position__range=(first, last))
        return list(rows.filter(role="user").order_by("position").values_list("position", flat=True))

    def _summaries(self, summaries: list[models.Summary]) -> Iterator[tuple[str, str]]:
        by_version = {summary.version: summary for summary in summaries}
        children: dict[int, models.Summary] = {}
        for summary in summaries:
            name = f"summary {summary.version}"
            if summary.version > self.session.last_version:
                yield "version", f"{name} is newer than last_version, {self.session.last_version}"
            if not 0 < summary.first_position <= summary.last_position:
                yield "range", f"{name} begins at {summary.first_position} and ends at {summary.last_position}"
            if summary.invalidated_at is not None:
                continue
            yield from self._valid(name, summary)
            if summary.parent_version is None:
                if summary.first_position != 1:
                    yield "hole", f"{name} has no parent, but begins at {summary.first_position}"
                continue
            yield from self._parent(name, summary, by_version.get(summary.parent_version))
            sibling = children.setdefault(summary.parent_version, summary)
            if sibling is not summary and sibling.building == summary.building:
                versions = f"summaries {sibling.version} and {summary.version}"
                yield "fork_of_line", f"{versions} have the same parent, {summary.parent_version}"

    def _valid(self, name: str, summary: models.Summary) -> Iterator[tuple[str, str]]:
        if not summary.text.strip() and not summary.carried:
            yield "blank", f"{name} is blank"
        if summary.tokens < 1 and summary.text:
            yield "tokens", f"{name} has {summary.tokens} tokens, but must have 1 or more"
        last = self.session.last_position
        if summary.last_position > last:
            yield "beyond", f"{name} ends at {summary.last_position}, but the session ends at {last}"
            return
        covered, expected = (summary.covered_count, summary.covered_tokens), self.totals.get(summary.last_position)
        if expected is not None and covered != expected:
            yield "covered", f"covered_count and covered_tokens of {name} are {covered}, but should be {expected}"
        cut = any(call <= summary.last_position < result for call, result in self.answers)
        if cut or 0 < self.counters.open_position <= summary.last_position:
            yield "cut", f"{name} ends inside an exchange"

    def _parent(self, name: str, summary: models.Summary, parent: models.Summary | None) -> Iterator[tuple[str, str]]:
        if parent is None:
            yield "parent", f"{name} has the parent {summary.parent_version}, which does not exist"
        elif parent.version >= summary.version:
            yield "parent", f"{name} has the parent {parent.version}, which is not older"
        elif parent.invalidated_at is not None:
            yield "parent", f"{name} has the parent {parent.version}, which is not valid"
        elif parent.part_end is not None:
            if (parent.first_position, parent.last_position) != (summary.first_position, summary.last_position):
                yield "hole", f"{name} has the parent {parent.version}, a part of other messages"
        elif parent.last_position + 1 != summary.first_position:
            yield "hole", f"{name} begins at {summary.first_position}, but its parent ends at {parent.last_position}"

    def _pointer(self, summaries: list[models.Summary]) -> Iterator[tuple[str, str]]:
        session = self.session
        valid = [summary for summary in summaries if summary.invalidated_at is None and not summary.building]
        newest = valid[-1] if valid else models.Summary(version=0, last_position=0, covered_count=0, covered_tokens=0)
        if session.current_version != newest.version:
            version = newest.version
            yield "pointer", f"current_version is {session.current_version}, but the newest valid version is {version}"
            return
        covered = (session.covered_position, session.covered_count, session.covered_tokens)
        expected = (newest.last_position, newest.covered_count, newest.covered_tokens)
        if covered != expected:
            names = "covered_position, covered_count and covered_tokens"
            yield "covered_by_session", f"{names} are {covered}, but should be {expected} as in the current summary"

    def _compaction(self) -> Iterator[tuple[str, str]]:
        session = self.session
        if bool(session.lease_token) != (session.lease_expires_at is not None):
            yield "lease", "of lease_token and lease_expires_at, only one is set"
        indexed = session.indexed_position >= session.newest_position - 1
        if session.due_since is not None and session.settled_tokens <= session.covered_tokens and indexed:
            yield "due", "the session is marked due, but nothing in it can be folded or indexed"

    def _fork(self) -> Iterator[tuple[str, str]]:
        session = self.session
        if session.forked_from_id is None:
            return
        if session.fork_position is None:
            yield "copy", f"the session is a fork of session {session.forked_from_id}, but has no fork_position"
        if session.forked_from_id >= session.pk:
            yield "copy", f"the session is a fork of session {session.forked_from_id}, which is not older"


class _Index:
    """The comparison of a session's segments with its messages, which come in order."""

    def __init__(self, session: models.Session, using: str) -> None:
        self.indexed_position = session.indexed_position
        rows = models.Segment.objects.using(using).filter(session=session).order_by("session_id", "first")
        values = paged(rows.values_list("first", "last", "data"), "first", operator.itemgetter(0), size=_SEGMENTS)
        self.segments = map(Segment._make, values)
        self.segment: Segment | None = None
        # The position that the next message should have, and the time of the one before it.
        self.next = 1
        self.previous: Any = None
        # The messages of the segment.
        self.messages: list[Indexable] = []
        self.is_compared = True

    def compare(self, row: models.Message, message: ChatMessage) -> Iterator[tuple[str, str]]:
        """Take the next message, and compare its segment if the message is the last one in it."""
        if not self.is_compared or row.position > self.indexed_position:
            return
        self.segment = self.segment or next(self.segments, None)
        if self.segment is None or (not self.messages and self.segment.first != self.next):
            self.is_compared = False
            begins = f", and the next one begins at {self.segment.first}" if self.segment else ""
            yield "index_range", f"no segment has the message at the position {self.next}{begins}"
            return
        if self.segment.version != segments.VERSION:
            self.is_compared = False
            yield "index_version", "another version of this app has indexed the session"
            return
        if row.position != self.next:
            self.is_compared = False  # Messages are missing: that is a finding by itself.
            return
        self.messages.append(Indexable(row.position, row.created_at, message, row.redacted_at is not None))
        self.next += 1
        if row.position == self.segment.last:
            documents = list(indexing.documents(self.messages, self.previous))
            if segments.extended(None, self.segment.first, documents) != [self.segment]:
                where = f"the segment from {self.segment.first} to {self.segment.last}"
                yield "index", f"{where} does not have the terms of its messages"
            self.segment, self.messages, self.previous = None, [], row.created_at

    def end(self) -> Iterator[tuple[str, str]]:
        """Compare the end of the index with the end of the session."""
        if not self.is_compared:
            return
        last = self.next - 1
        if self.segment is not None or last != self.indexed_position:
            yield "index_range", f"the index ends at {self.indexed_position}, but the session at {last}"
        elif next(self.segments, None) is not None:
            yield "index_range", f"indexed_position is {self.indexed_position}, but there are segments after it"


def _read(row: models.Message) -> tuple[ChatMessage, list[tuple[str, str]]]:
    """Return the message of a row, or an empty message if it cannot be read, and the findings in the row."""
    where, problems = f"the message at {row.position}", []
    if row.wire is not None and not (isinstance(row.wire, dict) and row.wire.keys() <= columns.WIRE_FIELDS):
        problems.append(("wire", f"wire of {where} has fields that do not belong there"))
    elif row.wire is not None and "content" in row.wire and row.content is not None:
        problems.append(("wire", f"{where} has one content in the column content, and another in wire"))
    if row.usage is not None and not isinstance(row.usage, dict):
        problems.append(("usage", f"usage of {where} is not an object"))
    try:
        message = columns.message_of_row(row)
        if row.role not in ROLES:
            raise ValueError(f"{row.role!r} is not a role")
        message = dataclasses.replace(message)  # This runs the checks of a new message.
    except (ConvMemoryError, ValueError, TypeError, AttributeError, KeyError) as error:
        problems.append(("message", f"{where} cannot be read: {error}"))
        message = ChatMessage.human("")
    if row.redacted_at is not None and message.emptied() != message:
        problems.append(("redacted", f"{where} is marked as redacted, but has content"))
    return message, problems


# Repairs.


def recount(memory: ConversationMemory, session_id: int, *, using: str) -> bool:
    """Count the messages and summaries of a session with the memory's counter. Return whether the session exists.

    This is one transaction, which holds the lock of the session's row. An append waits for it. A compaction that began
    before it cannot publish. A redacted message keeps its tokens, because its content is gone.
    """
    return transactions.run(using, lambda: _recount(memory, session_id, using), idle=transactions.LONG_IDLE_SECONDS)


def _recount(memory: ConversationMemory, session_id: int, using: str) -> bool:
    sessions = models.Session.objects.using(using).filter(pk=session_id)
    # The conversation does not change: lists keep their order, and an old session can still be pruned.
    if not editing.begin(sessions, updated=False):
        return False
    summaries = list(models.Summary.objects.using(using).filter(session_id=session_id))
    ends = {summary.last_position for summary in summaries}
    counters, counters_at = _recount_messages(memory, session_id, using, ends)
    for summary in summaries:
        message = memory.options.summary_message(summary.text)
        # An empty summary is not shown.
        summary.tokens = memory.counter.count(message) if summary.text else 0
        if summary.last_position in counters_at:
            at = counters_at[summary.last_position]
            summary.covered_count, summary.covered_tokens = at.unpinned_count, at.unpinned_tokens
    names = ["tokens", "covered_count", "covered_tokens"]
    models.Summary.objects.using(using).bulk_update(summaries, names, batch_size=_CHUNK)
    threshold = memory.threshold
    indexed = transactions.latest(sessions).values_list("indexed_position", flat=True).get()
    editing.finish(using, session_id, counters, counters.last_position + 1, threshold, indexed_position=indexed)
    sessions.update(counter=memory.counter_name)
    return True


def _recount_messages(
    memory: ConversationMemory, session_id: int, using: str, ends: set[int]
) -> tuple[Counters, dict[int, Counters]]:
    """Count the messages. Return the counters after the last message, and the counters at each position in ``ends``."""
    rows = models.Message.objects.using(using).filter(session_id=session_id)
    counters, counters_at = Counters(), dict[int, Counters]()
    while True:
        unread = rows.filter(position__gt=counters.last_position)
        chunk = list(transactions.latest(unread).order_by("position")[:_COUNTED])
        if not chunk:
            return counters, counters_at
        changes = []
        for row in chunk:
            message = columns.message_of_row(row)
            tokens = max(1, row.tokens if row.redacted_at else memory.counter.count(message))
            counters, place = counters.append_one(message, tokens)
            changes.append((tokens, place.tokens_through, session_id, row.position))
            if row.position in ends:
                counters_at[row.position] = counters
        with connections[using].cursor() as cursor:
            cursor.executemany(_UPDATE, changes)


def reindex(memory: ConversationMemory, session_id: int, *, using: str, damaged: bool) -> None:
    """Index the messages of a session that are not indexed. If the index is ``damaged``, remove it first.

    A compaction that runs while the index is removed cannot publish, because the session's epoch is raised. If the
    memory has no index, nothing is indexed.
    """
    if damaged:
        index_rows.reset(using, session_id)
    if memory.options.index:
        indexing.catch_up(ORMStore(using), session_id, longest=math.inf)
