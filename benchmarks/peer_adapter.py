"""An adapter of this project for the peers' benchmark, which compares an append and a load with the raw driver.

That benchmark measures each library through a small class (connect, reset, seed, open, append, load). To measure this
project in the same run, put this file and the project on the path of its Python, and register the class twice::

    REGISTRY["ours_pg"] = ("django", "peer_adapter:Convmemory", {"db": "pg"})
    REGISTRY["ours_sqlite_wal"] = ("django", "peer_adapter:Convmemory", {"db": "sqlite_wal"})

The seeded sessions are conversations that were folded regularly: the last 2 000 tokens are verbatim, and a summary
covers the rest. A load builds the whole context. The peers' loads return the texts of the last 40 messages.
"""

from __future__ import annotations

import os
from typing import Any

from adapters import Adapter  # type: ignore[import-not-found]

LIMIT = 2000


def configure(db: str, tag: str) -> None:
    """Configure Django for PostgreSQL or SQLite, as the benchmark's own Django adapter does."""
    import django
    from common import DATA, PG_DSN  # type: ignore[import-not-found]
    from django.conf import settings

    if settings.configured:
        return
    if db == "pg":
        import psycopg

        parts = psycopg.conninfo.conninfo_to_dict(PG_DSN)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts["dbname"],
            "USER": parts.get("user", ""),
            "HOST": parts.get("host", ""),
            "PORT": parts.get("port", ""),
            "CONN_MAX_AGE": None,
        }
    else:
        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(DATA / f"convmemory_{tag}_{os.getpid()}.sqlite3"),
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
            },
        }
    settings.configure(
        SECRET_KEY="benchmark",
        DATABASES={"default": database},
        USE_TZ=True,
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_convmemory"],
        CONVMEMORY={
            "default": {
                "OPTIONS": {"max_token_limit": LIMIT},
                "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
                "SCHEDULER": {"BACKEND": "django_convmemory.scheduling.NullScheduler"},
            }
        },
    )
    django.setup()


class Convmemory(Adapter):  # type: ignore[misc]
    """``memories["default"]`` with a summary buffer of 2 000 tokens."""

    def __init__(self, tag: str = "ops", db: str = "pg", **options: Any) -> None:
        super().__init__(tag, **options)
        configure(db, tag)
        from django.db import connection

        from django_convmemory import models
        from django_convmemory.memory import memories
        from django_convmemory.messages import ChatMessage

        self.backend = "pg" if db == "pg" else "sqlite"
        self.connection, self.models, self.memory = connection, models, memories["default"]
        self.make = {"user": ChatMessage.human, "assistant": ChatMessage.ai}

    def connect(self) -> None:
        self.connection.ensure_connection()

    def close(self) -> None:
        self.connection.close()

    def reset(self) -> None:
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        for model in (self.models.Attempt, self.models.Summary, self.models.Message, self.models.Session):
            model.objects.all()._raw_delete(model.objects.db)

    def seed(self, session_id: str, texts: list[str]) -> None:
        roles = ("user", "assistant")
        for at in range(0, len(texts), 500):
            messages = [self.make[roles[i % 2]](texts[i]) for i in range(at, min(at + 500, len(texts)))]
            self.memory.append(session_id, *messages)
        session = self.models.Session.objects.get(key=session_id)
        covered = (
            session.convmemory_messages.filter(tokens_through__lte=session.unpinned_tokens - LIMIT)
            .order_by("-position")
            .first()
        )
        if covered is not None:
            self.models.Summary.objects.create(
                session=session,
                version=1,
                first_position=1,
                last_position=covered.position,
                covered_count=covered.position,
                covered_tokens=covered.tokens_through,
                text="What was said before. " * 40,
                tokens=200,
            )
            self.models.Session.objects.filter(pk=session.pk).update(
                last_version=1,
                current_version=1,
                covered_position=covered.position,
                covered_count=covered.position,
                covered_tokens=covered.tokens_through,
                due_since=None,
            )

    def after_seed(self) -> None:
        if self.backend == "pg":
            with self.connection.cursor() as cursor:
                cursor.execute("VACUUM ANALYZE convmemory_message")
                cursor.execute("VACUUM ANALYZE convmemory_session")

    def open(self, session_id: str) -> Any:
        return self.memory.session(session_id)

    def append(self, handle: Any, role: str, text: str) -> None:
        handle.append(self.make[role](text))

    def load(self, handle: Any) -> list[str]:
        return [message["content"] for message in handle.load().to_openai()]

    def load_all(self, session_id: str) -> list[str]:
        rows = self.models.Message.objects.filter(session__key=session_id).order_by("position")
        return list(rows.values_list("content", flat=True))
