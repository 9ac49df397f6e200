"""Each endpoint takes a fixed number of statements, however much is stored."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.api.conftest import FIRST, ROOT
from tests.api.test_owners import BODIES, METHODS
from tests.settings import DATABASE, LOOKUPS

# By method and endpoint: the statements on SQLite, PostgreSQL and MariaDB. Those that begin or end a transaction are
# not counted. The app of the embeddings adds one to each change of the content, and two to a deletion.
STATEMENTS: dict[tuple[str, str], tuple[int, int, int]] = {
    ("GET", "sessions"): (2, 2, 2),
    ("POST", "sessions"): (2, 2, 2),
    ("GET", "session"): (1, 1, 1),
    ("PATCH", "session"): (3, 3, 3),
    ("DELETE", "session"): (12, 12, 12),
    ("GET", "session-status"): (1, 1, 1),
    # News takes one more for messages, and one for a summary.
    ("GET", "events"): (1, 1, 1),
    ("GET", "context"): (2, 2, 2),
    ("GET", "messages"): (2, 2, 2),
    ("POST", "messages"): (5, 4, 6),
    ("GET", "message"): (2, 2, 2),
    ("PATCH", "message"): (7, 7, 7),
    ("POST", "replace"): (23, 22, 24),
    ("POST", "redact"): (22, 22, 22),
    # Opening, prolonging and ending the turn, the context, and the answer.
    ("POST", "turns"): (9, 7, 13),
    ("GET", "turn"): (6, 6, 6),
    ("POST", "stop"): (7, 7, 7),
    ("GET", "summaries"): (2, 2, 2),
    ("GET", "summary"): (2, 2, 2),
    ("GET", "search"): (3, 3, 3),
    ("GET", "search-all"): (4, 4, 4),
    ("POST", "truncate"): (19, 19, 19),
    ("POST", "clear"): (9, 9, 9),
    ("POST", "fork"): (21, 21, 21),
    ("POST", "compact"): (2, 2, 2),
    ("POST", "rebuild"): (2, 2, 2),
    # An export takes one more for each thousand messages.
    ("GET", "export"): (6, 6, 6),
}
_OWN = ("SAVEPOINT", "RELEASE", "BEGIN", "ROLLBACK", "SELECT VERSION", "SELECT @@", "SELECT set_config", "SET ")


SIZES = (12, 1500)


def ask(turn: Any) -> str:
    return "Hello!"


@pytest.fixture
def client(anna: User, settings: Any) -> APIClient:
    settings.CONVMEMORY_API = {"RESPONDER": f"{__name__}.ask"}
    client = APIClient()
    client.force_authenticate(anna)
    return client


@pytest.fixture
def sizes(anna: User, convmemory: ScriptedMemories) -> list[str]:
    """The addresses of a short conversation and of a long one, with many others beside them."""
    convmemory.allow_unused_replies = True
    addresses = []
    for size in SIZES:
        session = memories["default"].session(f"of {size}", owner=anna)
        session.append(ChatMessage.human("word " * 30, id=uuid.UUID(FIRST)))
        for start in range(1, size, 500):
            session.append(*[ChatMessage.human("word " * 30) for _ in range(min(500, size - start))])
        convmemory.reply(*["many words"] * 20)
        convmemory.run()
        addresses.append(f"{ROOT}{models.Session.objects.get(key=session.key).public_id}/")
        for number in range(size // 10):
            memories["default"].session(f"{size}, {number}", owner=anna).append(ChatMessage.human("hello"))
    return addresses


def paths(name: str, session: str) -> str:
    return {
        "sessions": ROOT,
        "session": session,
        "session-status": f"{session}status/",
        "message": f"{session}messages/{FIRST}/",
        "redact": f"{session}messages/{FIRST}/redact/",
        "turn": f"{session}turns/{FIRST}/",
        "stop": f"{session}turns/{FIRST}/stop/",
        "summary": f"{session}summaries/1/",
        "search": f"{session}search/?q=word&limit=5&neighbours=2",
        "search-all": f"{ROOT.removesuffix('sessions/')}search/?q=word&limit=5&neighbours=2",
    }.get(name, f"{session}{name}/")


@pytest.mark.parametrize(("method", "name"), list(STATEMENTS))
def test_each_endpoint_takes_a_fixed_number_of_statements(
    client: APIClient, sizes: list[str], method: str, name: str
) -> None:
    taken = []
    for session, messages in zip(sizes, SIZES, strict=True):
        if name == "stop":
            open_until = timezone.now() + dt.timedelta(minutes=1)
            models.Session.objects.update(turn_token="t" * 32, turn_question=1, turn_expires_at=open_until)
        with CaptureQueriesContext(connection) as captured:
            response = client.generic(
                method,
                paths(name, session),
                json.dumps(BODIES[name]) if method != "GET" else "",
                content_type="application/json",
                headers={"If-Match": "*"},
            )
            if response.streaming:
                b"".join(response.streaming_content)  # type: ignore[attr-defined]
        assert response.status_code < 300, response.content
        statements = [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(_OWN)]
        pages = messages // 1000 if name == "export" else 0
        taken.append(statements[pages:])
    listing = "\n".join(statement[:100] for statements in taken for statement in statements)
    # The API names a session by its row, so a load has the id already.
    lookups = LOOKUPS if (method, name) in (("GET", "search"), ("PATCH", "message")) else 0
    assert [len(statements) for statements in taken] == [STATEMENTS[method, name][_column()] + lookups] * 2, listing


def _column() -> int:
    return ("sqlite", "postgresql", "mariadb").index(DATABASE)


def test_the_statements_of_every_endpoint_are_counted() -> None:
    from django_convmemory.api.urls import urlpatterns

    offered = {
        (method, str(pattern.name))
        for pattern in urlpatterns
        for method in METHODS
        if method not in ("HEAD", "OPTIONS") and hasattr(pattern.callback.cls, method.lower())  # type: ignore[attr-defined]
    }
    assert offered == set(STATEMENTS)


def test_a_context_with_quotes_takes_two_more_statements(client: APIClient, sizes: list[str]) -> None:
    for session in sizes:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"{session}context/?recall=word").json()["recalled"]
        assert len(captured) == 4 + LOOKUPS
