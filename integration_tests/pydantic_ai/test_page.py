"""The view of docs/guides/pydantic-ai.md does what the page says."""

from __future__ import annotations

import json

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpResponse
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from django_convmemory.memory import memories
from integration_tests import pages
from tests.guides.test_pages import module_of


@pytest.mark.django_db
def test_the_view_answers_and_remembers() -> None:
    namespace = module_of("pydantic-ai", "guide_views.py")
    ann = User.objects.create_user("ann")
    sent = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        sent.append([part.part_kind for message in messages for part in message.parts])
        return ModelResponse([TextPart(f"Answer {len(sent)}.")])

    namespace["MODEL"] = FunctionModel(reply)

    def ask(text: str, user: User | AnonymousUser) -> HttpResponse:
        return async_to_sync(pages.ask)(namespace["ask"], text, user)

    assert json.loads(ask("When?", ann).content) == {"text": "Answer 1."}
    assert json.loads(ask("Sure?", ann).content) == {"text": "Answer 2."}
    assert ask("When?", AnonymousUser()).status_code == 403
    assert sent == [["user-prompt"], ["user-prompt", "text", "user-prompt"]]
    history = memories["default"].session("main", owner=ann).history()
    assert [stored.message.text for stored in history] == ["When?", "Answer 1.", "Sure?", "Answer 2."]
