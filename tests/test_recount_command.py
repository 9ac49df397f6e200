"""``manage.py convmemory_check --recount`` counts stored messages with the counter of the current settings."""

from __future__ import annotations

import datetime as dt
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.conversations import call

pytestmark = pytest.mark.django_db

ESTIMATE = {"BACKEND": "django_convmemory.tokens.SummaryBufferEstimate"}


NOTHING = "Checked 1 session. Nothing is wrong.\n"


def recount(*arguments: str) -> str:
    output = StringIO()
    call_command("convmemory_check", "--recount", *arguments, stdout=output)
    return output.getvalue()


def talk(convmemory: ScriptedMemories, key: str) -> None:
    memory = memories["default"]
    memory.append(key, ChatMessage.system("Be kind."))
    for number in range(12):
        memory.append(key, ChatMessage.human(f"第{number}个问题。" * 10), ChatMessage.ai("An answer. " * 8))
    memory.append(key, ChatMessage.ai(tool_calls=[call("c")]), ChatMessage.tool("done", "c"))
    convmemory.reply("Questions were asked, 一个 after the other, and answered: 问题。")
    assert convmemory.run() == ["published"]


def test_every_count_equals_that_of_the_new_counter(settings: Any, convmemory: ScriptedMemories) -> None:
    talk(convmemory, "s")
    talk(convmemory, "redacted")
    memories["default"].redact("redacted", 3)
    before = models.Session.objects.get(key="redacted").convmemory_messages.get(position=3).tokens
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "TOKEN_COUNTER": ESTIMATE}}
    counter = memories["default"].counter

    assert recount() == "Checked 2 sessions. 2 sessions recounted. Nothing is wrong.\n"

    assert list(integrity.check(models.Session.objects.all())) == []
    session = models.Session.objects.get(key="s")
    assert session.counter == counter.name
    stored = memories["default"].history("s", limit=100)
    assert [row.tokens for row in stored] == [counter.count(row.message) for row in stored]
    assert session.unpinned_tokens == sum(row.tokens for row in stored[1:])
    parts = memories["default"].load("s").parts
    assert parts[1].tokens == counter.count(parts[1].message)
    assert models.Session.objects.get(key="redacted").convmemory_messages.get(position=3).tokens == before
    assert memories["default"].append("s", ChatMessage.human("Go on.")).first_position == len(stored) + 1
    assert list(integrity.check(models.Session.objects.all())) == []


def test_a_recount_is_no_use_of_a_session() -> None:
    for key in ("old", "new"):
        memories["default"].append(key, ChatMessage.human("Hello."))
    models.Session.objects.filter(key="old").update(updated_at=dt.datetime(2024, 5, 1, tzinfo=dt.UTC))
    before = list(models.Session.objects.order_by("-updated_at").values_list("key", "updated_at"))
    models.Session.objects.update(counter="another")

    assert "2 sessions recounted." in recount()

    assert list(models.Session.objects.order_by("-updated_at").values_list("key", "updated_at")) == before
    output = StringIO()
    call_command("convmemory_prune", "--inactive-for", "30d", stdout=output)
    assert output.getvalue() == "1 session with 1 message deleted.\n"


def test_a_session_that_two_counters_counted_is_recounted_too(settings: Any) -> None:
    memories["default"].append("s", ChatMessage.human("One."))
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "TOKEN_COUNTER": ESTIMATE}}
    for text in ("Two.", "Three."):
        memories["default"].append("s", ChatMessage.human(text))
        assert models.Session.objects.get(key="s").counter == ""

    assert "1 session recounted." in recount()

    name = memories["default"].counter.name
    assert models.Session.objects.get(key="s").counter == name
    memories["default"].append("s", ChatMessage.human("Four."))
    assert models.Session.objects.get(key="s").counter == name
    revision = models.Session.objects.get().revision
    assert recount() == NOTHING
    assert models.Session.objects.get().revision == revision


def test_a_cleared_session_has_the_counter_of_its_next_message(settings: Any) -> None:
    memories["default"].append("s", ChatMessage.human("One."))
    memories["default"].clear("s")
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "TOKEN_COUNTER": ESTIMATE}}
    memories["default"].append("s", ChatMessage.human("Two."))
    assert models.Session.objects.get(key="s").counter == memories["default"].counter.name


def test_the_new_count_decides_whether_a_session_is_due(settings: Any) -> None:
    memory = memories["default"]
    while not memory.append("s", ChatMessage.human("第个问题" * 4)).due:
        pass
    for limit in (10_000, 50):
        assert (models.Session.objects.get().due_since is None) == (limit == 50)
        models.Session.objects.update(counter="another")
        settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": {"max_token_limit": limit}}}
        recount()
    assert models.Session.objects.get().due_since is not None
