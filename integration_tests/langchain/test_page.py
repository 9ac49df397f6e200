"""The function of docs/guides/langchain.md does what the page says."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from django_convmemory.memory import memories
from tests.guides.test_pages import module_of


@pytest.mark.django_db
def test_the_function_answers_and_remembers() -> None:
    reply = module_of("langchain", "chains.py")["reply"]
    ann = User.objects.create_user("ann")
    chat_model = GenericFakeChatModel(messages=iter([AIMessage("At nine."), AIMessage("Yes.")]))

    assert reply(chat_model, ann, "When?") == "At nine."
    assert reply(chat_model, ann, "Sure?") == "Yes."
    history = memories["default"].session("main", owner=ann).history()
    assert [stored.message.text for stored in history] == ["When?", "At nine.", "Sure?", "Yes."]
