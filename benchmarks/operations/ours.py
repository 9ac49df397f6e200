"""django_convmemory: ``memories["default"]`` with a summary buffer of 2 000 tokens."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlsplit

from contender import TOKENS, Contender


class Convmemory(Contender):
    """The configuration of a usual site: Django's default options for PostgreSQL."""

    options: dict[str, Any] = {}
    max_age: int | None = None

    def __init__(self, place: str) -> None:
        super().__init__(place)
        import django
        from django.conf import settings
        from django.core.management import call_command

        parts = urlsplit(place)
        if parts.scheme:
            database = {
                "ENGINE": f"django.db.backends.{parts.scheme}",
                "NAME": parts.path[1:],
                "USER": parts.username,
                "HOST": parts.hostname,
                "PORT": parts.port or "",
                "CONN_MAX_AGE": self.max_age,
                "OPTIONS": self.options,
            }
        else:
            database = {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": f"{place}/ours.sqlite3",
                "OPTIONS": {
                    "transaction_mode": "IMMEDIATE",
                    "timeout": 20,
                    "init_command": "PRAGMA journal_mode=WAL;",
                },
            }
        settings.configure(
            SECRET_KEY="benchmark",
            DATABASES={"default": database},
            USE_TZ=True,
            INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_convmemory"],
            CONVMEMORY={
                "default": {
                    "OPTIONS": {"max_token_limit": TOKENS},
                    "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
                    "SCHEDULER": {"BACKEND": "django_convmemory.scheduling.NullScheduler"},
                }
            },
        )
        django.setup()
        call_command("migrate", verbosity=0)
        from django_convmemory.memory import memories
        from django_convmemory.messages import ChatMessage

        self.memory = memories["default"]
        self.make = {"user": ChatMessage.human, "assistant": ChatMessage.ai}

    def fill(self, name: str, texts: list[str]) -> None:
        """Store a conversation that was folded regularly: 2 000 tokens verbatim, and a summary of the rest."""
        from django_convmemory.models import Session, Summary

        session = self.memory.session(name)
        session.clear()
        for at in range(0, len(texts), 500):
            roles = ["user", "assistant"] * 250
            session.append(*[self.make[role](text) for role, text in zip(roles, texts[at : at + 500], strict=False)])
        row = Session.objects.get(key=name)
        folded = row.convmemory_messages.filter(tokens_through__lte=row.unpinned_tokens - TOKENS)
        last = folded.order_by("-session_id", "-position").first()
        if last is None:
            return
        version = row.last_version + 1
        Summary.objects.create(
            session=row,
            version=version,
            first_position=1,
            last_position=last.position,
            covered_count=last.position,
            covered_tokens=last.tokens_through,
            text="What was said before. " * 40,
            tokens=200,
        )
        Session.objects.filter(pk=row.pk).update(
            last_version=version,
            current_version=version,
            covered_position=last.position,
            covered_count=last.position,
            covered_tokens=last.tokens_through,
            due_since=None,
        )

    def session(self, name: str) -> Any:
        return self.memory.session(name)

    def append(self, session: Any, role: str, text: str) -> Any:
        session.append(self.make[role](text))

    def load(self, session: Any) -> Any:
        context: list[dict[str, Any]] = session.load().to_openai()
        return context

    # An answer, and the same by hand. The model takes no time. At the end, each gives the connection back to the pool,
    # if there is one, as a request does.

    def answer(self, session: Any, role: str, text: str) -> None:
        session.answer(text, lambda turn: text, key=uuid.uuid4().hex)
        self.memory.store.give_back_connection()

    def by_hand(self, session: Any, role: str, text: str) -> None:
        session.append_and_load(self.make["user"](text), idempotency_key=uuid.uuid4().hex)
        session.append(self.make["assistant"](text))
        self.memory.store.give_back_connection()

    def by_hand_and_given_back(self, session: Any, role: str, text: str) -> None:
        """As ``answer`` does, give the connection back while the model answers, too."""
        session.append_and_load(self.make["user"](text), idempotency_key=uuid.uuid4().hex)
        self.memory.store.give_back_connection()
        session.append(self.make["assistant"](text))
        self.memory.store.give_back_connection()


class Prepared(Convmemory):
    """With prepared statements, which PostgreSQL keeps for each connection."""

    options = {"server_side_binding": True, "prepare_threshold": 5}


class Pooled(Convmemory):
    """With Django's connection pool."""

    options = {"pool": True}
    max_age = 0


class Asynchronous(Convmemory):
    """As in an asynchronous view: each operation runs in the thread that has the connection."""

    async def append(self, session: Any, role: str, text: str) -> None:
        await session.aappend(self.make[role](text))

    async def load(self, session: Any) -> list[dict[str, Any]]:
        context: list[dict[str, Any]] = (await session.aload()).to_openai()
        return context
