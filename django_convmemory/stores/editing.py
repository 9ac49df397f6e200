"""Changes of what was said: truncated, copied, redacted, erased, handed over.

Every function is the work of one transaction and begins with a write, which takes the lock of the session's row: SQLite
refuses to turn a reader into a writer, and what is read after it is what is there.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from django.db import connections
from django.db.models import F, QuerySet
from django.db.models.functions import Coalesce

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.ledger import Ending, Ledger, Standing, rewound
from django_convmemory.messages import PINNED_ROLES, ChatMessage
from django_convmemory.stores import sql, transactions, values
from django_convmemory.stores.values import Edited, SessionName
from django_convmemory.strategies import Threshold


def truncate(
    using: str, name: SessionName, after: int, threshold: Threshold, *, revision: int | None, hint: bool
) -> tuple[int, Edited | None]:
    """Delete the messages after ``after``: what :meth:`.base.Store.truncate` promises."""
    sessions = models.Session.objects.using(using).named(name)
    reached = sessions.filter(last_position__gt=after)
    if revision is not None:
        reached = reached.filter(revision=revision)
    if not begin(reached):
        found = sessions.values_list("revision", flat=True).first()
        if found is not None and revision not in (None, found):
            raise values.stale(revision or 0, found)
        return 0, None
    session = transactions.latest(sessions).get()
    ledger = rewound(session.ledger, _ending(using, session.pk, after))
    removed, _ = models.Message.objects.using(using).filter(session=session, position__gt=after).delete()
    sessions.filter(fork_position__gt=after).update(fork_position=after)
    _forks(using, [session.pk], after + 1).update(fork_position=after)
    return removed, finish(using, session.pk, ledger, after + 1, threshold, hint=hint)


def redact(
    using: str, name: SessionName, position: int, threshold: Threshold, *, forks: bool, hint: bool
) -> list[Edited]:
    """Empty the message at ``position``: what :meth:`.base.Store.redact` promises."""
    sessions = models.Session.objects.using(using)
    locked = sessions.named(name).filter(last_position__gte=position).update(revision=F("revision"))
    if not locked or position < 1:
        last = sessions.named(name).values_list("last_position", flat=True).first()
        raise values.no_message(position, last or 0)
    found = list(sessions.named(name).values_list("pk", flat=True))
    generation = found
    while forks and generation:
        generation = list(_forks(using, generation, position).order_by("pk").values_list("pk", flat=True))
        found += generation
    return [_redact(using, session_id, position, threshold, hint=hint) for session_id in found]


def _redact(using: str, session_id: int, position: int, threshold: Threshold, *, hint: bool) -> Edited:
    sessions = models.Session.objects.using(using).filter(pk=session_id)
    begin(sessions)
    messages = models.Message.objects.using(using).filter(session_id=session_id)
    row = transactions.latest(messages.filter(position=position)).get()
    emptied = sql.message_of(row.role, row.kind, row.content, row.wire, row.metadata).emptied()
    messages.filter(position=position).update(
        content=emptied.content,
        wire=sql.wire_value(emptied),
        metadata=None,
        redacted_at=Coalesce("redacted_at", Clock()),
    )
    # The key stays: a retry of the append must not bring back what was removed.
    keyed = messages.filter(position__lte=position, idempotency_key__isnull=False).order_by("-position")
    first_of_batch = keyed.values_list("position", flat=True).first()
    if first_of_batch is not None:
        messages.filter(position=first_of_batch).update(payload_hash="")
    models.Summary.objects.using(using).filter(session_id=session_id, last_position__gte=position).update(text="")
    return finish(using, session_id, transactions.latest(sessions).get().ledger, position, threshold, hint=hint)


def fork(
    using: str, source: SessionName, target: SessionName, at: int, threshold: Threshold, *, hint: bool
) -> values.Forked:
    """Copy ``source`` as it was at ``at``: what :meth:`.base.Store.fork` promises."""
    sessions = models.Session.objects.using(using)
    if not sessions.named(source).update(revision=F("revision")):
        raise values.no_session(source)
    session = transactions.latest(sessions.named(source)).get()
    if at > session.last_position:
        raise values.no_message(at, session.last_position)
    if sessions.named(target).exists():
        raise values.session_exists(target)
    copy = models.Session(
        alias=target.alias,
        key=target.key,
        owner_id=target.owner_id,
        visitor=target.visitor,
        handle=target.handle,
        title=session.title,
        metadata=session.metadata,
        counter=session.counter,
        last_version=session.last_version,
        forked_from=session,
        fork_position=at,
        created_at=Clock(),
        updated_at=Clock(),
    )
    copy.save(using=using, force_insert=True)
    ledger = rewound(session.ledger, _ending(using, session.pk, at))
    with connections[using].cursor() as cursor:
        cursor.execute(*sql.copy_messages(connections[using].vendor, session.pk, copy.pk, at))
        cursor.execute(*sql.copy_summaries(session.pk, copy.pk, at))
    edited = finish(using, copy.pk, ledger, at + 1, threshold, hint=hint)
    return values.Forked(sessions.get(pk=copy.pk), edited)


def erase(using: str, alias: str, *, owner_id: Any, visitor: str) -> int:
    """Delete a person's sessions: what :meth:`.base.Store.erase` promises."""
    sessions = models.Session.objects.using(using).filter(alias=alias, owner_id=owner_id, visitor=visitor)
    sessions.update(epoch=F("epoch") + 1)
    _, rows = sessions.delete()
    return rows.get(models.Session._meta.label, 0)


def adopt(using: str, alias: str, visitor: str, owner_id: Any) -> list[SessionName]:
    """Give a visitor's sessions to an owner: what :meth:`.base.Store.adopt` promises."""
    everyone = models.Session.objects.using(using)
    sessions = everyone.filter(alias=alias, visitor=visitor)
    sessions.update(revision=F("revision") + 1)
    names = []
    for session_id, key in list(sessions.order_by("pk").values_list("pk", "key")):
        name = SessionName(alias, key, owner_id)
        numbers = itertools.count(2)
        while everyone.named(name).exists():
            name = SessionName(alias, values.numbered(key, next(numbers)), owner_id)
        everyone.filter(pk=session_id).update(
            handle=name.handle, key=name.key, owner_id=owner_id, visitor="", updated_at=Clock()
        )
        names.append(name)
    return names


def begin(sessions: QuerySet[models.Session]) -> int:
    """Take the lock of the session's row, and whatever a compaction of it has or waits for."""
    return sessions.update(
        **models.NOT_COMPACTING, epoch=F("epoch") + 1, revision=F("revision") + 1, updated_at=Clock()
    )


def finish(using: str, session_id: int, ledger: Ledger, position: int, threshold: Threshold, *, hint: bool) -> Edited:
    """Give up the summaries that stand for ``position``, fall back to the newest that is left, and recount."""
    summaries = models.Summary.objects.using(using).filter(session_id=session_id)
    summaries.filter(last_position__gte=position, invalidated_at__isnull=True).update(invalidated_at=Clock())
    current = transactions.latest(summaries.current()).first()
    ledger = _covered(ledger, current)
    due = ledger.due(threshold)
    models.Session.objects.using(using).filter(pk=session_id).update(
        **models.counters(ledger),
        current_version=current.version if current else 0,
        due_since=Clock() if due else None,
        hinted_at=Clock() if due and hint else None,
    )
    return Edited(session_id, due)


def _covered(ledger: Ledger, summary: models.Summary | None) -> Ledger:
    """Return the counters with ``summary`` as the current one."""
    return dataclasses.replace(
        ledger,
        covered_position=summary.last_position if summary else 0,
        covered_count=summary.covered_count if summary else 0,
        covered_tokens=summary.covered_tokens if summary else 0,
    )


def _forks(using: str, session_ids: list[int], position: int) -> models.SessionQuerySet:
    """The copies that were made of these sessions at ``position`` or later, and share it still."""
    return models.Session.objects.using(using).filter(forked_from__in=session_ids, fork_position__gte=position)


def _ending(using: str, session_id: int, position: int) -> Ending:
    """Read what there is to know of the messages through ``position``."""
    rows = models.Message.objects.using(using).filter(session_id=session_id, position__lte=position)
    rows = transactions.latest(rows)
    backwards = rows.order_by("-position")
    columns = ("position", "tokens", "tokens_through")
    last = backwards.exclude(role__in=PINNED_ROLES).values_list(*columns).first()
    spoke = backwards.filter(role="assistant").values_list(*columns, "wire").first()
    if last is None or spoke is None:
        return Ending(position, last=Standing(*last) if last else None)
    results = list(
        rows.filter(position__gt=spoke[0], answers=spoke[0]).order_by("position").values_list("position", "wire")
    )
    return Ending(
        position,
        last=Standing(*last),
        spoke=Standing(*spoke[:3]),
        call_ids=_stored("assistant", spoke[3]).call_ids,
        answered=tuple(_stored("tool", wire).tool_call_id or "" for _, wire in results),
        answered_position=results[-1][0] if results else 0,
    )


def _stored(role: str, wire: Any) -> ChatMessage:
    return sql.message_of(role, "", "", wire, None)
