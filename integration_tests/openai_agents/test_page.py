"""docs/guides/openai-agents.md, and what docs/guides/moving.md says about the SDK's files."""

from __future__ import annotations

import json
import pathlib
from typing import Any, cast

import pytest
from agents import OpenAIResponsesModel, SQLiteSession
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User

from django_convmemory.contrib.openai_agents import ConvMemorySession
from django_convmemory.memory import memories
from integration_tests import pages
from integration_tests.openai_agents.model import called, inputs, response, said, talking, thought
from tests.guides.test_pages import module_of
from tests.openai_server import OpenAIServer
from tests.response_items import returned

pytestmark = pytest.mark.django_db


def test_the_view_answers_and_remembers(server: OpenAIServer) -> None:
    namespace = module_of("openai-agents", "agent_views.py")
    ann = User.objects.create_user("ann")
    server.queue(response(said("At nine.")), response(said("An hour.", 2)))

    async def talk(model: OpenAIResponsesModel) -> None:
        namespace["guide"].model = model
        answers = [
            await pages.ask(namespace["ask"], text, ann)
            for text in ("When does the ferry leave?", "How long does it take?")
        ]
        assert [json.loads(answer.content) for answer in answers] == [{"text": "At nine."}, {"text": "An hour."}]
        assert (await pages.ask(namespace["ask"], "When?", AnonymousUser())).status_code == 403

    talking(server, talk)

    assert [item["role"] for item in inputs(server)[1]] == ["user", "assistant", "user"]
    history = memories["default"].session("main", owner=ann).history()
    assert [stored.message.text for stored in history] == [
        *("When does the ferry leave?", "At nine.", "How long does it take?", "An hour.")
    ]


def test_a_client_for_each_run_works_in_several_event_loops(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    reply = async_to_sync(module_of("openai-agents", "reply.py")["reply"])
    ann = User.objects.create_user("ann")
    server.queue(response(said("At nine.")), response(said("An hour.", 2)), response(said("Yes.", 3)))

    # Each call has an event loop of its own, as each request under WSGI.
    answers = [reply(ann, text) for text in ("When does it leave?", "How long does it take?", "Sure?")]

    assert answers == ["At nine.", "An hour.", "Yes."]
    assert len(inputs(server)[2]) == 5


ITEMS = [{"role": "user", "content": "Köln?"}, thought("hm"), called("a", "f"), returned("a", "1"), said("One.")]


def store_with_the_sdk(session_id: str, path: pathlib.Path) -> None:
    theirs = SQLiteSession(session_id, path)
    async_to_sync(theirs.add_items)(cast("Any", ITEMS))
    theirs.close()


def test_a_file_of_the_sdk_is_moved(tmp_path: pathlib.Path) -> None:
    store_with_the_sdk("main", tmp_path / "chats.db")
    script = module_of("moving", "move_sqlite.py")

    script["move"](tmp_path / "chats.db", script["AGENTS_SDK"])

    assert async_to_sync(ConvMemorySession("main").get_items)() == ITEMS
