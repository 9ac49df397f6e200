"""The turns of sessions: see Note [A turn is in the session's row] in :mod:`.rules.turns`."""

from __future__ import annotations

import uuid
from typing import Any

from django.db import connections
from django.db.models import Q

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.messages import PINNED_ROLES
from django_convmemory.rules import turns, values
from django_convmemory.rules.counters import Batch, Covered
from django_convmemory.rules.keys import check_reuse
from django_convmemory.rules.strategies import Threshold, View
from django_convmemory.rules.values import SessionName, Snapshot, StoredMessage
from django_convmemory.store import appending, columns, database, editing, sql, transactions

# How many messages after a question are read at a time.
_PAGE = 100


class Turns(database.Database):
    """Opens, renews and ends the turns of sessions, and finds questions and their replies."""

    def waits(self) -> bool:
        """Whether a turn may wait for another one. Not in a test's transaction, which nobody else sees.

        Raises RuntimeError in a transaction of the caller, as ``atomic(durable=True)`` does: the question would not be
        stored before the model is asked.
        """
        connection = connections[self.using]
        if not transactions.is_open(connection):
            return True
        blocks: list[Any] = connection.atomic_blocks
        if not blocks or not blocks[-1]._from_testcase:
            raise RuntimeError(
                "A question cannot be answered inside a transaction: it would stay open while the model answers, and "
                "others would not see the question. Move the call out of atomic(), or decorate the view with "
                "transaction.non_atomic_requests if ATOMIC_REQUESTS is on."
            )
        return False

    def give_back_connection(self) -> None:
        """Give the connection back to Django's pool, if there is one, while the model answers or the request waits."""
        connection = connections[self.using]
        if "pool" in connection.settings_dict.get("OPTIONS", {}) and not connection.in_atomic_block:
            connection.close()

    def begin_turn(self, name: SessionName, step: turns.Step) -> None:
        """Open a turn for a question that is stored. Raises the reason if that cannot be done now."""
        sessions = self._sessions.named(name)
        free = Q(turn_token="") | Q(turn_expires_at__lte=Clock())
        free_rows = sessions.filter(free, epoch=step.epoch, last_position=step.last_position)
        changes = appending.turn_columns(step, step.question)
        for _ in range(transactions.TRIES):
            if _update(free_rows, changes):
                return
            session = sessions.first()
            if session is not None and session.turn_token == step.token:
                return  # The connection was lost after the turn had been opened.
            # If it can be done now, the turn of another request has ended in between.
            appending.check_step(self.using, session, step)
        raise turns.in_progress(0.0)

    def renew_turn(self, name: SessionName, step: turns.Step) -> bool:
        """Let the turn last for ``step.seconds`` from now on, and return whether somebody has stopped its reply.

        Raises :class:`~django_convmemory.exceptions.TurnLost`.
        """
        rows = self._sessions.named(name).filter(turn_token=step.token)
        if _update(rows.filter(turn_stopped=False), appending.turn_columns(step._replace(does=turns.Does.GOES_ON), 0)):
            return False
        if not rows.exists():
            raise turns.lost()
        return True

    def end_turn(self, name: SessionName, step: turns.Step) -> None:
        """End the turn, if it is still this one."""
        rows = self._sessions.named(name).filter(turn_token=step.token)
        _update(rows, appending.turn_columns(step._replace(does=turns.Does.ENDS), 0))

    def stop_turn(self, name: SessionName, question: int) -> bool:
        """Ask the turn that answers the message at ``question`` to stop. Return whether there is one."""
        rows = self._sessions.named(name).filter(turn_expires_at__gt=Clock(), turn_question=question)
        return _update(rows.exclude(turn_token=""), {"turn_stopped": True}) > 0

    def step_turn(self, name: SessionName, batch: Batch, threshold: Threshold, *, counter: str) -> values.Appended:
        """Store messages of a turn, as its next step. Raises TurnLost or QuestionChanged."""
        using, step = self.using, batch.step
        if step is None or step.after is None:
            return appending.append_new(using, name, batch, threshold, counter=counter)
        after = step.after
        sessions = self._sessions.named(name)
        ours = sessions.filter(turn_token=step.token, epoch=step.epoch, last_position=step.last_position)

        def work() -> values.Appended:
            if not ours.lock():
                appending.check_step(using, transactions.latest(sessions).first(), step)
                raise turns.changed()
            editing.truncate(using, name, after, threshold, revision=None)
            checked = batch.with_step(step._replace(epoch=-1))
            return appending.append_new(using, name, checked, threshold, counter=counter)

        return transactions.run(using, work, savepoint=True)

    def moved(self, name: SessionName, step: turns.Step, last_id: uuid.UUID, question_id: uuid.UUID) -> int | None:
        """Return the epoch of the session if the question and the last message of the turn are as they were, or None.

        Only another message was redacted then.
        """
        unmoved = self._sessions.named(name).filter(last_position=step.last_position)
        session_id, epoch = unmoved.values_list("pk", "epoch").first() or (0, None)
        rows = models.Message.objects.using(self.using).filter(session_id=session_id, redacted_at__isnull=True)
        wanted = {step.question: question_id, step.last_position: last_id}
        found = dict(rows.filter(position__in=list(wanted)).values_list("position", "public_id"))
        return epoch if found == wanted else None

    def revisions(self, name: SessionName) -> tuple[int, int]:
        """Return the two numbers that count the changes of the session: of its messages, and of its details."""
        return self._sessions.named(name).values_list("revision", "details").first() or (0, 0)

    def question(self, name: SessionName, message_id: uuid.UUID | None) -> StoredMessage | None:
        """Return the message with this id, or the newest one of the user if that is None. None: there is none."""
        session_id = database.id_of(self._sessions.named(name))
        rows = models.Message.objects.using(self.using).filter(session_id=session_id, role="user")
        rows = rows.filter(public_id=message_id) if message_id else rows
        row = rows.order_by("-session_id", "-position").values_list(*columns.STORED_NAMES).first()
        return columns.stored_message(*row) if row else None

    def after_question(self, name: SessionName, question: int) -> tuple[turns.State, list[StoredMessage]]:
        """Return the messages that follow the question in its turn, and the state of the session at that moment.

        They end before the next message of a user.
        """
        sessions = self._sessions.named(name)
        while True:
            row = sessions.values_list("pk", *turns.State._fields).first()
            if row is None:
                raise turns.changed()
            state = turns.State(*row[1:])
            rows = models.Message.objects.using(self.using).filter(session_id=row[0], position__lte=state.last_position)
            found: list[StoredMessage] = []
            while True:
                after = question + len(found)
                page = rows.filter(position__gt=after, position__lte=after + _PAGE).order_by("session_id", "position")
                stored = [columns.stored_message(*row) for row in page.values_list(*columns.STORED_NAMES)]
                following = values.turn_of(question, stored)
                found += following
                if len(following) < _PAGE:
                    break
            # If messages were removed meanwhile, the epoch has changed.
            if sessions.values_list("epoch", flat=True).first() == state.epoch:
                return state, found

    def keyed_question(self, name: SessionName, batch: Batch) -> int | None:
        """Return the position of the question with which the key of ``batch`` was stored, or None if it is not used.

        Raises :class:`~django_convmemory.exceptions.IdempotencyConflict` if it stands for something else, and
        ``QuestionChanged`` if the question was removed.
        """
        keys = appending.used_key(self.using, name, batch)
        key = keys.values_list("first_position", "size", "content", "gone_at").first()
        if key is None or (key[3] is not None and keys.forgotten().exists()):
            return None
        first, size, content, gone_at = key
        check_reuse(batch, first, size, is_same=appending.is_same(content, batch))
        if gone_at is not None:
            raise turns.changed()
        return int(first)

    def load_at(self, name: SessionName, view: View, pinned_tokens: float, position: int) -> Snapshot | None:
        """Return what :meth:`.ORMStore.load` would return if the session ended at ``position``, with a user's message.

        The summary is the newest one that ends before it.
        """
        using = self.using
        while (session := self._sessions.named(name).first()) is not None:
            summaries = models.Summary.objects.using(using).filter(session=session, last_position__lt=position)
            summary = summaries.current().first() if view.summary else None
            counters = editing.rewound_to(using, session, position)
            counters = counters.covering(summary.covered if summary else Covered())
            rows = models.Message.objects.using(using).filter(session=session, position__lte=position)
            bound = values.view_bound(counters, view)
            tail = rows.exclude(role__in=PINNED_ROLES).filter(
                position__gt=bound.position, tokens_through__gt=bound.tokens_through
            )
            pinned = rows.filter(position__in=values.shown_pinned(counters.pinned, pinned_tokens))
            shown, first = (columns.placed(query.values_list(*sql.PLACED_NAMES)) for query in (tail, pinned))
            if self._sessions.filter(pk=session.pk, epoch=session.epoch).exists():
                version = summary.value if summary else None
                state = (session.due_since is not None, session.revision, session.epoch)
                return Snapshot(session.pk, counters, *state, version, first, shown)
        return None


def _update(rows: models.SessionQuerySet, changes: dict[str, Any]) -> int:
    """Change a session's row in one statement. It does no harm to do it twice."""
    return transactions.run(rows.db, lambda: rows.update(**changes), atomic=False, happened=lambda: False)
