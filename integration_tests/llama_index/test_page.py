"""The view of docs/guides/llama-index.md does what the page says."""

from __future__ import annotations

import json

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpResponse
from llama_index.core import Settings

from django_convmemory.memory import memories
from integration_tests import pages
from integration_tests.agent_scripts import Step
from integration_tests.llama_index.model import ScriptedLLM
from tests.guides.test_pages import module_of


@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecationWarning")
def test_the_view_answers_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = module_of("llama-index", "workflow_views.py")
    ann = User.objects.create_user("ann")
    llm = ScriptedLLM()
    monkeypatch.setattr(Settings, "_llm", llm)  # To read Settings.llm would make the default model.

    def ask(text: str, user: User | AnonymousUser) -> HttpResponse:
        return async_to_sync(pages.ask)(namespace["ask"], text, user)

    for question, answer in (("When?", "At nine."), ("Sure?", "Yes.")):
        llm.script([Step("", answer, [])])
        assert json.loads(ask(question, ann).content) == {"text": answer}
    assert ask("When?", AnonymousUser()).status_code == 403
    assert [message.role for message in llm.sent[1]] == ["system", "user", "assistant", "user"]
    history = memories["default"].session("main", owner=ann).history()
    assert [stored.message.text for stored in history] == ["When?", "At nine.", "Sure?", "Yes."]
