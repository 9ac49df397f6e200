"""The tables: sessions, their messages, the summaries of these messages, and the calls of models that made them.

Only a store writes to these tables. Other code may read them with the ORM.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Exists, F, OuterRef, Q, Subquery, signals
from django.db.models.functions import Coalesce
from django.dispatch import receiver
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_convmemory import clock
from django_convmemory.fields import ExactCharField, ExactJSONField
from django_convmemory.rules.counters import Counters, Covered, Pinned
from django_convmemory.rules.keys import FORGOTTEN_AFTER
from django_convmemory.rules.pause import UNTIL_ANSWERED, Pause, Reason
from django_convmemory.rules.strategies import Threshold
from django_convmemory.rules.values import MAX_MODEL_NAME, AttemptOutcome, SessionName, SummaryVersion
from django_convmemory.signals import content_changed


class SessionState(models.TextChoices):
    """The state of a session's compaction."""

    IDLE = "idle", _("idle")
    DUE = "due", _("due")
    COMPACTING = "compacting", _("compacting")
    FAILING = "failing", _("failing")
    PAUSED = "paused", _("paused")


# The number of primary keys that are read at a time.
_PAGE = 1000
# In seconds. A time that is this far in the future was not written by the present clock.
_CLOCK_SKEW = 5.0


class SessionQuerySet(models.QuerySet["Session"]):
    def named(self, name: SessionName) -> SessionQuerySet:
        """The one session with this name, or no session."""
        rows = self.filter(name_hash=name.name_hash)
        return rows if name.row_id is None else rows.filter(pk=name.row_id)

    def at(self, revision: int | None) -> SessionQuerySet:
        """Sessions at this revision. None: at any."""
        return self if revision is None else self.filter(revision=revision)

    def lock(self) -> int:
        """Lock the rows until the transaction ends, and return their number.

        It is a write that changes nothing: unlike SELECT FOR UPDATE it locks on SQLite too.
        """
        return self.update(revision=F("revision"))

    def due(self, seconds: float = 0.0) -> SessionQuerySet:
        """Sessions that an append has marked as due for compaction, ``seconds`` ago or earlier."""
        # Both: a comparison with the clock uses no index.
        due = self.filter(due_since__isnull=False)
        return due.filter(due_since__lte=clock.Clock(-seconds)) if seconds else due

    def leased(self) -> SessionQuerySet:
        # Both, as above.
        return self.filter(lease_expires_at__isnull=False, lease_expires_at__gt=clock.Clock())

    def unleased(self) -> SessionQuerySet:
        return self.filter(Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=clock.Clock()))

    def ready(self) -> SessionQuerySet:
        """Sessions whose next attempt may be made now."""
        return self.filter(Q(next_attempt_at__isnull=True) | Q(next_attempt_at__lte=clock.Clock()))

    def aliases(self) -> Iterator[str]:
        """Yield the aliases that have sessions. Each takes one query, which is fast for any number of sessions."""
        last = ""
        while (
            alias := self.filter(alias__gt=last).order_by("alias").values_list("alias", flat=True).first()
        ) is not None:
            yield alias
            last = alias

    def ids(self, *, after: int = 0) -> Iterator[int]:
        """Yield the primary keys above ``after``, in order. A page of them is read at a time."""
        while page := list(self.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:_PAGE]):
            yield from page
            after = page[-1]

    def unqueued(self, alias: str, seconds: float) -> SessionQuerySet:
        """Sessions of the alias for which no task is in the queue.

        None was queued in the last ``seconds``, or it has done nothing.

        A task has done nothing if its worker was killed, or if it was queued before the end of the alias's last pause:
        it may have met the pause. The lease of a session that nobody holds is in the row only if its worker did not
        release it. A time in the future is from before the database's clock was set back.
        """
        old = (
            Q(queued_at__isnull=True)
            | Q(queued_at__gt=clock.Clock(_CLOCK_SKEW))
            | Q(queued_at__lte=clock.Clock(-seconds))
            | Q(queued_at__lt=F("due_since"), due_since__lte=clock.Clock(_CLOCK_SKEW))
        )
        killed = Q(lease_expires_at__gt=F("queued_at"), lease_expires_at__lte=clock.Clock())
        return self.filter(old | killed | _met_pause(alias), alias=alias)

    def in_queue(self, alias: str, *, after: float, within: float) -> SessionQuerySet:
        """Sessions of the alias whose task was queued between ``within`` and ``after`` seconds ago.

        That is so as far as the row tells.
        """
        queued = self.filter(alias=alias, queued_at__lte=clock.Clock(-after), queued_at__gt=clock.Clock(-within))
        return queued.filter(queued_at__gte=F("due_since")).exclude(_met_pause(alias))

    def with_clock(self) -> SessionQuerySet:
        """Add ``now``, the database's time, and ``pause``, why the alias is paused, for :attr:`Session.state`."""
        return self.annotate(now=clock.Clock(), pause=Subquery(_pauses().values("reason")))

    def in_state(self, state: str) -> SessionQuerySet:
        """Sessions whose :attr:`Session.state` is this one."""
        if state == SessionState.COMPACTING:
            return self.leased()
        free = self.unleased()
        if state == SessionState.IDLE:
            return free.filter(due_since__isnull=True)
        if state == SessionState.FAILING:
            return free.due().exclude(last_error="")
        waiting = free.due().filter(last_error="")
        paused = Exists(_pauses())
        return waiting.filter(paused if state == SessionState.PAUSED else ~paused)


def _met_pause(alias: str) -> Q:
    """Whether a pause of the session's alias has ended since the session was queued."""
    # Not correlated, so that it is evaluated once.
    ended = AliasState.objects.filter(alias=alias, paused_until__lte=clock.Clock()).values("paused_until")
    return Q(queued_at__lt=Coalesce(Subquery(ended), F("queued_at")))


def _pauses() -> models.QuerySet[AliasState]:
    """The state of a session's alias, if the alias is paused: for a subquery."""
    return AliasState.objects.paused().filter(alias=OuterRef("alias"))


def exceeds(threshold: Threshold, *, covered_tokens: Any, covered_count: Any) -> Q:
    """Return :meth:`.strategies.Threshold.exceeded` as a condition on the row, for the given covered counters.

    An UPDATE that sets these counters passes their new values. MariaDB evaluates an UPDATE from left to right, so the
    columns themselves could have their old or their new value.
    """
    over = Q(pk__in=[])
    if threshold.tokens is not None:
        over |= Q(unpinned_tokens__gt=covered_tokens + threshold.tokens)
    if threshold.messages is not None:
        over |= Q(unpinned_count__gt=covered_count + threshold.messages)
    over &= Q(settled_tokens__gt=covered_tokens)
    if threshold.unindexed is not None:
        over |= Q(newest_position__gt=F("indexed_position") + threshold.unindexed)
    return over


class Session(models.Model):
    """One conversation, with the counters that make the cost of a request independent of its length."""

    public_id = models.UUIDField(_("public id"), unique=True, default=uuid.uuid4, editable=False)
    alias = ExactCharField(_("alias"), max_length=100)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        verbose_name=_("owner"),
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="convmemory_sessions",
        db_index=False,  # Meta.indexes has one that begins with it.
    )
    visitor = ExactCharField(_("visitor"), max_length=64, blank=True, default="")
    key = ExactCharField(_("key"), max_length=255)
    # A unique constraint ignores rows whose owner is NULL, and collations differ on which texts are equal. So a hash of
    # alias, scope and key is unique.
    name_hash = models.CharField(_("name hash"), max_length=64, editable=False)
    title = models.CharField(_("title"), max_length=255, blank=True, default="")
    metadata = models.JSONField(_("metadata"), blank=True, default=dict)
    # Lists leave out what is archived. ``starred`` and not ``pinned``, because messages are pinned.
    archived_at = models.DateTimeField(_("archived at"), null=True, blank=True)
    starred_at = models.DateTimeField(_("starred at"), null=True, blank=True)
    # The idempotency key of the request that created the session: see rules.keys.Creation. The first one has a
    # unique index.
    creation_key = models.CharField(max_length=64, null=True, blank=True, editable=False)  # noqa: DJ001
    creation_hash = models.CharField(max_length=64, null=True, blank=True, editable=False)  # noqa: DJ001

    # The counters of the messages: see rules.counters.Counters. They and the columns of a message are signed, because
    # the database would check positive numbers at each append.
    last_position = models.BigIntegerField(_("last position"), default=0)
    unpinned_count = models.BigIntegerField(_("unpinned messages"), default=0)
    unpinned_tokens = models.BigIntegerField(_("unpinned tokens"), default=0)
    settled_tokens = models.BigIntegerField(_("tokens before the newest exchange"), default=0)
    newest_position = models.BigIntegerField(_("newest exchange begins at"), default=0)
    pinned = models.TextField(_("pinned positions"), blank=True, default="")
    pinned_count = models.SmallIntegerField(_("pinned messages"), default=0)
    pinned_tokens = models.BigIntegerField(_("pinned tokens"), default=0)
    call_position = models.BigIntegerField(_("last tool calls at"), default=0)
    # For the one UPDATE of an append: call_position as it was before, which the first tool results of a batch answer.
    answered_position = models.BigIntegerField(default=0, editable=False)
    exchange_calls = models.TextField(_("calls of the newest tool exchange"), blank=True, default="")
    open_calls = models.TextField(_("calls without a result"), blank=True, default="")

    # The version of the current summary, and what the summary covers.
    last_version = models.BigIntegerField(_("last version"), default=0)
    current_version = models.BigIntegerField(_("current version"), default=0)
    covered_position = models.BigIntegerField(_("covered through"), default=0)
    covered_count = models.BigIntegerField(_("covered messages"), default=0)
    covered_tokens = models.BigIntegerField(_("covered tokens"), default=0)

    # The segments have the messages from the first one through this position. A worker moves it, never an append. The
    # database has a default, so that processes of an earlier release can still insert sessions.
    indexed_position = models.BigIntegerField(_("indexed through"), default=0, db_default=0)

    # Compaction. All times are the database's, in UTC.
    due_since = models.DateTimeField(_("due since"), null=True, blank=True)
    # The revision at which the session became due. It tells the append that made the session due from later ones.
    due_revision = models.BigIntegerField(default=0, editable=False)
    # When a sweep or a run that goes on has sent a task. An append does not note the task that it sends.
    queued_at = models.DateTimeField(_("queued at"), null=True, blank=True)
    attempts = models.IntegerField(_("attempts"), default=0)
    next_attempt_at = models.DateTimeField(_("next attempt at"), null=True, blank=True)
    lease_token = models.CharField(_("lease"), max_length=32, blank=True, default="", editable=False)
    lease_expires_at = models.DateTimeField(_("leased until"), null=True, blank=True)
    last_error = models.TextField(_("last error"), blank=True, default="")
    # Since when the summary waits to be rebuilt, because the fallback made a part of it. A rebuild that failed moves
    # the time ahead.
    rebuild_after = models.DateTimeField(_("rebuild after"), null=True, blank=True)
    # The most tokens that the model was found to take at once, by a run that has not folded all. The next one goes on
    # with it.
    fold_window = models.BigIntegerField(null=True, blank=True, editable=False)

    # The turn that is open: see rules.turns. The question is at the position ``turn_question``.
    turn_token = models.CharField(max_length=32, blank=True, default="", editable=False)
    turn_expires_at = models.DateTimeField(_("turn open until"), null=True, blank=True)
    turn_question = models.BigIntegerField(_("question being answered"), default=0)
    turn_stopped = models.BooleanField(_("reply stopped"), default=False)

    # Raised when messages are removed or changed. A compaction that began before that cannot publish.
    epoch = models.BigIntegerField(_("epoch"), default=0)
    # The first is raised when messages are added, removed or redacted, the second when the title, metadata, a flag or
    # the owner is changed.
    revision = models.BigIntegerField(_("revision"), default=0)
    details = models.BigIntegerField(_("revision of the details"), default=0)
    # When a session is deleted, its forks become forks of its original: see _before_deletion.
    forked_from = models.ForeignKey(
        "self",
        verbose_name=_("forked from"),
        null=True,
        blank=True,
        on_delete=models.DO_NOTHING,
        related_name="convmemory_forks",
    )
    # The last position that the fork has copied.
    fork_position = models.BigIntegerField(_("forked at"), null=True, blank=True)
    # The name of the token counter, or an empty string if several counted the messages.
    counter = models.CharField(_("token counter"), max_length=100, blank=True, default="")
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    # When the conversation changed last. A summary does not change it.
    # An append changes no indexed column, so that PostgreSQL updates the row in place (HOT). So this has no index.
    updated_at = models.DateTimeField(_("updated at"), default=timezone.now)

    objects = SessionQuerySet.as_manager()

    # Set by a store that has locked the row before it read it: _before_deletion then need not do either again.
    locked = False
    # Set by a store that was asked to create a session which an earlier request with the same idempotency key created.
    replayed = False

    class Meta:
        verbose_name = _("session")
        verbose_name_plural = _("sessions")
        constraints = [
            models.UniqueConstraint(fields=["name_hash"], name="convmemory_session_name_hash"),
            models.UniqueConstraint(fields=["creation_key"], name="convmemory_session_creation"),
        ]
        indexes = [
            models.Index(fields=["alias", "due_since"], name="convmemory_session_due"),
            models.Index(fields=["alias", "rebuild_after"], name="convmemory_session_rebuild"),
            models.Index(fields=["lease_expires_at"], name="convmemory_session_leased"),
            models.Index(fields=["alias", "id"], name="convmemory_session_alias"),
            models.Index(fields=["owner", "id"], name="convmemory_session_owner"),
            models.Index(fields=["visitor", "id"], name="convmemory_session_visitor"),
        ]
        permissions = [
            ("write_any_role", _("Can write messages of any role through the API")),
        ]

    def __str__(self) -> str:
        return f"{self.alias}: {self.key}"

    @property
    def session_name(self) -> SessionName:
        """The name of this session. Operations of a memory take a row instead of a key.

        The name means this row only. If the row is deleted, the operation creates no other session.
        """
        return SessionName(self.alias, self.key, self.owner_id, self.visitor, self.pk)

    @property
    def state(self) -> SessionState:
        """The state of the compaction at the time ``now``. The row must come from ``with_clock()``."""
        now: dt.datetime = self.now  # type: ignore[attr-defined]
        if self.lease_expires_at is not None and self.lease_expires_at > now:
            return SessionState.COMPACTING
        if self.due_since is None:
            return SessionState.IDLE
        if self.last_error:
            return SessionState.FAILING
        pause: str | None = self.pause  # type: ignore[attr-defined]
        return SessionState.PAUSED if pause else SessionState.DUE

    @property
    def answered_question(self) -> int:
        """The position of the question that is being answered, or 0. The row must come from ``with_clock()``."""
        now: dt.datetime = self.now  # type: ignore[attr-defined]
        is_open = self.turn_token and self.turn_expires_at is not None and self.turn_expires_at > now
        return self.turn_question if is_open else 0

    @property
    def counters(self) -> Counters:
        """The counters of this row."""
        return counters_of([getattr(self, column) for column in COUNTER_COLUMNS])

    def is_over(self, threshold: Threshold) -> bool:
        """Whether the session exceeds ``threshold``, as :func:`exceeds` says for all rows."""
        return self.counters.due(threshold, indexed_position=self.indexed_position)


COUNTER_COLUMNS = Counters._fields
_PINNED = COUNTER_COLUMNS.index("pinned")


def counters_of(values: Sequence[Any]) -> Counters:
    """Return the counters from the values of the columns ``COUNTER_COLUMNS``."""
    # The text `` 1:35 7:12`` has a position and its tokens for each pinned message.
    text: str = values[_PINNED]
    pinned = tuple([Pinned(*map(int, pair.split(":"))) for pair in text.split()]) if text else ()
    return tuple.__new__(Counters, (*values[:_PINNED], pinned, *values[_PINNED + 1 :]))


def counter_columns(counters: Counters) -> dict[str, Any]:
    """Return the values of the columns that hold ``counters``."""
    return counters._asdict() | {
        "pinned": "".join(f" {message.position}:{message.tokens}" for message in counters.pinned),
        "pinned_count": len(counters.pinned),
        "pinned_tokens": sum(pinned.tokens for pinned in counters.pinned),
    }


# The columns of a session that is not due, has no lease and has not failed, as they are in a new session.
_COMPACTION = {"due_since", "queued_at", "attempts", "next_attempt_at", "lease_token", "lease_expires_at", "last_error"}
NOT_COMPACTING = {
    field.name: field.get_default() for field in Session._meta.concrete_fields if field.name in _COMPACTION
}


@receiver(signals.pre_delete, sender=Session)
def _before_deletion(sender: type[Session], instance: Session, using: str, **kwargs: Any) -> None:
    """Make the forks of a deleted session forks of its original, so that a redaction there still reaches them.

    Then tell the site that the content of the session goes.
    """
    sessions = Session.objects.using(using)
    if instance.locked:
        origins = [instance.forked_from_id]
    else:
        # The session is locked before its forks, as in every edit. No append can add a row that the deletion misses.
        sessions.filter(pk=instance.pk).update(epoch=F("epoch") + 1)
        origins = list(sessions.filter(pk=instance.pk).values_list("forked_from", flat=True))
    for origin in origins:
        sessions.filter(forked_from=instance).update(forked_from=origin)
    content_changed.send(sender, using=using, session_id=instance.pk, first=1, last=None, copied_from=None)


def _of_session(related_name: str) -> models.ForeignKey[Session, Session]:
    """Return the column of a table that belongs to a session. A key of the table begins with it: it has no index."""
    return models.ForeignKey(
        Session, verbose_name=_("session"), on_delete=models.CASCADE, related_name=related_name, db_index=False
    )


class Message(models.Model):
    """One message. A compaction never changes it.

    ``store/columns.py`` has a table of these columns, from which the stores derive their statements.
    """

    pk = models.CompositePrimaryKey("session_id", "position")
    session = _of_session("convmemory_messages")
    position = models.BigIntegerField(_("position"))
    # A UUID of version 7. No other message of the session ever has it. The copy of the message in a fork has it too.
    public_id = models.UUIDField(_("public id"), editable=False)
    role = models.CharField(_("role"), max_length=16)
    kind = models.CharField(_("kind"), max_length=32, default="chat")
    # Text. Content parts, tool calls and the other fields of the wire form are in ``wire``.
    content = models.TextField(_("content"), null=True, blank=True)  # noqa: DJ001
    wire = ExactJSONField(_("rest of the wire form"), null=True, blank=True)
    metadata = ExactJSONField(_("metadata"), null=True, blank=True)
    # The form in which the message came, and the item for which it stands. NULL: it came as a chat message.
    format = models.CharField(_("format"), max_length=32, null=True, blank=True)  # noqa: DJ001
    item = ExactJSONField(_("item"), null=True, blank=True)
    usage = ExactJSONField(_("usage"), null=True, blank=True)
    tokens = models.IntegerField(_("tokens"))
    # The running total of unpinned tokens through this message.
    tokens_through = models.BigIntegerField(_("tokens through"))
    # The position at which the exchange begins that this message continues: that of the assistant message whose call a
    # tool result answers. NULL: the message begins an exchange, or stands inside an open one and answers nothing.
    answers = models.BigIntegerField(_("answers"), null=True, blank=True)
    # Of a message that a turn has stored: the position of the question.
    reply_to = models.BigIntegerField(_("reply to"), null=True, blank=True)
    # Of the reply that ends a turn: how it was cut off, or "". NULL: another message.
    cut_off = models.CharField(_("cut off"), max_length=16, null=True, blank=True)  # noqa: DJ001
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    redacted_at = models.DateTimeField(_("redacted at"), null=True, blank=True)

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        constraints = [
            # The id comes first: PostgreSQL would also take an index that begins with the session to read a session.
            models.UniqueConstraint(fields=["public_id", "session"], name="convmemory_message_public_id"),
        ]
        indexes = [models.Index(fields=["session", "tokens_through"], name="convmemory_message_through")]

    def __str__(self) -> str:
        return f"{self.position}: {self.role}"


class UsedKeyQuerySet(models.QuerySet["UsedKey"]):
    def forgotten(self) -> UsedKeyQuerySet:
        """Keys that count as unused, so long ago were their messages removed. ``convmemory_prune`` deletes them."""
        return self.filter(gone_at__lte=clock.Clock(-FORGOTTEN_AFTER))


class UsedKey(models.Model):
    """An idempotency key that has stored messages. :mod:`.rules.keys` says what a retry with it does."""

    pk = models.CompositePrimaryKey("session_id", "key_hash")
    session = _of_session("convmemory_used_keys")
    key_hash = models.CharField(max_length=64)
    first_position = models.BigIntegerField()
    # The number of the messages.
    size = models.IntegerField()
    # An HMAC of the messages. Empty after a redaction of one of them, because somebody could use it to check a guess.
    content = models.CharField(max_length=64, blank=True, default="")
    # When one of the messages was removed.
    gone_at = models.DateTimeField(null=True, blank=True)

    objects = UsedKeyQuerySet.as_manager()

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")

    def __str__(self) -> str:
        return f"{self.key_hash}: {self.first_position}"


class Segment(models.Model):
    """A piece of the index of recall: which terms the messages from ``first`` through ``last`` have.

    The segments of a session follow one another without a gap, from its first message through
    :attr:`Session.indexed_position`. :mod:`.rules.segments` defines ``data``.
    """

    pk = models.CompositePrimaryKey("session_id", "first")
    session = _of_session("convmemory_segments")
    first = models.BigIntegerField(_("first position"))
    last = models.BigIntegerField(_("last position"))
    data = models.TextField(_("terms"))

    class Meta:
        verbose_name = _("segment")
        verbose_name_plural = _("segments")

    def __str__(self) -> str:
        return f"{self.first}–{self.last}"


class SummaryQuerySet(models.QuerySet["Summary"]):
    def empty(self) -> None:
        """Remove what the versions say. They stay, as a record of what was folded when."""
        self.update(text="", identifiers=None, model_length=None)

    def valid(self) -> SummaryQuerySet:
        """Versions that cover messages as they are now, finished or still being built."""
        return self.filter(invalidated_at__isnull=True)

    def current(self) -> SummaryQuerySet:
        """The newest valid version that is finished, if there is one."""
        return self.valid().filter(building=False).order_by("-version")[:1]


class Summary(models.Model):
    """One version of a session's summary: a text that stands for everything through ``last_position``."""

    session = _of_session("convmemory_summaries")
    version = models.PositiveBigIntegerField(_("version"))
    # A version number and not an id, like current_version of the session. So a fork can copy the rows as they are.
    parent_version = models.PositiveBigIntegerField(_("parent version"), null=True, blank=True)
    first_position = models.PositiveBigIntegerField(_("first position"))
    last_position = models.PositiveBigIntegerField(_("last position"))
    # The unpinned messages through last_position, and their tokens. They become the covered counters of the session.
    covered_count = models.PositiveBigIntegerField(_("covered messages"))
    covered_tokens = models.PositiveBigIntegerField(_("covered tokens"))
    text = models.TextField(_("text"))
    tokens = models.PositiveIntegerField(_("tokens"))
    model = models.CharField(_("model"), max_length=MAX_MODEL_NAME, blank=True, default="")
    shortened = models.BooleanField(_("shortened"), default=False)
    fallback = models.BooleanField(_("by the fallback model"), default=False)
    # These three have a default in the database, so that workers of an earlier release can still insert summaries.
    # The fallback made it because the model was unavailable, so it is to be rebuilt.
    stand_in = models.BooleanField(_("stands in"), default=False, db_default=False)
    # No model could summarize these messages. The text is that of the version before.
    carried = models.BooleanField(_("carried over"), default=False, db_default=False)
    # A message was too long, and its rest is not in the text.
    cut = models.BooleanField(_("cut"), default=False, db_default=False)
    # Part of a rebuild that is not finished, or of an exchange that is not folded to its end: it is not shown.
    building = models.BooleanField(_("not finished"), default=False)
    # The offset through which the exchange that ends at last_position is folded: see fold.chunk. Null: to its end.
    part_end = models.BigIntegerField(_("part ends at"), null=True, blank=True)
    prompt_hash = models.CharField(_("prompt hash"), max_length=64, blank=True, default="")
    # The next two are those of rules.values.SummaryVersion.
    identifiers = ExactJSONField(_("identifiers"), null=True, blank=True)
    model_length = models.IntegerField(_("characters by the model"), null=True, blank=True)
    invalidated_at = models.DateTimeField(_("invalidated at"), null=True, blank=True)
    created_at = models.DateTimeField(_("created at"), default=timezone.now)

    objects = SummaryQuerySet.as_manager()

    class Meta:
        verbose_name = _("summary")
        verbose_name_plural = _("summaries")
        constraints = [models.UniqueConstraint(fields=["session", "version"], name="convmemory_summary_version")]
        # To find the summary that was current at a given time.
        indexes = [models.Index(fields=["session", "created_at"], name="convmemory_summary_time")]

    def __str__(self) -> str:
        return f"{self.version}: {self.first_position}–{self.last_position}"

    @property
    def value(self) -> SummaryVersion:
        """The summary as a value."""
        return SummaryVersion.of(self.version, self)

    @property
    def covered(self) -> Covered:
        """What the summary covers."""
        return Covered(self.last_position, self.covered_count, self.covered_tokens)


class AliasStateQuerySet(models.QuerySet["AliasState"]):
    def paused(self) -> AliasStateQuerySet:
        """The aliases whose due sessions wait for the model: :attr:`.Pause.holds`."""
        return self.exclude(reason="").filter(Q(paused_until__gt=clock.Clock()) | Q(reason__in=UNTIL_ANSWERED))

    def with_clock(self) -> AliasStateQuerySet:
        """Add ``now``, the database's time, for :attr:`AliasState.pause`."""
        return self.annotate(now=clock.Clock())


class AliasState(models.Model):
    """The state of an alias's chat model, and of the search for sessions that should be due.

    The columns through ``error`` are those of :class:`.rules.pause.Pause`.
    """

    REASONS = [
        (Reason.OUTAGE.value, _("the model does not answer")),
        (Reason.RATE_LIMIT.value, _("the provider takes no more calls")),
        (Reason.MISCONFIGURED.value, _("the model is misconfigured")),
    ]

    alias = ExactCharField(_("alias"), max_length=100, primary_key=True)
    failures = models.IntegerField(_("failures in a row"), default=0)
    last_session = models.BigIntegerField(_("last session"), null=True, blank=True)
    since = models.DateTimeField(_("since"), null=True, blank=True)
    paused_until = models.DateTimeField(_("paused until"), null=True, blank=True)
    reason = models.CharField(_("reason"), max_length=16, choices=REASONS, blank=True, default="")
    error = models.TextField(_("error"), blank=True, default="")
    # The threshold that sessions are compared with, and the last session that was compared, or null after the last one.
    threshold = models.CharField(_("threshold"), max_length=64, blank=True, default="")
    compared_id = models.BigIntegerField(_("compared through"), null=True, blank=True)

    objects = AliasStateQuerySet.as_manager()

    class Meta:
        verbose_name = _("state of a memory")
        verbose_name_plural = _("states of memories")

    def __str__(self) -> str:
        return str(self.alias)

    @property
    def pause(self) -> Pause:
        """The state of the model, of a row from ``with_clock``."""
        return Pause(*(getattr(self, name) for name in Pause._fields))


class Attempt(models.Model):
    """One model call, whatever its outcome."""

    OUTCOMES = [
        (AttemptOutcome.PUBLISHED.value, _("published")),
        (AttemptOutcome.SHORTEN.value, _("too long, asked for a shorter text")),
        (AttemptOutcome.DROPPED.value, _("dropped: the session had changed")),
        (AttemptOutcome.UNAVAILABLE.value, _("model unavailable")),
        (AttemptOutcome.MISCONFIGURED.value, _("model misconfigured")),
        (AttemptOutcome.TOO_LONG.value, _("chunk larger than the model's window")),
        (AttemptOutcome.REFUSED.value, _("content refused")),
        (AttemptOutcome.BAD_OUTPUT.value, _("unusable answer")),
        (AttemptOutcome.ERROR.value, _("error of the backend")),
    ]

    # An attempt stays when its session is deleted, so that its cost is still counted.
    session = models.ForeignKey(
        Session,
        verbose_name=_("session"),
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="convmemory_attempts",
        # The index below begins with it.
        db_index=False,
    )
    alias = ExactCharField(_("alias"), max_length=100)
    first_position = models.PositiveBigIntegerField(_("first position"))
    last_position = models.PositiveBigIntegerField(_("last position"))
    started_at = models.DateTimeField(_("started at"), default=timezone.now)
    due_seconds = models.FloatField(_("due before the claim (s)"), default=0.0)
    duration_seconds = models.FloatField(_("duration (s)"), default=0.0)
    outcome = models.CharField(_("outcome"), max_length=16, choices=OUTCOMES)
    error = models.CharField(_("error"), max_length=300, blank=True, default="")
    model = models.CharField(_("model"), max_length=MAX_MODEL_NAME, blank=True, default="")
    prompt_tokens = models.PositiveIntegerField(_("prompt tokens"), null=True, blank=True)
    completion_tokens = models.PositiveIntegerField(_("completion tokens"), null=True, blank=True)
    # Those of the prompt that came from the provider's cache. NULL: the provider does not report it.
    cached_tokens = models.PositiveIntegerField(_("cached tokens"), null=True, blank=True)
    cost = models.DecimalField(_("cost"), max_digits=14, decimal_places=8, null=True, blank=True)
    version = models.PositiveBigIntegerField(_("version"), null=True, blank=True)

    class Meta:
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        indexes = [
            models.Index(fields=["alias", "started_at"], name="convmemory_attempt_alias"),
            # To find the newest attempts of a session.
            models.Index(fields=["session", "id"], name="convmemory_attempt_session"),
        ]

    def __str__(self) -> str:
        return f"{self.started_at}: {self.outcome}"
