"""The tables.

On PostgreSQL, two indexes hold no more than is looked up, and the pages of the sessions' table keep room.

- Where a table has about one row for each session, PostgreSQL takes any index that begins with the session for as good
  as the right one, and reads all of a session that has many. It cannot take an index of the finished versions for the
  one of all versions. MariaDB has no such indexes, and SQLite needs none.
- Every append updates a session's row, and only the index of what is due holds what it changes. If the new version of
  the row finds room in the page of the old one, no index is written.
"""

import uuid
from collections.abc import Sequence
from typing import Any

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

import django_convmemory.fields


def on_postgresql(model: str, forwards: Sequence[str], backwards: Sequence[str]) -> migrations.RunPython:
    """Return an operation that executes statements on PostgreSQL, where a router wants the table of ``model``."""

    def executing(statements: Sequence[str]) -> Any:
        def execute(apps: Any, schema_editor: Any) -> None:
            if schema_editor.connection.vendor == "postgresql":
                for statement in statements:
                    schema_editor.execute(statement)

        return execute

    return migrations.RunPython(executing(forwards), executing(backwards), hints={"model_name": model})


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AliasState",
            fields=[
                (
                    "alias",
                    django_convmemory.fields.ExactCharField(
                        max_length=100, primary_key=True, serialize=False, verbose_name="alias"
                    ),
                ),
                ("failures", models.IntegerField(default=0, verbose_name="failures in a row")),
                ("last_session", models.BigIntegerField(blank=True, null=True, verbose_name="last session")),
                ("since", models.DateTimeField(blank=True, null=True, verbose_name="since")),
                ("paused_until", models.DateTimeField(blank=True, null=True, verbose_name="paused until")),
                (
                    "reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("outage", "the model does not answer"),
                            ("rate_limit", "the provider takes no more calls"),
                            ("misconfigured", "the model is misconfigured"),
                        ],
                        default="",
                        max_length=16,
                        verbose_name="reason",
                    ),
                ),
                ("error", models.TextField(blank=True, default="", verbose_name="error")),
                ("threshold", models.CharField(blank=True, default="", max_length=64, verbose_name="threshold")),
                ("compared_id", models.BigIntegerField(blank=True, null=True, verbose_name="compared through")),
            ],
            options={
                "verbose_name": "state of a memory",
                "verbose_name_plural": "states of memories",
            },
        ),
        migrations.CreateModel(
            name="Session",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "public_id",
                    models.UUIDField(default=uuid.uuid4, editable=False, unique=True, verbose_name="public id"),
                ),
                ("alias", django_convmemory.fields.ExactCharField(max_length=100, verbose_name="alias")),
                (
                    "visitor",
                    django_convmemory.fields.ExactCharField(
                        blank=True, default="", max_length=64, verbose_name="visitor"
                    ),
                ),
                ("key", django_convmemory.fields.ExactCharField(max_length=255, verbose_name="key")),
                ("name_hash", models.CharField(editable=False, max_length=64, verbose_name="name hash")),
                ("title", models.CharField(blank=True, default="", max_length=255, verbose_name="title")),
                ("metadata", models.JSONField(blank=True, default=dict, verbose_name="metadata")),
                ("archived_at", models.DateTimeField(blank=True, null=True, verbose_name="archived at")),
                ("starred_at", models.DateTimeField(blank=True, null=True, verbose_name="starred at")),
                ("creation_key", models.CharField(blank=True, editable=False, max_length=64, null=True)),
                ("creation_hash", models.CharField(blank=True, editable=False, max_length=64, null=True)),
                ("last_position", models.BigIntegerField(default=0, verbose_name="last position")),
                ("unpinned_count", models.BigIntegerField(default=0, verbose_name="unpinned messages")),
                ("unpinned_tokens", models.BigIntegerField(default=0, verbose_name="unpinned tokens")),
                ("settled_tokens", models.BigIntegerField(default=0, verbose_name="tokens before the newest exchange")),
                ("newest_position", models.BigIntegerField(default=0, verbose_name="newest exchange begins at")),
                ("pinned", models.TextField(blank=True, default="", verbose_name="pinned positions")),
                ("pinned_count", models.SmallIntegerField(default=0, verbose_name="pinned messages")),
                ("pinned_tokens", models.BigIntegerField(default=0, verbose_name="pinned tokens")),
                ("call_position", models.BigIntegerField(default=0, verbose_name="last tool calls at")),
                ("answered_position", models.BigIntegerField(default=0, editable=False)),
                (
                    "exchange_calls",
                    models.TextField(blank=True, default="", verbose_name="calls of the newest tool exchange"),
                ),
                ("open_calls", models.TextField(blank=True, default="", verbose_name="calls without a result")),
                ("last_version", models.BigIntegerField(default=0, verbose_name="last version")),
                ("current_version", models.BigIntegerField(default=0, verbose_name="current version")),
                ("covered_position", models.BigIntegerField(default=0, verbose_name="covered through")),
                ("covered_count", models.BigIntegerField(default=0, verbose_name="covered messages")),
                ("covered_tokens", models.BigIntegerField(default=0, verbose_name="covered tokens")),
                ("indexed_position", models.BigIntegerField(db_default=0, default=0, verbose_name="indexed through")),
                ("due_since", models.DateTimeField(blank=True, null=True, verbose_name="due since")),
                ("due_revision", models.BigIntegerField(default=0, editable=False)),
                ("queued_at", models.DateTimeField(blank=True, null=True, verbose_name="queued at")),
                ("attempts", models.IntegerField(default=0, verbose_name="attempts")),
                ("next_attempt_at", models.DateTimeField(blank=True, null=True, verbose_name="next attempt at")),
                (
                    "lease_token",
                    models.CharField(blank=True, default="", editable=False, max_length=32, verbose_name="lease"),
                ),
                ("lease_expires_at", models.DateTimeField(blank=True, null=True, verbose_name="leased until")),
                ("last_error", models.TextField(blank=True, default="", verbose_name="last error")),
                ("rebuild_after", models.DateTimeField(blank=True, null=True, verbose_name="rebuild after")),
                ("fold_window", models.BigIntegerField(blank=True, editable=False, null=True)),
                ("turn_token", models.CharField(blank=True, default="", editable=False, max_length=32)),
                ("turn_expires_at", models.DateTimeField(blank=True, null=True, verbose_name="turn open until")),
                ("turn_question", models.BigIntegerField(default=0, verbose_name="question being answered")),
                ("turn_stopped", models.BooleanField(default=False, verbose_name="reply stopped")),
                ("epoch", models.BigIntegerField(default=0, verbose_name="epoch")),
                ("revision", models.BigIntegerField(default=0, verbose_name="revision")),
                ("details", models.BigIntegerField(default=0, verbose_name="revision of the details")),
                ("fork_position", models.BigIntegerField(blank=True, null=True, verbose_name="forked at")),
                ("counter", models.CharField(blank=True, default="", max_length=100, verbose_name="token counter")),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="created at")),
                ("updated_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="updated at")),
                (
                    "forked_from",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="convmemory_forks",
                        to="convmemory.session",
                        verbose_name="forked from",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="convmemory_sessions",
                        to=settings.AUTH_USER_MODEL,
                        verbose_name="owner",
                    ),
                ),
            ],
            options={
                "verbose_name": "session",
                "verbose_name_plural": "sessions",
                "permissions": [
                    ("write_any_role", "Can write messages of any role through the API"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Segment",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "session_id", "first", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("first", models.BigIntegerField(verbose_name="first position")),
                ("last", models.BigIntegerField(verbose_name="last position")),
                ("data", models.TextField(verbose_name="terms")),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="convmemory_segments",
                        to="convmemory.session",
                        verbose_name="session",
                    ),
                ),
            ],
            options={
                "verbose_name": "segment",
                "verbose_name_plural": "segments",
            },
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "session_id", "position", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("position", models.BigIntegerField(verbose_name="position")),
                ("public_id", models.UUIDField(editable=False, verbose_name="public id")),
                ("role", models.CharField(max_length=16, verbose_name="role")),
                ("kind", models.CharField(default="chat", max_length=32, verbose_name="kind")),
                ("content", models.TextField(blank=True, null=True, verbose_name="content")),
                (
                    "wire",
                    django_convmemory.fields.ExactJSONField(
                        blank=True, null=True, verbose_name="rest of the wire form"
                    ),
                ),
                ("metadata", django_convmemory.fields.ExactJSONField(blank=True, null=True, verbose_name="metadata")),
                ("format", models.CharField(blank=True, max_length=32, null=True, verbose_name="format")),
                ("item", django_convmemory.fields.ExactJSONField(blank=True, null=True, verbose_name="item")),
                ("usage", django_convmemory.fields.ExactJSONField(blank=True, null=True, verbose_name="usage")),
                ("tokens", models.IntegerField(verbose_name="tokens")),
                ("tokens_through", models.BigIntegerField(verbose_name="tokens through")),
                ("answers", models.BigIntegerField(blank=True, null=True, verbose_name="answers")),
                ("reply_to", models.BigIntegerField(blank=True, null=True, verbose_name="reply to")),
                ("cut_off", models.CharField(blank=True, max_length=16, null=True, verbose_name="cut off")),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="created at")),
                ("redacted_at", models.DateTimeField(blank=True, null=True, verbose_name="redacted at")),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="convmemory_messages",
                        to="convmemory.session",
                        verbose_name="session",
                    ),
                ),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
            },
        ),
        migrations.CreateModel(
            name="UsedKey",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "session_id", "key_hash", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("key_hash", models.CharField(max_length=64)),
                ("first_position", models.BigIntegerField()),
                ("size", models.IntegerField()),
                ("content", models.CharField(blank=True, default="", max_length=64)),
                ("gone_at", models.DateTimeField(blank=True, null=True)),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="convmemory_used_keys",
                        to="convmemory.session",
                        verbose_name="session",
                    ),
                ),
            ],
            options={
                "verbose_name": "idempotency key",
                "verbose_name_plural": "idempotency keys",
            },
        ),
        migrations.CreateModel(
            name="Attempt",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("alias", django_convmemory.fields.ExactCharField(max_length=100, verbose_name="alias")),
                ("first_position", models.PositiveBigIntegerField(verbose_name="first position")),
                ("last_position", models.PositiveBigIntegerField(verbose_name="last position")),
                ("started_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="started at")),
                ("due_seconds", models.FloatField(default=0.0, verbose_name="due before the claim (s)")),
                ("duration_seconds", models.FloatField(default=0.0, verbose_name="duration (s)")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("published", "published"),
                            ("shorten", "too long, asked for a shorter text"),
                            ("dropped", "dropped: the session had changed"),
                            ("unavailable", "model unavailable"),
                            ("misconfigured", "model misconfigured"),
                            ("context_length", "chunk larger than the model's window"),
                            ("refused", "content refused"),
                            ("bad_output", "unusable answer"),
                            ("error", "error of the backend"),
                        ],
                        max_length=16,
                        verbose_name="outcome",
                    ),
                ),
                ("error", models.CharField(blank=True, default="", max_length=300, verbose_name="error")),
                ("model", models.CharField(blank=True, default="", max_length=200, verbose_name="model")),
                ("prompt_tokens", models.PositiveIntegerField(blank=True, null=True, verbose_name="prompt tokens")),
                (
                    "completion_tokens",
                    models.PositiveIntegerField(blank=True, null=True, verbose_name="completion tokens"),
                ),
                ("cached_tokens", models.PositiveIntegerField(blank=True, null=True, verbose_name="cached tokens")),
                (
                    "cost",
                    models.DecimalField(blank=True, decimal_places=8, max_digits=14, null=True, verbose_name="cost"),
                ),
                ("version", models.PositiveBigIntegerField(blank=True, null=True, verbose_name="version")),
                (
                    "session",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="convmemory_attempts",
                        to="convmemory.session",
                        verbose_name="session",
                    ),
                ),
            ],
            options={
                "verbose_name": "attempt",
                "verbose_name_plural": "attempts",
            },
        ),
        migrations.CreateModel(
            name="Summary",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveBigIntegerField(verbose_name="version")),
                (
                    "parent_version",
                    models.PositiveBigIntegerField(blank=True, null=True, verbose_name="parent version"),
                ),
                ("first_position", models.PositiveBigIntegerField(verbose_name="first position")),
                ("last_position", models.PositiveBigIntegerField(verbose_name="last position")),
                ("covered_count", models.PositiveBigIntegerField(verbose_name="covered messages")),
                ("covered_tokens", models.PositiveBigIntegerField(verbose_name="covered tokens")),
                ("text", models.TextField(verbose_name="text")),
                ("tokens", models.PositiveIntegerField(verbose_name="tokens")),
                ("model", models.CharField(blank=True, default="", max_length=200, verbose_name="model")),
                ("shortened", models.BooleanField(default=False, verbose_name="shortened")),
                ("fallback", models.BooleanField(default=False, verbose_name="by the fallback model")),
                ("stand_in", models.BooleanField(db_default=False, default=False, verbose_name="stands in")),
                ("carried", models.BooleanField(db_default=False, default=False, verbose_name="carried over")),
                ("cut", models.BooleanField(db_default=False, default=False, verbose_name="cut")),
                ("building", models.BooleanField(default=False, verbose_name="not finished")),
                ("part_end", models.BigIntegerField(blank=True, null=True, verbose_name="part ends at")),
                ("prompt_hash", models.CharField(blank=True, default="", max_length=64, verbose_name="prompt hash")),
                (
                    "identifiers",
                    django_convmemory.fields.ExactJSONField(blank=True, null=True, verbose_name="identifiers"),
                ),
                ("model_length", models.IntegerField(blank=True, null=True, verbose_name="characters by the model")),
                ("invalidated_at", models.DateTimeField(blank=True, null=True, verbose_name="invalidated at")),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, verbose_name="created at")),
                (
                    "session",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="convmemory_summaries",
                        to="convmemory.session",
                        verbose_name="session",
                    ),
                ),
            ],
            options={
                "verbose_name": "summary",
                "verbose_name_plural": "summaries",
            },
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(fields=["alias", "due_since"], name="convmemory_session_due"),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(fields=["alias", "rebuild_after"], name="convmemory_session_rebuild"),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(fields=["lease_expires_at"], name="convmemory_session_leased"),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(fields=["alias", "id"], name="convmemory_session_alias"),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(fields=["owner", "id"], name="convmemory_session_owner"),
        ),
        migrations.AddIndex(
            model_name="session",
            index=models.Index(fields=["visitor", "id"], name="convmemory_session_visitor"),
        ),
        migrations.AddConstraint(
            model_name="session",
            constraint=models.UniqueConstraint(fields=("name_hash",), name="convmemory_session_name_hash"),
        ),
        migrations.AddConstraint(
            model_name="session",
            constraint=models.UniqueConstraint(fields=("creation_key",), name="convmemory_session_creation"),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(fields=["session", "tokens_through"], name="convmemory_message_through"),
        ),
        migrations.AddConstraint(
            model_name="message",
            constraint=models.UniqueConstraint(fields=("public_id", "session"), name="convmemory_message_public_id"),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(fields=["alias", "started_at"], name="convmemory_attempt_alias"),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(fields=["session", "id"], name="convmemory_attempt_session"),
        ),
        migrations.AddIndex(
            model_name="summary",
            index=models.Index(fields=["session", "created_at"], name="convmemory_summary_time"),
        ),
        migrations.AddConstraint(
            model_name="summary",
            constraint=models.UniqueConstraint(fields=("session", "version"), name="convmemory_summary_version"),
        ),
        on_postgresql(
            "session",
            [
                "ALTER TABLE convmemory_session SET (fillfactor = 70)",
                "ALTER TABLE convmemory_session DROP CONSTRAINT convmemory_session_creation",
                (
                    "CREATE UNIQUE INDEX convmemory_session_creation ON convmemory_session (creation_key) "
                    "WHERE creation_key IS NOT NULL"
                ),
            ],
            [
                "DROP INDEX convmemory_session_creation",
                "ALTER TABLE convmemory_session ADD CONSTRAINT convmemory_session_creation UNIQUE (creation_key)",
                "ALTER TABLE convmemory_session RESET (fillfactor)",
            ],
        ),
        on_postgresql(
            "summary",
            [
                "DROP INDEX convmemory_summary_time",
                (
                    "CREATE INDEX convmemory_summary_time ON convmemory_summary (session_id, created_at) "
                    "WHERE NOT building AND invalidated_at IS NULL"
                ),
            ],
            [
                "DROP INDEX convmemory_summary_time",
                "CREATE INDEX convmemory_summary_time ON convmemory_summary (session_id, created_at)",
            ],
        ),
    ]
