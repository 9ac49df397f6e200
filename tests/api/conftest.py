from __future__ import annotations

import uuid
from typing import Any, get_args

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api import problems
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from scripts.openapi import responses

ROOT = "/api/memory/sessions/"
# The ids of the messages of ``chat``, and one that no message has.
FIRST, SECOND, NO_MESSAGE = (f"0197c5a1-0000-7000-8000-00000000000{number}" for number in (1, 2, 9))


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    """Throttles do not count the requests of other tests."""
    cache.clear()


@pytest.fixture(autouse=True)
def only_documented_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every error of every test has a code that the schema lists, or one of the authentication class of the test."""
    document = problems._document
    known, of_values = {*get_args(responses.ProblemCode), "token_not_valid"}, set(get_args(responses.ValueCode))

    def checked(problem: Any) -> dict[str, Any]:
        content = document(problem)
        assert content["code"] in known, content
        assert {error["code"] for error in content.get("errors", [])} <= of_values, content
        return content

    monkeypatch.setattr(problems, "_document", checked)


@pytest.fixture
def anna(db: None) -> User:
    return User.objects.create_user("anna")


@pytest.fixture
def api(anna: User) -> APIClient:
    """A client that is logged in as anna."""
    return client_of(anna)


@pytest.fixture
def service(anna: User) -> APIClient:
    """A client that is logged in as anna, who may write any role."""
    anna.user_permissions.add(Permission.objects.get(codename="write_any_role"))
    return client_of(User.objects.get(pk=anna.pk))


@pytest.fixture
def chat(anna: User) -> SessionHandle:
    """A conversation that anna owns."""
    session = memories["default"].session("main", owner=anna)
    session.append(
        ChatMessage.human("What is Rust?", id=uuid.UUID(FIRST)),
        ChatMessage.ai("A systems language.", id=uuid.UUID(SECOND)),
    )
    return session


def client_of(user: User) -> APIClient:
    client = APIClient()
    client.force_login(user)
    return client


def row_of(chat: SessionHandle) -> models.Session:
    return models.Session.objects.get(name_hash=chat.session_name.name_hash)


def url_of(chat: SessionHandle, path: str = "") -> str:
    return f"{ROOT}{row_of(chat).public_id}/{path}"


def messages_body(*texts: str, role: str = "user") -> dict[str, Any]:
    """Return the body of a request that appends these texts."""
    return {"messages": [{"role": role, "content": text} for text in texts]}
