"""How many statements each endpoint takes: a fixed number, however much is stored."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.api.conftest import ROOT
from tests.api.test_owners import BODIES, METHODS
from tests.settings import DATABASE

# By method and endpoint: on SQLite, PostgreSQL and MariaDB, but for what begins and ends transactions.
STATEMENTS: dict[tuple[str, str], tuple[int, int, int]] = {
    ("GET", "sessions"): (1, 1, 1),
    ("POST", "sessions"): (2, 2, 2),
    ("GET", "session"): (1, 1, 1),
    ("PATCH", "session"): (3, 3, 3),
    ("DELETE", "session"): (8, 8, 8),
    ("GET", "session-status"): (1, 1, 1),
    ("GET", "context"): (2, 2, 2),
    ("GET", "messages"): (2, 2, 2),
    ("POST", "messages"): (3, 2, 4),
    ("GET", "message"): (2, 2, 2),
    ("POST", "redact"): (15, 15, 15),
    ("GET", "summaries"): (2, 2, 2),
    ("GET", "summary"): (2, 2, 2),
    ("POST", "truncate"): (10, 10, 10),
    ("POST", "clear"): (5, 5, 5),
    ("POST", "fork"): (15, 15, 15),
    ("POST", "compact"): (2, 2, 2),
    ("POST", "rebuild"): (2, 2, 2),
    # And one more for each thousand messages.
    ("GET", "export"): (6, 6, 6),
}
_OWN = ("SAVEPOINT", "RELEASE", "BEGIN", "ROLLBACK", "SELECT VERSION", "SET ")


SIZES = (12, 1500)


@pytest.fixture
def client(anna: User) -> APIClient:
    client = APIClient()
    client.force_authenticate(anna)
    return client


@pytest.fixture
def sizes(anna: User, convmemory: ScriptedMemories) -> list[str]:
    """The addresses of a short conversation, and of a long one among many."""
    convmemory.allow_unused_replies = True
    found = []
    for size in SIZES:
        session = memories["default"].session(f"of {size}", owner=anna)
        for start in range(0, size, 500):
            session.append(*[ChatMessage.human("word " * 30) for _ in range(min(500, size - start))])
        convmemory.reply(*["a summary"] * 20)
        convmemory.run()
        found.append(f"{ROOT}{models.Session.objects.get(key=session.key).public_id}/")
        for number in range(size // 10):
            memories["default"].session(f"{size}, {number}", owner=anna).append(ChatMessage.human("hello"))
    return found


def paths(name: str, session: str) -> str:
    return {
        "sessions": ROOT,
        "session": session,
        "session-status": f"{session}status/",
        "message": f"{session}messages/1/",
        "redact": f"{session}messages/1/redact/",
        "summary": f"{session}summaries/1/",
    }.get(name, f"{session}{name}/")


@pytest.mark.parametrize(("method", "name"), list(STATEMENTS))
def test_each_endpoint_takes_so_many(client: APIClient, sizes: list[str], method: str, name: str) -> None:
    taken = []
    for session, messages in zip(sizes, SIZES, strict=True):
        with CaptureQueriesContext(connection) as captured:
            answer = client.generic(
                method,
                paths(name, session),
                json.dumps(BODIES[name]) if method != "GET" else "",
                content_type="application/json",
                headers={"If-Match": "*"},
            )
            if answer.streaming:
                b"".join(answer.streaming_content)  # type: ignore[attr-defined]
        assert answer.status_code < 300, answer.content
        statements = [one["sql"] for one in captured.captured_queries if not one["sql"].startswith(_OWN)]
        pages = messages // 1000 if name == "export" else 0
        taken.append(statements[pages:])
    shown = "\n".join(statement[:100] for statements in taken for statement in statements)
    assert [len(one) for one in taken] == [STATEMENTS[method, name][_column()]] * 2, shown


def _column() -> int:
    return ("sqlite", "postgresql", "mariadb").index(DATABASE)


def test_every_endpoint_is_counted() -> None:
    from django_convmemory.api.urls import urlpatterns

    offered = {
        (method, str(pattern.name))
        for pattern in urlpatterns
        for method in METHODS
        if method not in ("HEAD", "OPTIONS") and hasattr(pattern.callback.cls, method.lower())  # type: ignore[attr-defined]
    }
    assert offered == set(STATEMENTS)


def test_an_explanation_takes_two_more(client: APIClient, sizes: list[str]) -> None:
    for session in sizes:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"{session}context/?explain=1&limit=200").status_code == 200
        assert len(captured) == 4
