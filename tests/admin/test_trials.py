"""A trial of a prompt: it calls a model and shows the answer, and stores nothing."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils.html import escape

from django_convmemory import models
from django_convmemory.chat_models.base import ChatRequest, ChatResponse
from django_convmemory.maintenance import trials
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.admin.test_sessions import EVIL, LIST, staff
from tests.openai_server import Behaviour, OpenAIServer, prompt

CURRENT = "Anna plans a trip to Lisbon in May with a budget of 2,400 euros."
TRIED = "Anna plans a trip to Porto in May, and eats no shellfish."
PERMISSIONS = ("view_session", "try_prompts")


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer() as server:
        yield server


@pytest.fixture
def aliases(server: OpenAIServer, settings: Any) -> None:
    """Two aliases with the real client and a server each answers from: ``default``, and ``large`` with a price."""

    def alias(model: str, **more: Any) -> dict[str, Any]:
        options = {"model": model, "api_key": "key", "base_url": server.base_url, "timeout": 20.0}
        backend = "django_convmemory.chat_models.openai.OpenAIChatModel"
        return {
            "CHAT_MODEL": {"BACKEND": backend, "OPTIONS": options, **more},
            "OPTIONS": {"max_token_limit": 200, "recall_tokens": 300, "instructions": "Keep the budget."},
            "SCHEDULER": {"BACKEND": "django_convmemory.schedulers.NullScheduler"},
            "FALLBACK_CHAT_MODEL": None,
        }

    price = {"input": 1000, "output": 5000}
    settings.CONVMEMORY = {"default": alias("small-model"), "large": alias("large-model", PRICE=price)}
    settings.CONVMEMORY_CURRENCY = "EUR"


@pytest.fixture
def session(aliases: None, server: OpenAIServer, db: None) -> models.Session:
    """A conversation whose first messages are folded."""
    handle = memories["default"].session("main", owner=User.objects.create_user("anna"))
    handle.append(ChatMessage.system("Be kind."), ChatMessage.human("The hotel of Lisbon is in Baixa, it has a lift."))
    for number in range(8):
        handle.append(ChatMessage.human(f"question {number} " + "word " * 12), ChatMessage.ai(f"answer {number}"))
    server.queue(Behaviour(text=CURRENT))
    assert handle.compact() == "published"
    server.forget()
    return models.Session.objects.get()


def url_of(session: models.Session) -> str:
    return f"{LIST}{session.pk}/trial/"


def trial(**fields: str) -> dict[str, str]:
    return {"form": "trial", "covers": "version", "model": "large", "instructions": ""} | fields


def stored() -> dict[str, list[Any]]:
    """Every row of this app and of the admin's history."""
    ours = apps.get_app_config("convmemory").get_models()
    return {model.__name__: list(model._default_manager.order_by("pk").values()) for model in ours} | {
        "history": list(apps.get_model("admin", "LogEntry")._default_manager.values())
    }


def texts(answer: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", answer.content.decode()))


def test_a_trial_covers_the_messages_of_the_current_version_again(
    session: models.Session, server: OpenAIServer
) -> None:
    version = models.Summary.objects.get()
    server.queue(Behaviour(text=TRIED))
    before = stored()
    answer = staff(*PERMISSIONS).post(url_of(session), trial(instructions="Note what they eat."))
    assert answer.status_code == 200
    [exchange] = server.log
    assert exchange.body["model"] == "large-model"
    asked = prompt(exchange.body)
    assert "Note what they eat." in asked
    assert "Keep the budget." not in asked
    assert "The hotel of Lisbon" in asked
    assert CURRENT not in asked
    content = answer.content.decode()
    assert "<ins>Porto </ins>" in content
    assert "<del>Lisbon </del>" in content
    shown = texts(answer)
    assert f"messages 2–{version.last_position}" in shown
    assert "large-model" in shown
    assert re.search(r"\d+ tokens in, \d+ out · cost [\d.]+ EUR", shown)
    assert stored() == before


def test_a_trial_of_the_next_fold_continues_the_current_summary(session: models.Session, server: OpenAIServer) -> None:
    server.queue(Behaviour(text=TRIED))
    before = stored()
    answer = staff(*PERMISSIONS).post(url_of(session), trial(covers="next", model="default"))
    [exchange] = server.log
    assert exchange.body["model"] == "small-model"
    asked = prompt(exchange.body)
    assert CURRENT in asked
    assert "The hotel of Lisbon" not in asked
    first = session.covered_position + 1
    assert f"messages {first}–{session.last_position - 1}" in texts(answer)
    assert "cost –" in texts(answer)
    assert stored() == before


def test_a_long_exchange_is_tried_in_part(session: models.Session, server: OpenAIServer, settings: Any) -> None:
    memories["default"].session(session).append(ChatMessage.human("chapter and verse " * 6000), ChatMessage.ai("Yes."))
    server.queue(Behaviour(text=TRIED))
    models.Session.objects.update(covered_position=session.last_position)
    answer = staff(*PERMISSIONS).post(url_of(session), trial(covers="next"))
    assert "too long for one call" in texts(answer)
    assert len(prompt(server.log[0].body)) < 60_000


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (Behaviour("server_error"), "ModelUnavailable"),
        (Behaviour("unauthorized"), "ModelMisconfigured"),
        (Behaviour("apology"), "ContentRefused"),
        (Behaviour("empty"), "BadModelOutput"),
    ],
    ids=lambda value: value.kind if isinstance(value, Behaviour) else "",
)
def test_a_model_that_fails_is_named_and_not_counted(
    session: models.Session, server: OpenAIServer, behaviour: Behaviour, error: str
) -> None:
    server.queue(behaviour)
    before = stored()
    answer = staff(*PERMISSIONS).post(url_of(session), trial())
    assert answer.status_code == 200
    assert "There is no usable summary." in texts(answer)
    assert error in texts(answer)
    assert stored() == before
    assert not memories["large"].breaker.open


class Defective:
    """A chat model that breaks the rules of its interface."""

    name, deadline = "defective", 5.0

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def chat(self, request: ChatRequest) -> Any:
        if self.kind == "text":
            return "A summary."
        if self.kind == "NUL":
            return ChatResponse(ChatMessage.ai("A \x00 summary."))
        raise {"error": RuntimeError, "exit": SystemExit, "interrupt": KeyboardInterrupt}[self.kind](EVIL)

    async def achat(self, request: ChatRequest) -> Any:
        return self.chat(request)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("text", "returned no ChatResponse, but a str"),
        ("NUL", "raised InvalidMessage"),
        ("error", "raised RuntimeError"),
        ("exit", "raised SystemExit"),
        ("interrupt", "raised KeyboardInterrupt"),
    ],
)
def test_a_model_with_a_defect_ends_no_request_and_no_process(
    session: models.Session, settings: Any, kind: str, error: str
) -> None:
    backend = f"{__name__}.Defective"
    defective = settings.CONVMEMORY["large"] | {"CHAT_MODEL": {"BACKEND": backend, "OPTIONS": {"kind": kind}}}
    settings.CONVMEMORY = settings.CONVMEMORY | {"large": defective}
    before = stored()
    answer = staff(*PERMISSIONS).post(url_of(session), trial())
    assert answer.status_code == 200
    assert f"BadModelOutput: The chat model {error}." in texts(answer)
    assert EVIL not in answer.content.decode()
    assert stored() == before


def test_the_page_says_how_long_it_waited_for_a_model_that_ignores_its_deadline(
    session: models.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    model = memories["large"].model
    assert model is not None
    monkeypatch.setattr(trials, "GRACE", 0.1)
    monkeypatch.setattr(model, "deadline", 0.2)
    monkeypatch.setattr(model, "chat", lambda request: ended.wait())
    answer = staff(*PERMISSIONS).post(url_of(session), trial())
    ended.set()
    assert "No answer after 0 seconds." in texts(answer)


def test_nobody_waits_longer_than_a_minute(
    session: models.Session, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "LONGEST_WAIT", 0.0)
    monkeypatch.setattr(trials, "GRACE", 0.1)
    server.queue(Behaviour("hang"))
    answer = staff(*PERMISSIONS).post(url_of(session), trial())
    assert "No answer after 0 seconds." in texts(answer)


@pytest.mark.django_db(transaction=True)
def test_no_transaction_and_no_lease_is_held_while_the_model_answers(
    session: models.Session, server: OpenAIServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    seen: dict[str, Any] = {}

    def write(body: dict[str, Any]) -> str:
        """Write to the session, as another request would, while the trial waits."""
        try:
            row = models.Session.objects.get(pk=session.pk)
            seen["lease"] = row.lease_expires_at
            seen["receipt"] = memories["default"].session(row).append(ChatMessage.human("Meanwhile."))
        finally:
            connection.close()
        return TRIED

    server.queue(Behaviour(text=write))
    answer = staff(*PERMISSIONS).post(url_of(session), trial())
    assert "Porto" in texts(answer)
    assert seen["lease"] is None
    assert seen["receipt"].last_position == session.last_position + 1


def test_a_trial_takes_both_permissions_and_a_token(session: models.Session, server: OpenAIServer) -> None:
    for permissions in (("view_session", "change_session", "delete_session"), ("try_prompts",)):
        client = staff(*permissions)
        assert client.get(url_of(session)).status_code == 403
        assert client.post(url_of(session), trial()).status_code == 403
        if "view_session" in permissions:
            assert b"../trial/" not in client.get(f"{LIST}{session.pk}/change/").content
    client = staff(*PERMISSIONS)
    assert b'href="../trial/"' in client.get(f"{LIST}{session.pk}/change/").content
    assert client.get(url_of(session)).status_code == 200
    assert client.put(url_of(session)).status_code == 405
    forged = Client(enforce_csrf_checks=True)
    forged.force_login(User.objects.get(username=client.get(url_of(session)).context["user"].username))
    assert forged.post(url_of(session), trial()).status_code == 403
    assert Client().post(url_of(session), trial()).status_code == 302
    assert server.log == []


@pytest.mark.parametrize(
    "fields",
    [{"model": "gpt-9"}, {"covers": "everything"}, {"instructions": "x" * 4001}, {"model": ""}, {"form": "delete"}],
    ids=str,
)
def test_invalid_fields_call_no_model(session: models.Session, server: OpenAIServer, fields: dict[str, str]) -> None:
    answer = staff(*PERMISSIONS).post(url_of(session), trial(**fields))
    assert answer.status_code == 200
    assert "Result" not in texts(answer)
    assert server.log == []


def test_what_a_model_or_a_user_wrote_is_escaped(session: models.Session, server: OpenAIServer) -> None:
    handle = memories["default"].session(session)
    models.Message.objects.filter(position=2).update(content=f"Lisbon hotel {EVIL}")
    server.queue(Behaviour(text=f"{CURRENT} {EVIL}"))
    client = staff(*PERMISSIONS)
    for posted in (trial(instructions=EVIL), {"form": "recall", "question": f"Lisbon hotel {EVIL}"}):
        content = client.post(url_of(session), posted).content.decode()
        assert "<script>alert" not in content
        assert "<b>bold" not in content
        assert escape("<script>alert(1)</script>") in content
    assert handle.history()


def test_recall_shows_what_it_would_quote(session: models.Session, server: OpenAIServer) -> None:
    before = stored()
    client = staff(*PERMISSIONS)
    answer = client.post(url_of(session), {"form": "recall", "question": "In which part of Lisbon is the hotel?"})
    content = answer.content.decode()
    assert "<mark>hotel</mark>" in content
    assert f"{LIST}{session.pk}/change/?before=3#m2" in content
    quoted = memories["default"].load(session, recall="In which part of Lisbon is the hotel?")
    assert 2 in [hit.position for hit in quoted.recalled]
    assert f"{len(quoted.recalled)} messages are quoted." in texts(answer)
    nothing = client.post(url_of(session), {"form": "recall", "question": "unheard-of zeppelins"})
    assert "Nothing is quoted" in texts(nothing)
    assert "This field is required" in texts(client.post(url_of(session), {"form": "recall", "question": " "}))
    assert server.log == []
    assert stored() == before


def test_a_session_without_messages_or_without_its_alias(session: models.Session, server: OpenAIServer) -> None:
    client = staff(*PERMISSIONS)
    memories["default"].session("empty").append(ChatMessage.human("Hello"))
    memories["default"].session("empty").clear()
    empty = models.Session.objects.get(key="empty")
    assert "There are no messages to fold." in texts(client.post(url_of(empty), trial(covers="next")))
    assert "There are no messages." in texts(client.post(url_of(empty), {"form": "recall", "question": "hotel"}))
    models.Session.objects.update(alias="gone")
    answer = client.get(url_of(session), follow=True)
    assert "is not in the setting CONVMEMORY" in texts(answer)
    assert server.log == []


def test_a_memory_without_summaries_tries_recall_only(session: models.Session, settings: Any) -> None:
    settings.CONVMEMORY = settings.CONVMEMORY | {
        "default": {"MEMORY": "django_convmemory.memory.ConversationBufferMemory"}
    }
    client = staff(*PERMISSIONS)
    assert "This memory makes no summaries" in texts(client.get(url_of(session)))
    assert "Result" not in texts(client.post(url_of(session), trial()))
