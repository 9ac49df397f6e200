"""The context, the summaries and compaction over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from django_convmemory.conversation import SessionHandle
from django_convmemory.maintenance.explain import Disposition
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.api.conftest import row_of, url_of


@pytest.fixture
def folded(anna: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A conversation whose beginning is folded into versions 1 and 2."""
    convmemory.reply("the first summary", "the second summary")
    session = memories["default"].session("long", owner=anna)
    session.append(ChatMessage.system("Be kind."))
    for number in range(2):
        session.append(*[ChatMessage.human(f"{number} {index} " + "word " * 20) for index in range(12)])
        convmemory.run()
    assert row_of(session).current_version == 2
    return session


def test_the_context_is_what_load_returns(api: APIClient, folded: SessionHandle) -> None:
    context = folded.load()
    shown = api.get(url_of(folded, "context/")).json()
    assert [one["message"] for one in shown["messages"]] == context.to_openai()
    assert [one["part"] for one in shown["messages"][:2]] == ["pinned", "summary"]
    assert sum(one["tokens"] for one in shown["messages"]) == shown["tokens"] == context.tokens
    assert (shown["summary"], shown["covered_position"]) == ("the second summary", row_of(folded).covered_position)
    assert (shown["omitted"], shown["over_budget"], shown["pending"]) == (0, False, False)
    assert api.get(url_of(folded, "context/?format=openai")).json()["messages"] == context.to_openai()
    assert api.get(url_of(folded, "context/?format=text")).json()["text"] == context.to_text()


def test_a_budget(api: APIClient, folded: SessionHandle) -> None:
    shown = api.get(url_of(folded, "context/?max_tokens=60")).json()
    expected = folded.load(max_tokens=60)
    assert (shown["tokens"], shown["omitted"], shown["summary"]) == (
        expected.tokens,
        expected.omitted,
        expected.summary,
    )


def test_no_budget_is_larger_than_the_memorys_own(api: APIClient, chat: SessionHandle) -> None:
    chat.append(*[ChatMessage.human("word " * 50) for _ in range(60)])
    by_itself = api.get(url_of(chat, "context/")).json()["tokens"]
    assert api.get(url_of(chat, "context/?max_tokens=9007199254740991")).json()["tokens"] <= by_itself


@pytest.mark.parametrize("query", ["", "&max_tokens=60", "&max_tokens=0"])
def test_what_became_of_each_message(api: APIClient, folded: SessionHandle, query: str) -> None:
    shown = api.get(url_of(folded, f"context/?explain=1&limit=200{query}")).json()
    explained = shown["explanation"]
    assert [one["position"] for one in explained] == list(range(1, 26))
    verbatim = {part["position"]: part["part"] for part in shown["messages"] if part["position"]}
    for one in explained:
        if one["position"] in verbatim:
            assert one["disposition"] == ("pinned" if verbatim[one["position"]] == "pinned" else "verbatim")
        elif one["position"] <= shown["covered_position"]:
            assert one["disposition"] == "folded"
        else:
            assert one["disposition"] == "omitted"
    assert sum(one["disposition"] == Disposition.OMITTED for one in explained) == shown["omitted"]
    ends = {version["version"]: version for version in api.get(url_of(folded, "summaries/")).json()["results"]}
    for one in explained:
        if one["disposition"] == "folded":
            assert ends[one["version"]]["first_position"] <= one["position"] <= ends[one["version"]]["last_position"]
        else:
            assert one["version"] is None


def test_an_explanation_has_pages(api: APIClient, folded: SessionHandle) -> None:
    page = api.get(url_of(folded, "context/?explain=1&limit=5&before=11")).json()["explanation"]
    assert [one["position"] for one in page] == [6, 7, 8, 9, 10]
    assert api.get(url_of(folded, "context/?explain=1&before=1")).json()["explanation"] == []


def test_summaries(api: APIClient, folded: SessionHandle) -> None:
    listed = api.get(url_of(folded, "summaries/")).json()["results"]
    assert [one["version"] for one in listed] == [2, 1]
    assert [one["text"] for one in listed] == ["the second summary", "the first summary"]
    assert listed[0]["parent_version"] == 1
    assert listed[0]["first_position"] == listed[1]["last_position"] + 1
    assert api.get(url_of(folded, "summaries/1/")).json() == listed[1]
    folded.truncate(3)
    assert [one["valid"] for one in api.get(url_of(folded, "summaries/")).json()["results"]] == [False, False]
    for version in ("3", "x", "9" * 40):
        assert api.get(url_of(folded, f"summaries/{version}/")).json()["code"] == "unknown_version"


def test_status(api: APIClient, chat: SessionHandle, convmemory: ScriptedMemories) -> None:
    chat.append(*[ChatMessage.human("word " * 50) for _ in range(8)])
    before = api.get(url_of(chat, "status/")).json()
    assert (before["state"], before["attempts"], before["current_version"]) == ("due", 0, 0)
    assert before["due_since"] is not None
    counters = row_of(chat).counters
    assert before["lag"] == {"messages": 10, "tokens": counters.unpinned_tokens}
    convmemory.reply("a summary")
    convmemory.run()
    after = api.get(url_of(chat, "status/")).json()
    assert (after["state"], after["due_since"], after["current_version"]) == ("idle", None, 1)
    assert after["lag"]["messages"] < 10


def test_the_error_of_a_model_is_named_and_not_quoted(
    api: APIClient, chat: SessionHandle, convmemory: ScriptedMemories
) -> None:
    from django_convmemory.exceptions import ModelUnavailable

    chat.append(*[ChatMessage.human("word " * 50) for _ in range(8)])
    convmemory.reply(ModelUnavailable("organization org-secret is over its limit"))
    convmemory.run()
    shown = api.get(url_of(chat, "status/"))
    assert (shown.json()["state"], shown.json()["last_error"]) == ("failing", "ModelUnavailable")
    assert "secret" not in shown.content.decode()
    assert shown.json()["next_attempt_at"] is not None


def test_compaction_is_asked_for(api: APIClient, chat: SessionHandle, convmemory: ScriptedMemories) -> None:
    chat.append(*[ChatMessage.human("word " * 50) for _ in range(8)])
    convmemory.run.__self__._scheduler._queue.clear()  # type: ignore[attr-defined]
    convmemory.reply("a summary")
    asked = api.post(url_of(chat, "compact/"), {}, format="json")
    assert asked.status_code == 202
    assert api.get(asked["Location"]).json()["state"] == "due"
    assert convmemory.run() == ["published"]
    assert api.get(asked.json()["status"]).json()["state"] == "idle"


def test_a_summary_is_made_anew(api: APIClient, folded: SessionHandle, convmemory: ScriptedMemories) -> None:
    convmemory.reply("made anew")
    assert api.post(url_of(folded, "rebuild/"), {}, format="json").status_code == 202
    assert folded.load().summary == "the second summary"
    assert convmemory.run() == ["published"]
    assert folded.load().summary == "made anew"
    explained = api.get(url_of(folded, "context/?explain=1")).json()["explanation"]
    assert {one["version"] for one in explained if one["disposition"] == "folded"} == {3}


def test_there_is_nothing_to_make_anew(api: APIClient, chat: SessionHandle) -> None:
    assert api.post(url_of(chat, "rebuild/"), {}, format="json").json()["code"] == "nothing_to_do"


def test_nobody_can_be_told(api: APIClient, folded: SessionHandle) -> None:
    from django_convmemory.schedulers import NullScheduler

    memories["default"].scheduler = NullScheduler()
    refused = api.post(url_of(folded, "rebuild/"), {}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (503, "broker_unavailable")
    assert api.post(url_of(folded, "compact/"), {}, format="json").status_code == 202


def test_a_memory_without_summaries(api: APIClient, chat: SessionHandle, settings: Any) -> None:
    settings.CONVMEMORY = {"default": {"MEMORY": "django_convmemory.memory.ConversationBufferMemory"}}
    assert api.post(url_of(chat, "compact/"), {}, format="json").json()["code"] == "nothing_to_do"


def test_what_costs_model_calls_is_limited(api: APIClient, folded: SessionHandle, convmemory: ScriptedMemories) -> None:
    codes = [api.post(url_of(folded, "compact/"), {}, format="json").status_code for _ in range(31)]
    assert codes == [202] * 30 + [429]
    limited = api.post(url_of(folded, "rebuild/"), {}, format="json")
    assert (limited.status_code, limited.json()["code"]) == (429, "throttled")
    assert 0 < int(limited["Retry-After"]) <= 3601
