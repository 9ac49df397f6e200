"""Each endpoint takes a fixed number of statements, however much is stored."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api import urls
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.api import test_owners
from tests.api.conftest import FIRST, ROOT, row_of
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
    ("GET", "turn"): (6, 6, 6),
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
    # Opening, prolonging and ending the turn, the context, and the answer. It is not undone, so it comes late.
    ("POST", "turns"): (9, 7, 13),
    ("POST", "stop"): (7, 7, 7),
}
_OWN = ("SAVEPOINT", "RELEASE", "BEGIN", "ROLLBACK", "SELECT VERSION", "SELECT @@", "SELECT set_config", "SET ")


SIZES = (12, 1500)


@pytest.fixture
def client(anna: User, settings: Any) -> APIClient:
    settings.CONVMEMORY_API = {"RESPONDER": f"{test_owners.__name__}.ask"}
    client = APIClient()
    client.force_authenticate(anna)
    return client


@pytest.fixture
def sizes(anna: User, convmemory: ScriptedMemories) -> list[models.Session]:
    """A short conversation and a long one, with many others beside them."""
    convmemory.allow_unused_replies = True
    conversations = []
    for size in SIZES:
        session = memories["default"].session(f"of {size}", owner=anna)
        session.append(ChatMessage.human("secret " * 30, id=uuid.UUID(FIRST)))
        for start in range(1, size, 500):
            session.append(*[ChatMessage.human("secret " * 30) for _ in range(min(500, size - start))])
        convmemory.reply(*["a secret"] * 20)
        convmemory.run()
        conversations.append(row_of(session))
        for number in range(size // 10):
            memories["default"].session(f"{size}, {number}", owner=anna).append(ChatMessage.human("hello"))
    return conversations


def test_each_endpoint_takes_a_fixed_number_of_statements(client: APIClient, sizes: list[models.Session]) -> None:
    for (method, name), expected in STATEMENTS.items():
        [pattern] = [pattern for pattern in urls.urlpatterns if pattern.name == name]
        # The API names a session by its row, so a load has the id already.
        lookups = LOOKUPS if (method, name) in (("GET", "search"), ("PATCH", "message")) else 0
        for session, messages in zip(sizes, SIZES, strict=True):
            if name == "stop":
                test_owners.open_turn()
            with CaptureQueriesContext(connection) as captured:
                response = test_owners.send_and_undo(client, pattern, method, session)
                if response.streaming:
                    b"".join(response.streaming_content)
            assert response.status_code < 300, (method, name, response.content)
            statements = [query["sql"] for query in captured.captured_queries if not query["sql"].startswith(_OWN)]
            pages = messages // 1000 if name == "export" else 0
            listing = "\n".join(statement[:100] for statement in statements)
            assert len(statements) - pages == expected[_column()] + lookups, f"{method} {name}:\n{listing}"


def _column() -> int:
    return ("sqlite", "postgresql", "mariadb").index(DATABASE)


def test_the_statements_of_every_endpoint_are_counted() -> None:
    offered = {
        (method, str(pattern.name))
        for pattern in urls.urlpatterns
        for method in test_owners.METHODS
        if method not in ("HEAD", "OPTIONS") and hasattr(pattern.callback.cls, method.lower())  # type: ignore[attr-defined]
    }
    assert offered == set(STATEMENTS)


def test_a_context_with_quotes_takes_two_more_statements(client: APIClient, sizes: list[models.Session]) -> None:
    for session in sizes:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"{ROOT}{session.public_id}/context/?recall=secret").json()["recalled"]
        assert len(captured) == 4 + LOOKUPS
