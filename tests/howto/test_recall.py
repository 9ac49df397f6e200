"""The code of docs/howto/recall.md finds what was said, and shows it to the model."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from django_convmemory.memory import SessionHandle, memories
from tests.howto.test_pages import PAGES, code_of, module_of
from tests.howto.test_tool_loop import named
from tests.openai_server import Behaviour, OpenAIServer, completion

pytestmark = pytest.mark.django_db
PEANUTS = "My daughter Ines is allergic to peanuts."


@pytest.fixture
def session(settings: Any) -> SessionHandle:
    """Ann's main conversation. The allergy was folded long ago."""
    settings.CONVMEMORY = {
        "default": {
            "OPTIONS": {"max_token_limit": 200},
            "CHAT_MODEL": {
                "BACKEND": "django_convmemory.chat_models.scripted.ScriptedChatModel",
                "OPTIONS": {"replies": ["They talked of many things."] * 20},
            },
            "SCHEDULER": {"BACKEND": "django_convmemory.schedulers.NullScheduler"},
        }
    }
    memory = memories["default"]
    session = memory.session("main", owner=User.objects.create_user("ann"))
    session.append({"role": "user", "content": PEANUTS}, {"role": "assistant", "content": "I will remember it."})
    for number in range(40):
        session.append({"role": "user", "content": f"Tell me about the weather in place number {number}."})
        session.append({"role": "assistant", "content": "It is sunny there, and a little windy in the afternoon."})
    session.compact()
    assert session.load().covered > 2
    return session


def test_the_search_of_the_page_finds_what_was_folded(session: SessionHandle) -> None:
    ann = User.objects.get()
    today = session.history()[0].created_at
    lines = module_of("recall", "finding.py")["find"](ann, "What is Ines allergic to?")
    assert lines[0] == f"1, {today:%d %B}, user: {PEANUTS}"


def test_the_quotes_look_as_the_page_shows_them(session: SessionHandle) -> None:
    session.append({"role": "user", "content": "What is Ines allergic to?"})
    *_, quotes, question = module_of("recall", "recalling.py")["prompt"](session)
    assert question == {"role": "user", "content": "What is Ines allergic to?"}
    shown = quotes["content"].splitlines()
    introduction, fence, first, *_ = shown
    assert introduction in PAGES["recall"]
    assert fence.startswith("<quoted-")
    assert first.endswith(f"[user] {PEANUTS}")
    assert f"[user] {PEANUTS}" in PAGES["recall"]


def test_the_settings_of_the_page_recall_in_every_load(settings: Any) -> None:
    namespace: dict[str, Any] = {}
    exec(code_of("recall", "settings.py"), namespace)  # noqa: S102
    settings.CONVMEMORY = namespace["CONVMEMORY"]
    options = memories["default"].options
    assert (options.recall, options.recall_tokens) == (True, 600)


def test_the_model_looks_up_what_was_folded(session: SessionHandle, model: OpenAIServer) -> None:
    call = named("c", "search_history", '{"query": "allergies of Ines, allergic"}')
    model.queue(Behaviour("raw", body=completion(Behaviour(text=""), {}, content=None, tool_calls=[call])))
    model.default = Behaviour(text="Ines is allergic to peanuts.")

    answer = module_of("recall", "history_tool.py")["reply"](User.objects.get(), "What may Ines not eat?")

    assert answer == "Ines is allergic to peanuts."
    [_, second] = model.log
    assert [tool["function"]["name"] for tool in second.body["tools"]] == ["search_history"]
    result = second.body["messages"][-1]
    assert result["role"] == "tool"
    assert PEANUTS in result["content"]
