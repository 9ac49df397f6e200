"""``append`` and ``load`` with the ORM store: what they accept and refuse, and how they behave in transactions."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.dispatch import Signal
from django.test.utils import CaptureQueriesContext

from django_convmemory import exceptions, models, signals
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import (
    ConversationBufferMemory,
    ConversationSummaryBufferMemory,
    memories,
)
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.values import Receipt
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests import event_loops
from tests.folding import build
from tests.long_sessions import fill
from tests.settings import LOOKUPS
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.vendors, pytest.mark.django_db]


def memory(limit: int = 200, **options: Any) -> ConversationSummaryBufferMemory:
    return build(ScriptedChatModel([]), limit, **options)


@pytest.fixture
def chat() -> ConversationSummaryBufferMemory:
    return memory()


def test_a_memory_without_a_bound_shows_large_pinned_messages() -> None:
    chat = ConversationBufferMemory(ORMStore())
    chat.append("s", *[ChatMessage.system(f"{number} " + "word " * 4000) for number in range(3)])
    assert len(chat.load("s")) == 3


def test_an_unknown_session_gives_an_empty_context() -> None:
    with CaptureQueriesContext(connection) as captured:
        context = memory().load("nobody")
    assert (context, len(captured), context.omitted) == ([], 1 + LOOKUPS, 0)
    assert not models.Session.objects.exists()
    assert [part.name for part in memory().load("nobody", system="Be kind.").parts] == ["system"]


# Input that is refused, before anything is written.


@pytest.mark.parametrize(
    ("wrong", "repair"),
    [
        ([], "at least one message"),
        ([{"role": "tool", "content": "x", "tool_call_id": "c"}], "after the assistant message that made the call"),
        ([ChatMessage.human("fine"), {"content": "no role"}], "Add 'role'"),
        ([ChatMessage.system(str(number)) for number in range(65)], "load(system="),
        (["just a text"], "Pass a ChatMessage"),
    ],
)
def test_bad_messages_are_refused_and_nothing_is_written(wrong: list[Any], repair: str) -> None:
    chat = memory()
    with pytest.raises(exceptions.InvalidMessage) as caught:
        chat.append("s", *wrong)
    assert repair in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert not models.Session.objects.exists()


def test_a_65th_pinned_message_is_refused(chat: ConversationSummaryBufferMemory) -> None:
    chat.append("s", *[ChatMessage.system(str(number)) for number in range(64)])
    with pytest.raises(exceptions.TooManyPinned):
        chat.append("s", ChatMessage.human("kept out as well"), ChatMessage(role="developer", content="65"))
    assert models.Message.objects.count() == 64


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def test_a_late_tool_result_is_refused_with_the_message_that_closed_its_exchange() -> None:
    chat = memory()
    chat.append("s", ChatMessage.human("look"), ChatMessage.ai(tool_calls=[CALL]), ChatMessage.ai("never mind"))
    with pytest.raises(exceptions.ToolResultRefused, match="assistant message at position 3 closed its exchange"):
        chat.append("s", ChatMessage.tool("found", "c1"))
    assert chat.append("s", ChatMessage.human("go on")).first_position == 4


# Sessions.


@pytest.mark.parametrize(
    ("give", "repair"),
    [
        (lambda chat: chat.session(""), "1 to 255"),
        (lambda chat: chat.session("a\0b"), "NUL"),
        (lambda chat: chat.session("k", visitor="v" * 65), "1 to 64"),
        (lambda chat: chat.append(5, ChatMessage.human("x")), "key, a handle or a Session row"),
        (lambda chat: chat.load(models.Session(alias="other", key="k")), "memories['other']"),
    ],
)
def test_what_names_no_session_is_refused(give: Callable[[Any], Any], repair: str) -> None:
    with pytest.raises(exceptions.InvalidSession) as caught:
        give(memory())
    assert repair in str(caught.value)


# Idempotency.


@pytest.mark.parametrize(
    "message", [ChatMessage.tool("found", "c1"), ChatMessage.system("the last that fits")], ids=["result", "pin"]
)
def test_a_retry_of_a_message_that_the_session_cannot_take_any_more_is_answered_with_what_was_stored(
    message: ChatMessage, chat: ConversationSummaryBufferMemory
) -> None:
    chat.append("s", *[ChatMessage.system("one more")] * 63, ChatMessage.ai(tool_calls=[CALL]))
    first = chat.append("s", message, idempotency_key="k")
    assert chat.append("s", message, idempotency_key="k") == first._replace(replayed=True)
    assert models.Message.objects.count() == first.last_position


@pytest.mark.django_db(transaction=True)
def test_concurrent_appends_leave_no_gap_and_no_duplicate() -> None:
    chat = memory(limit=100)

    def write() -> None:
        for number in range(15):
            chat.append("hot", ChatMessage.human(f"message {number}"), ChatMessage.ai("ok"))

    for thread in [InThread(write) for _ in range(6)]:
        thread.result()
    rows = list(models.Message.objects.order_by("position").values_list("position", "tokens", "tokens_through"))
    assert [position for position, _, _ in rows] == list(range(1, 181))
    assert all(later[2] - earlier[2] == later[1] for earlier, later in itertools.pairwise(rows))
    assert models.Session.objects.get().unpinned_tokens == rows[-1][2]


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("key", [None, "k"])
def test_an_append_that_the_database_gave_up_for_another_is_tried_again(level: str, key: str | None) -> None:
    chat = memory()
    numbers = itertools.count()

    def write() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET default_transaction_isolation = '{level}'")
        for _ in range(15):
            chat.append("hot", ChatMessage.human("again"), idempotency_key=key and f"{key}-{next(numbers)}")

    for thread in [InThread(write) for _ in range(3)]:
        thread.result()
    assert list(models.Message.objects.order_by("position").values_list("position", flat=True)) == list(range(1, 46))


# Transactions.


@pytest.mark.django_db(transaction=True)
def test_where_autocommit_is_off_the_transaction_is_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    chat = memory(limit=10, scheduler=Refusing())
    transaction.set_autocommit(False)
    try:
        chat.append("s", ChatMessage.human("kept"), idempotency_key="k")
        transaction.commit()
        assert chat.append("s", ChatMessage.human("not kept " * 20), ChatMessage.human("nor this")).due
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert [stored.message.text for stored in chat.history("s")] == ["kept"]
    assert "autocommit is off" in caplog.text


class Refusing(NullScheduler):
    queues = True

    def schedule(self, memory: Any, session_id: int, *, delay: float = 0.0) -> None:
        raise AssertionError("not before the commit")


class Recorder:
    after_commit = True
    queues = True

    def __init__(self) -> None:
        self.scheduled: list[int] = []

    def schedule(self, memory: Any, session_id: int, *, delay: float = 0.0) -> None:
        self.scheduled.append(session_id)


@pytest.mark.django_db(transaction=True)
def test_only_the_append_that_turns_a_session_due_schedules_and_after_commit() -> None:
    recorder = Recorder()
    chat = memory(limit=20, scheduler=recorder)
    with transaction.atomic():
        for number in range(20):
            chat.append("s", ChatMessage.human(f"a message with the number {number}"))
        assert recorder.scheduled == []
    assert len(recorder.scheduled) == 1
    chat.append("s", ChatMessage.human("one more"))
    assert len(recorder.scheduled) == 1
    with transaction.atomic():
        chat.append("t", *[ChatMessage.human("a longer message, again and again")] * 9)
        transaction.set_rollback(True)
    assert len(recorder.scheduled) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("store_class", [InMemoryStore, ORMStore])
def test_messages_appended_is_sent_after_the_commit_and_once_for_an_append_that_is_replayed(store_class: Any) -> None:
    received: list[tuple[Any, Receipt]] = []

    def receive(sender: Any, receipt: Receipt, **arguments: Any) -> None:
        received.append((sender, receipt))

    signal: Signal = signals.messages_appended
    memory = ConversationBufferMemory(store_class())
    signal.connect(receive)
    try:
        with transaction.atomic():
            first = memory.append("s", ChatMessage.human("hello"), idempotency_key="k")
            assert received == [] or store_class is InMemoryStore
        replayed = memory.append("s", ChatMessage.human("hello"), idempotency_key="k")
    finally:
        signal.disconnect(receive)
    assert replayed == first._replace(replayed=True)
    assert received == [(ConversationBufferMemory, first)]


@pytest.mark.django_db(transaction=True)
def test_load_looks_again_when_messages_were_removed_between_its_statements() -> None:
    chat = memory()
    chat.append("s", ChatMessage.system("Speak English."), ChatMessage.human("before"))
    cleared: list[bool] = []

    def clear_in_between(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "LEFT JOIN convmemory_message" in sql and not cleared:
            cleared.append(True)
            chat.clear("s")
            chat.append("s", ChatMessage.system("Speak French."), ChatMessage.human("after"))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(clear_in_between):
        assert [message.text for message in chat.load("s")] == ["Speak French.", "after"]
    assert cleared


def test_a_session_that_lost_its_pinned_rows_is_loaded_all_the_same(chat: ConversationSummaryBufferMemory) -> None:
    """Somebody deleted the rows by hand. convmemory_check reports that, and load() does not loop for ever."""
    chat.append("s", ChatMessage.system("Speak English."), ChatMessage.human("hello"))
    models.Message.objects.filter(role="system").delete()
    assert [message.text for message in chat.load("s")] == ["hello"]


# Everything else that append takes.


def test_a_message_comes_back_as_it_was() -> None:
    chat = ConversationBufferMemory(ORMStore())
    messages = [
        ChatMessage.human(
            [{"type": "text", "text": "看 👀"}, {"type": "image_url", "image_url": {"url": "https://x"}}]
        ),
        ChatMessage.ai(
            tool_calls=[{**CALL, "index": 0}],
            kind="plan",
            metadata={"score": 1e300, "n": 0.1, "z": 1, "a": [None, True]},
        ),
        ChatMessage.from_openai(
            {"role": "tool", "content": "", "tool_call_id": "c1", "name": "look", "x": {"b": 1, "a": 2}}
        ),
        ChatMessage.from_openai({"role": "assistant", "content": None, "refusal": "no", "audio": None}),
    ]
    chat.append("s", *messages)
    assert list(chat.load("s")) == messages
    assert chat.load("s").to_openai() == [message.to_openai() for message in messages]
    assert list(chat.load("s")[1].metadata) == ["score", "n", "z", "a"]


def test_a_summary_comes_back_as_it_was() -> None:
    """It comes from the database as JSON, which each database writes in its own way."""
    hard = (
        "".join(map(chr, range(1, 300)))
        + '"\\" \\u0041 \\ud83d \u2028\u2029\ufeff\ufffe\U0001f469\u200d\U0010ffff {"a": [1]} %s %% null'
    )
    chat = memory()
    fill(chat, "s", 20)
    for text in (hard, "null", "17", '{"a": 1}', "[1, 2]", "true", "1e400", hard * 1000):
        models.Summary.objects.update(text=text)
        assert chat.load("s").summary == text


def test_a_batch_larger_than_one_insert_is_stored_whole() -> None:
    chat = ConversationBufferMemory(ORMStore())
    chat.append("s", ChatMessage.human("before"))
    receipt = chat.append("s", *[ChatMessage.human(str(number)) for number in range(2500)])
    assert (receipt.first_position, receipt.last_position) == (2, 2501)
    assert [message.text for message in chat.load("s")][-1] == "2499"
    assert models.Message.objects.count() == 2501


@pytest.mark.django_db(transaction=True)
def test_the_asynchronous_twins_do_the_same() -> None:
    async def chat_for_a_while() -> Any:
        chat = memories["default"].session("async")
        await chat.aappend({"role": "user", "content": "hello"}, idempotency_key="k")
        receipt = await chat.aappend({"role": "user", "content": "hello"}, idempotency_key="k")
        context = await chat.aload(system="Be kind.")
        assert await chat.aappend_and_load(
            {"role": "user", "content": "hello"}, idempotency_key="k", system="Be kind."
        ) == (receipt, context)
        outcome = await chat.acompact()
        await chat.aclear()
        return receipt, [message.text for message in context], outcome, len(await chat.aload())

    receipt, texts, outcome, left = event_loops.run(chat_for_a_while())
    assert receipt.replayed
    assert (texts, outcome, left) == (["Be kind.", "hello"], "not_due", 0)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("begun", "stored"), [(True, 1), (False, 0)])
def test_a_cancelled_twin_runs_to_its_end_if_it_has_begun(
    begun: bool, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        running.set()
        assert may_go_on.wait(10)

    append = ORMStore.append

    def waiting_append(*args: Any, **kwargs: Any) -> Any:
        wait()
        return append(*args, **kwargs)

    async def cancelled() -> tuple[int, bool]:
        chat, message = memories["default"].session("async"), {"role": "user", "content": "hello"}
        try:
            if begun:
                monkeypatch.setattr(ORMStore, "append", waiting_append)
            else:
                before = asyncio.create_task(sync_to_async(wait)())
                await asyncio.sleep(0)
            twin = asyncio.create_task(chat.aappend(message, idempotency_key="k"))
            await asyncio.to_thread(running.wait, 10)
            twin.cancel()
            with pytest.raises(asyncio.CancelledError):
                await twin
            may_go_on.set()
            if not begun:
                await before
            count = len(await chat.ahistory())
            receipt = await chat.aappend(message, idempotency_key="k")
            return count, receipt.replayed
        finally:
            may_go_on.set()

    assert event_loops.run(cancelled()) == (stored, begun)
    assert models.Message.objects.count() == 1


def test_append_and_load_is_an_append_and_a_load(chat: ConversationSummaryBufferMemory) -> None:
    chat.append("s", ChatMessage.human("the boat is red"), ChatMessage.ai("I see."))
    question, usage = ChatMessage.ai("Which boat?"), {"total_tokens": 3}
    for replayed in (False, True):
        receipt, context = chat.append_and_load(
            "s", question, idempotency_key="k", usage=usage, system="Be kind.", max_tokens=40
        )
        assert (receipt.last_position, receipt.replayed) == (3, replayed)
        assert context == chat.load("s", system="Be kind.", max_tokens=40)
        assert (context[0].text, context[-1].text) == ("Be kind.", "Which boat?")
    assert models.Message.objects.get(position=3).usage == usage
    _, quoting = chat.append_and_load("s", ChatMessage.human("What colour?"), max_tokens=10_000, recall="boat")
    assert quoting == chat.load("s", max_tokens=10_000, recall="boat")


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": -1}, {"recall": 3}, {"system": {"role": "user", "content": "hi"}}, {"system": "\x00"}]
)
def test_append_and_load_finds_wrong_arguments_before_it_stores_anything(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"max_tokens|query|system|NUL"):
        memory().append_and_load("s", ChatMessage.human("hello"), **wrong)
    assert not models.Session.objects.exists()


@pytest.fixture(autouse=True)
def _no_thread_keeps_a_connection() -> Iterator[None]:
    yield
    if not connection.in_atomic_block:
        connection.close()
