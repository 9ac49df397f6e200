"""The context, the summaries and compaction over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.admin.page import SessionPage
from django_convmemory.maintenance import explain
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.testing import ScriptedMemories
from tests.api.conftest import row_of, url_of
from tests.api.test_hard_input import assert_problem
from tests.chunks import Killed


@pytest.fixture
def folded(anna: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A conversation whose older messages are folded into versions 1 and 2 of the summary."""
    convmemory.reply("the first words", "the second words")
    session = memories["default"].session("long", owner=anna)
    session.append(ChatMessage.system("Be kind."))
    for number in range(2):
        session.append(*[ChatMessage.human(f"{number} {index} " + "word " * 20) for index in range(12)])
        convmemory.run()
    assert row_of(session).current_version == 2
    return session


def test_the_context_is_what_load_returns(api: APIClient, folded: SessionHandle) -> None:
    context = folded.load()
    body = api.get(url_of(folded, "context/")).json()
    assert [part["message"] for part in body["messages"]] == context.to_openai()
    assert [part["part"] for part in body["messages"][:2]] == ["pinned", "summary"]
    assert sum(part["tokens"] for part in body["messages"]) == body["tokens"] == context.tokens
    assert (body["summary"], body["covered_position"]) == ("the second words", row_of(folded).covered_position)
    assert (body["omitted"], body["over_budget"], body["pending"]) == (0, False, False)
    assert api.get(url_of(folded, "context/?format=openai")).json()["messages"] == context.to_openai()
    assert api.get(url_of(folded, "context/?format=text")).json()["text"] == context.to_text()


def test_max_tokens_limits_the_context(api: APIClient, folded: SessionHandle) -> None:
    body = api.get(url_of(folded, "context/?max_tokens=60")).json()
    assert body["tokens"] == folded.load(max_tokens=60).tokens < folded.load().tokens


def test_max_tokens_cannot_exceed_the_budget_of_the_memory(api: APIClient, chat: SessionHandle) -> None:
    chat.append(*[ChatMessage.human("word " * 50) for _ in range(60)])
    by_itself = api.get(url_of(chat, "context/")).json()["tokens"]
    assert api.get(url_of(chat, "context/?max_tokens=9007199254740991")).json()["tokens"] <= by_itself


def test_a_context_quotes_what_matches(api: APIClient, folded: SessionHandle) -> None:
    folded.append(ChatMessage.human("Which one was 0 3?"))
    for recall, asked in (("0 3", "0 3"), ("1", True)):
        context = folded.load(recall=asked)
        body = api.get(url_of(folded, "context/"), {"recall": recall}).json()
        assert [part["part"] for part in body["messages"]][-2:] == ["recalled", "tail"]
        assert body["messages"][-2]["message"] == context.to_openai()[-2]
        assert body["tokens"] == context.tokens
        quoted = [("".join(piece["text"] for piece in hit["excerpt"]), hit["position"]) for hit in body["recalled"]]
        assert quoted == [(hit.excerpt, hit.position) for hit in context.recalled]
        assert quoted
    assert api.get(url_of(folded, "context/")).json()["recalled"] == []


def test_the_option_decides_whether_a_context_quotes(api: APIClient, folded: SessionHandle, settings: Any) -> None:
    folded.append(ChatMessage.human("Which one was 0 3?"))
    alias = settings.CONVMEMORY["default"]
    settings.CONVMEMORY = {"default": alias | {"OPTIONS": alias["OPTIONS"] | {"recall": True}}}
    assert api.get(url_of(folded, "context/")).json()["recalled"]
    assert api.get(url_of(folded, "context/?recall=0")).json()["recalled"] == []


@pytest.mark.parametrize("query", ["recall=", "recall=%00", "recall=1&recall=0"])
def test_what_cannot_be_recalled_is_refused(api: APIClient, chat: SessionHandle, query: str) -> None:
    assert_problem(api.get(url_of(chat, f"context/?{query}")), 400, "invalid")


def test_the_versions_of_the_summary_are_listed(api: APIClient, folded: SessionHandle) -> None:
    listed = api.get(url_of(folded, "summaries/")).json()["results"]
    assert [summary["version"] for summary in listed] == [2, 1]
    assert [summary["text"] for summary in listed] == ["the second words", "the first words"]
    assert listed[0]["parent_version"] == 1
    assert listed[0]["first_position"] == listed[1]["last_position"] + 1
    assert api.get(url_of(folded, "summaries/1/")).json() == listed[1]
    folded.truncate(3)
    assert [summary["valid"] for summary in api.get(url_of(folded, "summaries/")).json()["results"]] == [False, False]
    for version in ("3", "x", "9" * 40):
        assert api.get(url_of(folded, f"summaries/{version}/")).json()["code"] == "unknown_version"


def test_the_status_shows_what_compaction_has_to_do(
    api: APIClient, chat: SessionHandle, convmemory: ScriptedMemories
) -> None:
    chat.append(*[ChatMessage.human("word " * 50) for _ in range(8)])
    before = api.get(url_of(chat, "status/")).json()
    assert (before["state"], before["attempts"], before["current_version"]) == ("due", 0, 0)
    assert before["due_since"] is not None
    counters = row_of(chat).counters
    assert before["lag"] == {"messages": 10, "tokens": counters.unpinned_tokens}
    convmemory.reply("many words")
    convmemory.run()
    after = api.get(url_of(chat, "status/")).json()
    assert (after["state"], after["due_since"], after["current_version"]) == ("idle", None, 1)
    assert after["lag"]["messages"] < 10


def test_the_status_names_the_models_error_without_its_message(
    api: APIClient, chat: SessionHandle, convmemory: ScriptedMemories
) -> None:
    from django_convmemory.exceptions import ModelUnavailable

    chat.append(*[ChatMessage.human("word " * 50) for _ in range(8)])
    convmemory.reply(ModelUnavailable("organization org-secret is over its limit"))
    convmemory.run()
    response = api.get(url_of(chat, "status/"))
    assert (response.json()["state"], response.json()["last_error"]) == ("failing", "ModelUnavailable")
    assert "secret" not in response.content.decode()
    assert response.json()["next_attempt_at"] is not None


def test_a_worker_folds_after_a_request_to_compact(
    api: APIClient, chat: SessionHandle, convmemory: ScriptedMemories
) -> None:
    chat.append(*[ChatMessage.human("word " * 50) for _ in range(8)])
    convmemory._queue.clear()
    convmemory.reply("many words")
    asked = api.post(url_of(chat, "compact/"), {})
    assert asked.status_code == 202
    assert api.get(asked["Location"]).json()["state"] == "due"
    assert convmemory.run() == ["published"]
    assert api.get(asked.json()["status"]).json()["state"] == "idle"


def test_a_worker_rebuilds_the_summary_after_a_request(
    api: APIClient, folded: SessionHandle, convmemory: ScriptedMemories
) -> None:
    convmemory.reply("rebuilt words")
    assert api.post(url_of(folded, "rebuild/"), {}).status_code == 202
    assert folded.load().summary == "the second words"
    assert convmemory.run() == ["published"]
    assert folded.load().summary == "rebuilt words"
    explained = explain.explain(memories["default"], row_of(folded), folded.load())
    assert {message.version for message in explained if message.disposition == "folded"} == {3}


def test_a_rebuild_is_refused_if_no_task_can_be_sent(api: APIClient, folded: SessionHandle) -> None:
    from django_convmemory.scheduling import NullScheduler

    memories["default"].scheduler = NullScheduler()
    assert_problem(api.post(url_of(folded, "rebuild/"), {}), 503, "broker_unavailable")
    assert api.post(url_of(folded, "compact/"), {}).status_code == 202


def test_without_summaries_there_is_nothing_to_do(api: APIClient, chat: SessionHandle, settings: Any) -> None:
    assert api.post(url_of(chat, "rebuild/"), {}).json()["code"] == "nothing_to_do"
    settings.CONVMEMORY = {"default": {"MEMORY": "django_convmemory.memory.ConversationBufferMemory"}}
    assert api.post(url_of(chat, "compact/"), {}).json()["code"] == "nothing_to_do"


def test_a_message_that_is_folded_in_part_is_not_folded_yet(settings: Any, anna: User, api: APIClient) -> None:
    options = {"max_token_limit": 100, "max_chunk_tokens": 500}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    memory = memories["default"]
    chat = memory.session("main", owner=anna)
    story = "".join(f"Order {4000 + number} was sent to customer {number}. " for number in range(200))
    chat.append(ChatMessage.human(story), ChatMessage.ai("Noted. " * 30), ChatMessage.human("Thanks."))
    killed = Killed(memory, 2, chat)
    assert models.Summary.objects.filter(building=True, part_end__isnull=False).count() == 2

    context = api.get(url_of(chat, "context/")).json()
    assert (context["summary"], context["covered_position"]) == (None, 0)
    versions = api.get(url_of(chat, "summaries/")).json()["results"]
    assert [version["building"] for version in versions] == [True, True]
    page = SessionPage(row_of(chat))
    assert (page.session.current_version, page.context.summary) == (0, None)
    assert page.chart
    assert all(sent in (history, page.budget) for _, history, sent in page.chart.rows)
    assert "folded" not in {bubble.explained.disposition for bubble in page.timeline}
    killed.steps.close()

    # After the last part, the version of the whole message is current.
    assert chat.compact() == "published"
    page = SessionPage(row_of(chat))
    current = models.Summary.objects.get(version=page.session.current_version)
    assert current.part_end is None
    assert api.get(url_of(chat, "context/")).json()["summary"] == current.text
