"""Two plain Django solutions.

The first is a model of messages; a load reads all of them and cuts them to the budget. In the second, a load reads only
the last messages, whatever their number of tokens.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from contender import MESSAGES, TOKENS, Contender


class Naive(Contender):
    """``Message.objects.create`` and ``Message.objects.filter``, on Django's own connection."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        import django
        from django.conf import settings

        parts = urlsplit(place)
        database = (
            {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path[1:],
                "USER": parts.username,
                "HOST": parts.hostname,
                "PORT": parts.port or "",
                "CONN_MAX_AGE": None,
            }
            if self.postgresql
            else {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": f"{place}/naive.sqlite3",
                "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL;"},
            }
        )
        settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()
        from django.db import connection, models

        class Message(models.Model):  # noqa: DJ008  never displayed
            session = models.CharField(max_length=200, db_index=True)
            role = models.CharField(max_length=20)
            content = models.TextField()
            created_at = models.DateTimeField(auto_now_add=True)

            class Meta:
                app_label = "naive"

        self.messages = Message.objects
        with connection.schema_editor() as editor:
            editor.create_model(Message)

    def fill(self, name: str, texts: list[str]) -> None:
        self.messages.filter(session=name).delete()
        self.messages.bulk_create([self.messages.model(session=name, role="user", content=text) for text in texts])

    def append(self, session: str, role: str, text: str) -> None:
        self.messages.create(session=session, role=role, content=text)

    def load(self, session: str) -> list[dict[str, Any]]:
        left, context = TOKENS, []
        for message in reversed(self.messages.filter(session=session).order_by("pk")):
            left -= len(message.content) // 4
            if left < 0:
                break
            context.append({"role": message.role, "content": message.content})
        return context[::-1]


class Limited(Naive):
    """The same with a ``LIMIT``."""

    def load(self, session: str) -> list[dict[str, Any]]:
        newest = self.messages.filter(session=session).order_by("-pk")[:MESSAGES]
        return [{"role": message.role, "content": message.content} for message in reversed(newest)]
