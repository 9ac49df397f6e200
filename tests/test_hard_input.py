"""Input that is valid but difficult, or that only looks valid."""

from __future__ import annotations

import datetime as dt
import enum
import json
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Group
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils.functional import SimpleLazyObject

from django_convmemory import exceptions, models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import ConversationBufferMemory, ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.store.orm import ORMStore
from tests.conversations import call
from tests.folding import build

pytestmark = pytest.mark.django_db


def memory() -> ConversationSummaryBufferMemory:
    return build(ScriptedChatModel([]), 200)


@pytest.fixture
def chat() -> ConversationSummaryBufferMemory:
    return memory()


@pytest.mark.parametrize("depth", [60, 61, 62, 63])
def test_what_is_nested_as_deep_as_allowed_can_be_loaded(depth: int) -> None:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    chat = memory()
    chat.append("s", {"role": "user", "content": "hello", "extra_field": value})
    assert chat.load("s")[0].to_openai()["extra_field"] == value


@pytest.mark.parametrize("count", [8, 9, 27, 300])
def test_many_parallel_results_are_stored_in_one_append(count: int, chat: ConversationSummaryBufferMemory) -> None:
    chat.append("s", ChatMessage.ai(tool_calls=[call(f"c{number}") for number in range(count)]))
    results = [ChatMessage.tool("done", f"c{number}") for number in range(count)]
    with pytest.raises(exceptions.ToolResultRefused, match="'c300'"):
        chat.append("s", *results, ChatMessage.tool("done", "c300"))
    receipt = chat.append("s", *results, ChatMessage.human("and?"))
    assert (receipt.first_position, receipt.last_position) == (2, count + 2)
    row = models.Session.objects.get()
    assert (row.open_calls, row.newest_position) == ("", count + 2)


def test_a_refusal_is_about_the_result_that_was_refused(chat: ConversationSummaryBufferMemory) -> None:
    chat.append("s", ChatMessage.ai(tool_calls=[call("c0"), call("c1")]))
    with CaptureQueriesContext(connection) as queries, pytest.raises(exceptions.ToolResultRefused, match="'zzz'"):
        chat.append("s", ChatMessage.tool("done", "c0"), *[ChatMessage.tool("done", "zzz")] * 7)
    assert len(queries) < 8


def test_an_owner_is_a_user_who_is_saved() -> None:
    user = get_user_model()
    ann = user.objects.create(username="ann")
    chat = memory()
    chat.session("main", owner=ann).append(ChatMessage.human("ann's secret"))
    for owner in (Group(pk=ann.pk), user(pk=ann.pk), user(username="new"), AnonymousUser(), ann.pk, user):
        with pytest.raises(exceptions.InvalidSession, match="an owner is a user of the site, who is saved"):
            chat.session("main", owner=owner)
        with pytest.raises(exceptions.InvalidSession, match="who is saved"):
            chat.erase(owner=owner)
        with pytest.raises(exceptions.InvalidSession, match="who is saved"):
            chat.adopt("v", owner)
    assert len(chat.session("main", owner=SimpleLazyObject(lambda: ann)).load()) == 1


@pytest.mark.parametrize("scope", [{"visitor": None}, {"owner": None}, {"owner": None, "visitor": None}])
def test_a_scope_that_turns_out_to_be_none_is_not_everybodys(scope: dict[str, None]) -> None:
    with pytest.raises(exceptions.InvalidSession, match="pass neither"):
        memory().session("main", **scope)
    assert memory().session("main", owner=None, visitor="v").session_name.visitor == "v"


class Word(str, enum.Enum):  # noqa: UP042  formats as Word.MAIN
    MAIN = "main"


def test_texts_of_an_enumeration_are_the_texts_that_they_equal(chat: ConversationSummaryBufferMemory) -> None:
    chat.append(Word.MAIN, ChatMessage.human(Word.MAIN, name=Word.MAIN, metadata={Word.MAIN: Word.MAIN}))
    row = models.Message.objects.get()
    assert (row.content, row.wire, row.metadata) == ("main", {"name": "main"}, {"main": "main"})
    assert len(chat.load("main")) == len(chat.load(models.Session.objects.get())) == 1


def test_keys_and_visitors_are_told_apart_whatever_the_collation(chat: ConversationSummaryBufferMemory) -> None:
    names = ["abc123", "ABC123", "abc123 ", "äbc123"]
    for name in names:
        chat.append(name, ChatMessage.human(name))
        chat.session("main", visitor=name).append(ChatMessage.human(name))
    assert [chat.load(name)[0].text for name in names] == names
    mallory = get_user_model().objects.create(username="mallory")
    assert [session.load()[0].text for session in chat.adopt("abc123", mallory)] == ["abc123"]
    assert chat.erase(visitor="ABC123") == 1
    assert models.Session.objects.count() == 7
    assert models.Session.objects.filter(alias="Default").count() == 0


def test_a_large_batch_of_large_messages_is_stored(chat: ConversationSummaryBufferMemory) -> None:
    texts = ["'" * 3_000_000, '"' * 3_000_000, "\\" * 3_000_000, "ü" * 1_500_000]
    chat.append("s", *map(ChatMessage.human, texts))
    assert [message.text for message in chat.load("s", max_tokens=10**9)] == texts


@pytest.mark.parametrize("field", ["name", "metadata", "usage"])
def test_everything_in_a_message_counts_towards_its_size(field: str) -> None:
    chat = ConversationBufferMemory(ORMStore(), max_message_bytes=1000)
    large: dict[str, Any] = {"name": {"name": "n" * 2000}, "metadata": {"metadata": {"a": "b" * 2000}}, "usage": {}}
    with pytest.raises(exceptions.InvalidMessage, match="bytes, and 1000 are allowed"):
        chat.append("s", ChatMessage.ai("hi", **large[field]), usage={"note": "n" * 2000} if field == "usage" else None)


@pytest.mark.parametrize(
    ("character", "size"), [("x", 1), ("é", 2), ("猫", 3), ("🐈", 4)], ids=["1 byte", "2 bytes", "3 bytes", "4 bytes"]
)
def test_the_size_of_a_text_is_that_of_its_bytes(character: str, size: int) -> None:
    chat = ConversationBufferMemory(ORMStore(), max_message_bytes=1200)
    chat.append("s", ChatMessage.human(character * (1200 // size)))
    with pytest.raises(exceptions.InvalidMessage, match=f"has {1200 + size} bytes, and 1200 are allowed"):
        chat.append("s", ChatMessage.human(character * (1200 // size + 1)))
    assert len(chat.history("s")) == 1


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "猫 and 🐈"}]},
        {"role": "user", "name": "Zoë", "content": "猫 and 🐈"},
        {"role": "assistant", "content": None, "tool_calls": [call("a", arguments='{"q": "猫 and 🐈"}')]},
    ],
    ids=["parts", "name", "tool calls"],
)
def test_the_size_of_any_other_message_is_that_of_the_bytes_of_its_json(message: dict[str, Any]) -> None:
    # The stored form: compact JSON with unescaped texts, and the metadata beside the message.
    written = json.dumps([message, {}], ensure_ascii=False, separators=(",", ":"))
    size = len(written.encode())
    assert size > len(written)
    ConversationBufferMemory(ORMStore(), max_message_bytes=size).append("s", message)
    with pytest.raises(exceptions.InvalidMessage, match=f"has {size} bytes, and {size - 1} are allowed"):
        ConversationBufferMemory(ORMStore(), max_message_bytes=size - 1).append("s", message)


def test_a_time_of_another_zone_is_the_same_moment(chat: ConversationSummaryBufferMemory) -> None:
    moment = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    chat.append("s", ChatMessage.human("hello"), created_at=moment)
    assert chat.history("s")[0].created_at == moment
    wrong_times: list[Any] = [dt.datetime(2024, 2, 29), "2024-02-29", 0]  # noqa: DTZ001  without a zone
    for wrong in wrong_times:
        with pytest.raises(exceptions.InvalidMessage, match="a datetime with a time zone"):
            chat.append("s", ChatMessage.human("hello"), created_at=wrong)
    for year in (1, 1000, 9999):
        with pytest.raises(exceptions.InvalidMessage, match=f"in the year {year}"):
            chat.append("s", ChatMessage.human("hello"), created_at=moment.replace(year=year, day=1))
    assert len(chat.history("s")) == 1


def test_each_message_has_a_time_of_its_own(chat: ConversationSummaryBufferMemory) -> None:
    times = [dt.datetime(2024, 2, day, tzinfo=dt.UTC) for day in (1, 2)]
    chat.append("s", *[ChatMessage.human("hello")] * 3, created_at=[*times, None])
    first, second, now = (stored.created_at for stored in chat.history("s"))
    assert [first, second] == times
    assert abs(now - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=5)
    wrong_lists: list[Any] = [[], times, [*times, "2024-02-29"]]
    for wrong in wrong_lists:
        with pytest.raises(exceptions.InvalidMessage, match="created_at"):
            chat.append("s", *[ChatMessage.human("hello")] * 3, created_at=wrong)
    assert len(chat.history("s")) == 3
