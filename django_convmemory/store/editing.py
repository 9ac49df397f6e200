"""Operations that change stored conversations: clear, truncate, replace, update, fork, redact, erase and adopt.

The function ``work`` of an operation is one transaction. It begins with a write, which locks the session's row.
Everything that it reads after that is current. And SQLite refuses a write in a transaction that has begun by reading.
In a transaction of the caller, it has a savepoint: a receiver of ``content_changed`` may raise, and the caller go on.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from django.db import IntegrityError, connections
from django.db.models import Case, F, Q, QuerySet, When
from django.db.models.functions import Coalesce

from django_convmemory import models, signals
from django_convmemory.clock import Clock
from django_convmemory.exceptions import UnknownMessage
from django_convmemory.messages import PINNED_ROLES
from django_convmemory.rules import values
from django_convmemory.rules.counters import Batch, Counters, Covered, rewound
from django_convmemory.rules.exchanges import MessageRef
from django_convmemory.rules.keys import Creation
from django_convmemory.rules.segments import Segment
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import Appended, Edited, Forked, Redaction, SessionName, StoredMessage
from django_convmemory.store import appending, columns, database, index_rows, sql, transactions

# The number of rows that one statement names.
_PORTION = 500


class Editing(database.Database):
    """Changes stored conversations.

    Each operation that removes or changes messages raises the epoch, so that a compaction that began before cannot
    publish. And each clears the lease, so that the next compaction need not wait for it.
    """

    def update(self, name: SessionName, changes: Mapping[str, Any], *, revision: int | None) -> None:
        """Set ``title``, ``metadata``, ``archived`` or ``starred`` of the session to the values in ``changes``.

        Without any, nothing is written. Only the first two change the conversation and the time of its last change.

        Raises :class:`~django_convmemory.exceptions.UnknownSession` if there is no such session, and ``StaleRevision``
        if ``revision`` is not None and the session is at another one.
        """
        sessions = self._sessions.named(name)
        columns: dict[str, Any] = {}
        for field, value in changes.items():
            if field in ("archived", "starred"):
                # A second request keeps the time of the first one.
                columns[f"{field}_at"] = Coalesce(f"{field}_at", Clock()) if value else None
            else:
                columns |= {field: value, "updated_at": Clock()}

        def work() -> None:
            if columns and sessions.at(revision).update(**columns, details=F("details") + 1):
                return
            if not exists_at(sessions, revision) or columns:
                raise values.gone(name)

        # One statement, so no transaction.
        transactions.run(self.using, work, atomic=False)

    def update_message(
        self, name: SessionName, position: int, metadata: Mapping[str, Any], *, revision: int | None
    ) -> None:
        """Replace the metadata of the message at ``position``.

        The epoch stays, because no summary shows metadata. Raises
        :class:`~django_convmemory.exceptions.UnknownMessage`, ``RedactedMessage``, ``UnknownSession``,
        ``StaleRevision``.
        """
        sessions = self._sessions.named(name)

        def work() -> None:
            reached = sessions.at(revision).filter(last_position__gte=position)
            # It locks the session's row, so that no redaction or deletion comes in between.
            if position < 1 or not reached.update(details=F("details") + 1):
                _require_row(sessions, name, revision)
                raise _no_message(sessions, position)
            session_id = database.id_of(transactions.latest(sessions))
            rows = models.Message.objects.using(sessions.db).filter(session_id=session_id, position=position)
            if not rows.filter(redacted_at__isnull=True).update(metadata=dict(metadata) or None):
                raise values.redacted(position)

        # A second change to the same metadata does no harm.
        transactions.run(sessions.db, work, savepoint=True, happened=lambda: False)

    def delete(self, name: SessionName, *, revision: int | None) -> bool:
        """Delete the session with everything in it, and return whether there was one.

        Raises :class:`~django_convmemory.exceptions.StaleRevision` as :meth:`update` does.
        """
        sessions = self._sessions.named(name)

        def work() -> bool:
            if not sessions.at(revision).update(epoch=F("epoch") + 1):
                exists_at(sessions, revision)
                return False
            session = transactions.latest(sessions).get()
            session.locked = True
            session.delete(using=sessions.db)
            return True

        happened = functools.partial(self._none, name_hash=name.name_hash)
        return transactions.settled(
            lambda: transactions.run(sessions.db, work, savepoint=True, happened=happened), name
        )

    def clear(self, name: SessionName) -> None:
        """Delete the messages and summaries of the session. The session stays, and begins again at position 1.

        Idempotency keys stay used: see :mod:`.rules.keys`. So they do after the other operations that delete
        messages.
        """

        using = self.using

        def work() -> None:
            session = _begun(self._sessions.named(name), name)
            if session is not None:
                # The numbers of its versions go on.
                self._sessions.filter(pk=session.pk).update(
                    **models.counter_columns(Counters()),
                    rebuild_after=None,
                    answered_position=0,
                    current_version=0,
                    indexed_position=0,
                )
                models.Message.objects.using(using).filter(session=session).delete()
                models.Summary.objects.using(using).filter(session=session).delete()
                index_rows.delete(using, session.pk)
                _tell(using, session.pk, 1)
                _mark_gone(using, session.pk, 0)

        happened = functools.partial(self._none, name_hash=name.name_hash, last_position__gt=0)
        transactions.run(using, work, savepoint=True, happened=happened)

    def truncate(
        self, name: SessionName, after: int, threshold: Threshold, *, revision: int | None
    ) -> tuple[int, Edited | None]:
        """Delete the messages after the position ``after``, and return their number.

        Summaries that reach further are invalidated. Raises :class:`~django_convmemory.exceptions.StaleRevision` if
        ``revision`` is given and the session is at another one.
        """
        work = functools.partial(truncate, self.using, name, after, threshold, revision=revision)
        happened = functools.partial(self._none, name_hash=name.name_hash, last_position__gt=after)
        return transactions.run(self.using, work, savepoint=True, happened=happened)

    def replace(
        self, name: SessionName, after: int, batch: Batch, threshold: Threshold, *, counter: str, revision: int | None
    ) -> Appended:
        """Delete the messages after the position ``after`` as :meth:`truncate` does, and append ``batch``: or neither.

        A batch whose key was used changes nothing, whatever the revision. Raises the errors of both operations, and
        :class:`~django_convmemory.exceptions.UnknownMessage` if there is no message at ``after``.
        """
        using, sessions = self.using, self._sessions.named(name)

        def work() -> Appended:
            locked = sessions.at(revision).filter(last_position__gte=after).lock()
            if batch.key_hash is not None:
                # Before the revision is compared: the first try has changed it.
                replayed = appending.replay(using, name, batch)
                if replayed is not None:
                    return replayed
            if not locked:
                _require_row(sessions, name, revision)
                if after:
                    raise _no_message(sessions, after)
                # Without the lock of its row, messages that another process stores meanwhile would stay.
                appending.create_session(using, name)
            # The row is locked, so its revision need not be compared again.
            _, edited = truncate(using, name, after, threshold, revision=None)
            appended = appending.append_new(using, name, batch, threshold, counter=counter)
            return appended._replace(turned_due=appended.turned_due or bool(edited and edited.turned_due))

        def happened() -> bool:
            return appending.replay(using, name, batch) is not None

        def try_once() -> Appended:
            try:
                return transactions.run(using, work, savepoint=True, happened=happened if batch.key_hash else None)
            except IntegrityError:
                # Unless the owner is gone, another process has created the session at the same moment.
                appending.require_owner(using, name.owner_id)
                raise

        return transactions.settled(try_once, name)

    def pop(self, name: SessionName, threshold: Threshold) -> tuple[StoredMessage | None, Edited | None]:
        """Delete the last message as :meth:`truncate` does, and return it with its item. None: there is no message.

        No other message is deleted, whatever is appended meanwhile.
        """

        using = self.using

        def work() -> tuple[StoredMessage | None, Edited | None]:
            session = _begun(self._sessions.named(name), name, last_position__gt=0)
            if session is None:
                return None, None
            rows = models.Message.objects.using(using).filter(session=session, position=session.last_position)
            row = transactions.latest(rows).values_list(*columns.STORED_NAMES, *columns.ITEM_NAMES).get()
            _, edited = _cut(using, session, session.last_position - 1, threshold)
            return columns.stored_message(*row), edited

        # If nobody knows whether it was deleted, another try could delete another message. So the error is raised.
        return transactions.run(using, work, savepoint=True)

    def fork(
        self,
        source: SessionName,
        target: SessionName,
        at: int,
        threshold: Threshold,
        *,
        title: str | None = None,
        creation: Creation | None = None,
    ) -> Forked:
        """Copy the session ``source`` through the position ``at`` to the new session ``target``.

        Without ``title`` it has the title of ``source``. ``creation`` is as for :meth:`create`. Raises
        :class:`~django_convmemory.exceptions.InvalidSession`, ``SessionExists``, ``UnknownMessage``,
        ``IdempotencyConflict``.
        """
        using, sessions = self.using, self._sessions

        def work(public_id: uuid.UUID, index: list[Segment], index_epoch: int | None) -> Forked:
            if not sessions.named(source).lock():
                raise values.no_session(source) if source.row_id is None else values.gone(source)
            # Another fork with the same key held the lock until it was committed.
            earlier = appending.created_by(using, creation)
            if earlier is not None:
                return Forked(earlier)
            session = transactions.latest(sessions.named(source)).get()
            if at > session.last_position:
                raise values.no_message(at, session.last_position)
            if transactions.latest(sessions.named(target)).exists():
                raise values.session_exists(target)
            copy = appending.create_session(
                using,
                target,
                public_id=public_id,
                title=session.title if title is None else title,
                metadata=session.metadata,
                counter=session.counter,
                last_version=session.last_version,
                forked_from=session,
                fork_position=at,
                creation=creation,
            )
            counters = rewound_to(using, session, at)
            with connections[using].cursor() as cursor:
                cursor.execute(*sql.copy_messages(connections[using].vendor, session.pk, copy.pk, at))
                cursor.execute(*sql.copy_summaries(session.pk, copy.pk, at))
            # If messages were changed since the index was read, the copy is indexed later.
            copied = index if index_epoch == session.epoch else []
            index_rows.insert(using, copy.pk, copied)
            _tell(using, copy.pk, 1, at, copied_from=session.pk)
            indexed = copied[-1].last if copied else 0
            edited = finish(using, copy.pk, counters, counters.first_unfoldable, threshold, indexed_position=indexed)
            return Forked(sessions.get(pk=copy.pk), edited)

        def try_once() -> Forked:
            public_id = uuid.uuid4()
            copying = functools.partial(work, public_id, *index_rows.copied(using, sessions.named(source), at))
            happened = sessions.filter(public_id=public_id).exists
            try:
                return transactions.run(using, copying, savepoint=True, happened=happened)
            except IntegrityError as error:
                return Forked(appending.created_before(error, using, target, creation))

        return transactions.settled(try_once, target)

    def redact(self, name: SessionName, position: int, threshold: Threshold, *, forks: bool) -> Redaction:
        """Empty the message at ``position`` and every summary that covers it. With ``forks``, do so in its forks too.

        Raises :class:`~django_convmemory.exceptions.UnknownMessage`.
        """

        using, sessions = self.using, self._sessions.named(name)

        def work() -> Redaction:
            if position < 1 or not sessions.filter(last_position__gte=position).lock():
                raise _no_message(sessions, position)
            session_id = transactions.latest(sessions).values_list("pk", flat=True).get()
            ids = [session_id, *(_copies(using, session_id, position) if forks else [])]
            # They are locked: no worker can take a lease now.
            leased = self._sessions.filter(pk__in=ids, lease_expires_at__gt=Clock())
            in_flight = transactions.latest(leased).exists()
            return Redaction([_redact(using, pk, position, threshold) for pk in ids], in_flight)

        # A second redaction finds the same copies, and changes nothing.
        return transactions.run(using, work, savepoint=True, happened=lambda: False)

    def erase(self, alias: str, *, owner_id: Any, visitor: str) -> int:
        """Delete the sessions of an owner or a visitor with all their messages, and return their number."""
        sessions = self._sessions.filter(alias=alias, owner_id=owner_id, visitor=visitor)

        def work() -> int:
            deleted = [portion.delete()[1] for portion in locked(sessions)]
            return sum(counts.get(models.Session._meta.label, 0) for counts in deleted)

        return transactions.run(sessions.db, work, savepoint=True, happened=lambda: not sessions.exists())

    def adopt(self, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
        """Give a visitor's sessions to an owner, and return their names.

        If the owner has a session with the same key already, the key gets a number.
        """
        using, everyone = self.using, self._sessions
        sessions = everyone.filter(alias=alias, visitor=visitor)

        def work() -> list[SessionName]:
            sessions.update(details=F("details") + 1)
            appending.require_owner(using, owner_id)
            names = []
            for session_id, key in list(transactions.latest(sessions).order_by("pk").values_list("pk", "key")):
                name = values.free_name(
                    SessionName(alias, key, owner_id), lambda name: transactions.latest(everyone.named(name)).exists()
                )
                everyone.filter(pk=session_id).update(
                    name_hash=name.name_hash, key=name.key, owner_id=owner_id, visitor="", updated_at=Clock()
                )
                names.append(name)
            return names

        happened = functools.partial(self._none, alias=alias, visitor=visitor)
        # The owner may create a session with one of the keys at the same time.
        what = f"all sessions of owner {owner_id!r}"
        return transactions.settled(lambda: transactions.run(using, work, savepoint=True, happened=happened), what)


def truncate(
    using: str, name: SessionName, after: int, threshold: Threshold, *, revision: int | None
) -> tuple[int, Edited | None]:
    """Delete the messages after ``after`` in a transaction that is open. See :meth:`.ORMStore.truncate`."""
    sessions = models.Session.objects.using(using).named(name)
    session = _begun(sessions, name, revision, last_position__gt=after)
    return (0, None) if session is None else _cut(using, session, after, threshold)


def _begun(
    sessions: models.SessionQuerySet, name: SessionName, revision: int | None = None, **conditions: Any
) -> models.Session | None:
    """Return the session after :func:`begin`, or None if it does not meet the conditions."""
    if begin(sessions.at(revision).filter(**conditions)):
        return transactions.latest(sessions).get()
    _require_row(sessions, name, revision)
    return None


def _cut(using: str, session: models.Session, after: int, threshold: Threshold) -> tuple[int, Edited]:
    """Delete the messages after ``after`` of a session whose row is locked. Return their number."""
    counters = rewound_to(using, session, after)
    removed, _ = models.Message.objects.using(using).filter(session=session, position__gt=after).delete()
    # The summaries of these messages are emptied too. A later redaction could not find them any more.
    models.Summary.objects.using(using).filter(session=session, last_position__gt=after).empty()
    indexed = index_rows.cut(using, session.pk, after, session.indexed_position)
    _tell(using, session.pk, after + 1)
    _mark_gone(using, session.pk, after)
    return removed, finish(using, session.pk, counters, counters.first_unfoldable, threshold, indexed_position=indexed)


def _mark_gone(using: str, session_id: int, after: int) -> None:
    """Note that the messages after the position ``after`` are removed. A key of which one is removed is gone."""
    keys = models.UsedKey.objects.using(using).filter(session_id=session_id, gone_at__isnull=True)
    keys.filter(first_position__gt=after + 1 - F("size")).update(gone_at=Clock())


def exists_at(sessions: models.SessionQuerySet, revision: int | None) -> bool:
    """Return whether the session exists. Raises ``StaleRevision`` if it is at another ``revision`` than this one."""
    current = transactions.latest(sessions).values_list("revision", flat=True).first()
    if current is not None and revision is not None and current != revision:
        raise values.stale(revision, current)
    return current is not None


def _require_row(sessions: models.SessionQuerySet, name: SessionName, revision: int | None) -> None:
    """Raise StaleRevision for another revision, and UnknownSession if the row that ``name`` means is gone."""
    if not exists_at(sessions, revision) and name.row_id is not None:
        raise values.gone(name)


def _no_message(sessions: models.SessionQuerySet, position: int) -> UnknownMessage:
    """Return the error for a position at which the session has no message."""
    last = transactions.latest(sessions).values_list("last_position", flat=True).first()
    return values.no_message(position, last or 0)


def _copies(using: str, session_id: int, position: int) -> list[int]:
    """Lock the forks of a session, and the forks of those. Return the ones that have its message at ``position``.

    A fork locks the session that it copies. So once all known forks are locked and another look finds no more, none is
    missed. Older sessions are locked first, as everywhere: a fork is younger than its original.
    """
    sessions = models.Session.objects.using(using)
    locked: set[int] = set()
    while new := sorted(set(_descendants(using, session_id, position)) - locked):
        rows = sessions.filter(pk__in=new).order_by("pk")
        if connections[using].features.has_select_for_update:
            locked.update(rows.select_for_update().values_list("pk", flat=True))
        locked.update(new)
    messages = transactions.latest(models.Message.objects.using(using)).filter(position=position)
    original = messages.values_list("public_id", flat=True).get(session_id=session_id)
    # Another message has another id. It has the position if the fork was cut before it, and went on in another way.
    copies = messages.filter(session_id__in=_descendants(using, session_id, position), public_id=original)
    return list(copies.order_by("session_id").values_list("session_id", flat=True))


def _descendants(using: str, session_id: int, position: int) -> list[int]:
    """Return the forks that were made at ``position`` or later, and the forks of those."""
    sessions = transactions.latest(models.Session.objects.using(using))
    descendants: list[int] = []
    generation = [session_id]
    while generation:
        forks = sessions.filter(forked_from__in=generation, fork_position__gte=position)
        generation = [pk for pk in forks.values_list("pk", flat=True) if pk not in (session_id, *descendants)]
        descendants += generation
    return descendants


def _redact(using: str, session_id: int, position: int, threshold: Threshold) -> Edited:
    sessions = models.Session.objects.using(using).filter(pk=session_id)
    begin(sessions)
    messages = models.Message.objects.using(using).filter(session_id=session_id)
    row = transactions.latest(messages.filter(position=position)).get()
    emptied = columns.redacted_values(columns.message_of_row(row))
    messages.filter(position=position).update(**emptied, redacted_at=Coalesce("redacted_at", Clock()))
    # No key keeps an HMAC of the message, not even one whose other messages were removed.
    keys = models.UsedKey.objects.using(using).filter(session_id=session_id)
    keys.filter(first_position__lte=position, first_position__gt=position - F("size")).update(content="")
    models.Summary.objects.using(using).filter(session_id=session_id, last_position__gte=position).empty()
    session = transactions.latest(sessions).get()
    indexed = index_rows.strike(using, session_id, position, session.indexed_position)
    _tell(using, session_id, position, position)
    return finish(using, session_id, session.counters, position, threshold, indexed_position=indexed)


def _tell(using: str, session_id: int, first: int, last: int | None = None, *, copied_from: int | None = None) -> None:
    """Send the signal that the content of these positions has changed."""
    signals.content_changed.send(
        models.Session, using=using, session_id=session_id, first=first, last=last, copied_from=copied_from
    )


def locked(sessions: models.SessionQuerySet) -> Iterator[models.SessionQuerySet]:
    """Yield ``sessions`` in portions whose rows are locked, so that nothing is appended while the caller works on them.

    The write comes first. It waits for appends that are running and sees their changes. Later appends wait for the
    locks. A session that is created meanwhile is either locked before it is yielded, or is not yielded.
    """
    sessions.update(epoch=F("epoch") + 1)
    ids = list(transactions.latest(sessions).order_by("pk").values_list("pk", flat=True))
    for first in range(0, len(ids), _PORTION):
        portion = models.Session.objects.using(sessions.db).filter(pk__in=ids[first : first + _PORTION])
        portion.update(epoch=F("epoch") + 1)
        yield portion


def begin(sessions: QuerySet[models.Session], *, updated: bool = True) -> int:
    """Lock the session's row, end its compaction, and return the number of rows.

    The lease, the due mark and the failures are cleared. A worker that is still folding cannot publish. Without
    ``updated``, the time of the last change stays.
    """
    # A rebuild that is running has put its next try off. It loses its lease here, so the next one begins soon. A fold
    # that is running is taken for one. If a rebuild has failed, its next try then comes early, at the cost of a call.
    is_running = When(rebuild_after__isnull=False, lease_expires_at__gt=Clock(), then=Clock())
    changes: dict[str, Any] = {
        # Before the lease changes: MariaDB evaluates an UPDATE from left to right.
        "rebuild_after": Case(is_running, default=F("rebuild_after")),
        **models.NOT_COMPACTING,
        "epoch": F("epoch") + 1,
        "revision": F("revision") + 1,
    }
    if updated:
        changes["updated_at"] = Clock()
    return sessions.update(**changes)


def finish(
    using: str, session_id: int, counters: Counters, position: int, threshold: Threshold, *, indexed_position: int
) -> Edited:
    """Complete a change of the messages from ``position`` on.

    The summaries that cover the position are invalidated, and the newest one that is left becomes current. The counters
    and the ``indexed_position`` are stored. The session is marked due if ``threshold`` says so.
    """
    summaries = models.Summary.objects.using(using).filter(session_id=session_id)
    summaries.filter(last_position__gte=position, invalidated_at__isnull=True).update(invalidated_at=Clock())
    current = transactions.latest(summaries.current()).first()
    # Also if it is a part of an exchange that is not folded to its end: it will be shown.
    unmade = summaries.valid().filter(Q(stand_in=True) | Q(building=True))
    stand_ins = set(transactions.latest(unmade).values_list("stand_in", flat=True))
    # A rebuild that has begun goes on. If the last one has failed, an edit does not begin the next one before its time.
    rebuild_after: F | Coalesce | None = F("rebuild_after") if stand_ins else None
    if True in stand_ins:
        rebuild_after = Coalesce("rebuild_after", Clock())
    counters = counters.covering(current.covered if current else Covered())
    due = counters.due(threshold, indexed_position=indexed_position)
    models.Session.objects.using(using).filter(pk=session_id).update(
        **models.counter_columns(counters),
        indexed_position=indexed_position,
        current_version=current.version if current else 0,
        due_since=Clock() if due else None,
        rebuild_after=rebuild_after,
    )
    return Edited(session_id, due)


def rewound_to(using: str, session: models.Session, position: int) -> Counters:
    """Return the counters of the session if it ends at ``position``, without a summary."""
    rows = models.Message.objects.using(using).filter(session=session, position__lte=position)
    rows = transactions.latest(rows)
    backwards = rows.order_by("-position")
    last = _refs(backwards.exclude(role__in=PINNED_ROLES)[:1])
    spoke = _refs(backwards.filter(role="assistant", answers__isnull=True)[:1])
    continuing = []
    if spoke:
        begins = spoke[0].position
        continuing = _refs(rows.filter(position__gt=begins, answers=begins).order_by("position"))
    return rewound(session.counters, position, last[0] if last else None, spoke[0] if spoke else None, continuing)


def _refs(rows: QuerySet[models.Message]) -> list[MessageRef]:
    names = ("position", "role", "wire", "tokens", "answers", "tokens_through")
    return [
        MessageRef(position, columns.message_of(role, "", "", wire, None), tokens, answers, None, through)
        for position, role, wire, tokens, answers, through in rows.values_list(*names)
    ]
