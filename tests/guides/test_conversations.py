"""The code of docs/guides/conversations.md does what the page says."""

from __future__ import annotations

import json
import re
import sys
import types
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import RequestFactory

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.pause import Reason
from django_convmemory.testing import ScriptedMemories
from tests.guides.test_pages import blocks
from tests.outages import pause_alias


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The blocks of views.py: the first one names it, and the others follow."""
    site = types.SimpleNamespace(ask=lambda turn: f"I saw {len(turn.context)} messages.")
    monkeypatch.setitem(sys.modules, "chats", types.ModuleType("chats"))
    monkeypatch.setitem(sys.modules, "chats.models", site)
    code = "\n\n".join(blocks("conversations"))
    assert re.findall(r"^# (\w+\.py)$", code, re.MULTILINE) == ["views.py"]
    namespace: dict[str, Any] = {"__name__": "chats.views", "__package__": "chats"}
    exec(code, namespace)  # noqa: S102
    return namespace


def call_view(views: dict[str, Any], view: str, user: User, *arguments: str, **data: Any) -> tuple[int, Any]:
    make = RequestFactory().get if view in ("index", "transcript") else RequestFactory().post
    request = make("/", data)
    request.user = user
    response = views[view](request, *arguments)
    return response.status_code, json.loads(response.content)


def talk(user: User) -> None:
    chat = memories["default"].session("main", owner=user)
    chat.append(ChatMessage.system("Be kind."), ChatMessage.human("What is Rust?"), ChatMessage.ai("A language."))


def test_a_list_and_a_transcript(views: dict[str, Any], ann: User) -> None:
    talk(ann)
    talk(User.objects.create_user("bob"))
    call_view(views, "rename", ann, "main", title="Rust")

    assert call_view(views, "index", ann) == (200, {"conversations": [{"key": "main", "title": "Rust"}]})
    _, transcript = call_view(views, "transcript", ann, "main")
    assert [(message["position"], message["role"]) for message in transcript["messages"]] == [
        (2, "user"),
        (3, "assistant"),
    ]
    assert transcript["before"] == 1
    assert call_view(views, "transcript", ann, "main", before=3)[1]["messages"] == transcript["messages"][:1]


def test_another_answer_once(views: dict[str, Any], ann: User) -> None:
    talk(ann)
    transcript = call_view(views, "transcript", ann, "main")[1]
    shown = {"question": transcript["messages"][0]["id"], "revision": transcript["revision"]}

    assert call_view(views, "regenerate", ann, "main", **shown)[0] == 200
    assert call_view(views, "regenerate", ann, "main", **shown)[0] == 412
    assert call_view(views, "regenerate", ann, "another", **shown)[0] == 404

    history = memories["default"].session("main", owner=ann).history()
    assert [stored.message.text for stored in history] == ["Be kind.", "What is Rust?", "I saw 3 messages."]
    assert models.Session.objects.count() == 1


def test_two_ways_and_a_message_taken_back(views: dict[str, Any], ann: User) -> None:
    talk(ann)
    assert call_view(views, "branch", ann, "main", position=2, name="other") == (200, {"key": "other"})
    assert call_view(views, "branch", ann, "main", position=2, name="other")[0] == 409
    assert call_view(views, "branch", ann, "main", position=9, name="third")[0] == 404
    assert call_view(views, "branch", ann, "main", position=2, name="")[0] == 400

    assert call_view(views, "redact", ann, "main", position=2)[0] == 200

    for key in ("main", "other"):
        assert "What is Rust?" not in memories["default"].session(key, owner=ann).load().to_text()


def test_an_operator_can_try_a_session_during_a_pause(ann: User, convmemory: ScriptedMemories) -> None:
    [code] = blocks("reliability")
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # noqa: S102
    chat = memories["default"].session("main", owner=ann)
    while not chat.append(ChatMessage.human("word " * 50)).due:
        pass
    pause_alias(memories["default"].store, Reason.MISCONFIGURED, "The key is refused.")
    convmemory.reply("by the model")

    assert chat.compact() == "stalled"
    assert namespace["try_now"](models.Session.objects.get().pk) == "published"

    assert chat.load().summary == "by the model"
    assert not memories["default"].paused
