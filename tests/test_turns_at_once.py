"""Turns of requests that come at the same moment, and functions that wait where others block."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections

from django_convmemory import exceptions
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations import streams
from django_convmemory.operations.turns import Turn
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.orm import ORMStore
from tests.processes import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendors]
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}


@pytest.fixture
def memory() -> ConversationSummaryBufferMemory:
    return ConversationSummaryBufferMemory(ORMStore(), ScriptedChatModel([]), 200, scheduler=NullScheduler())


def test_an_asynchronous_function_appends_while_a_synchronous_reader_reads_under_asgi(
    memory: ConversationSummaryBufferMemory,
) -> None:
    """As POST turns/ with Accept: application/json does under ASGI."""

    async def ask(turn: Turn) -> AsyncIterator[Any]:
        if not turn.open_calls:
            await turn.aappend(ChatMessage.ai(None, tool_calls=[CALL]))
        for call in turn.open_calls:
            await turn.aappend(call.result("found"))
        yield "It is found."

    def view() -> list[str]:
        return list(memory.session("s").stream_answer("Where?", ask))

    async def request() -> list[str]:
        async with ThreadSensitiveContext():  # Django's ASGIHandler does this for each request.
            try:
                return await sync_to_async(view)()
            finally:
                await sync_to_async(connections.close_all)()

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(request())), daemon=True)
    thread.start()
    thread.join(5)
    assert found == [["It is found."]]


@pytest.mark.parametrize("again", [True, False], ids=["again", "a stored question"])
def test_a_double_click_asks_once(
    again: bool, memory: ConversationSummaryBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request looks for the key just before the first one stores it."""
    which: dict[str, Any] = {}
    if again:
        which["again"] = memory.answer("s", "Hi", lambda turn: "Hello!").question
    else:
        memory.append("s", ChatMessage.human("Hi"))
    asked = []

    def ask(turn: Turn) -> str:
        asked.append(turn)
        return "Good day!"

    looks = ORMStore.keyed_question

    def look(*arguments: Any) -> Any:
        found = looks(*arguments)
        monkeypatch.undo()
        memory.answer("s", ask=ask, key="k", **which)
        return found

    monkeypatch.setattr(ORMStore, "keyed_question", look)
    turn = memory.answer("s", ask=ask, key="k", **which)
    assert (len(asked), turn.replayed, turn.text) == (1, True, "Good day!")


def test_a_stream_that_speaks_keeps_its_turn_whatever_the_timeout() -> None:
    model = ScriptedChatModel([])
    memory = ConversationSummaryBufferMemory(ORMStore(), model, 200, scheduler=NullScheduler(), turn_timeout=1.0)

    def ask(turn: Turn) -> Iterator[str]:
        for _ in range(10):
            time.sleep(0.2)
            yield "word "

    pieces = iter(memory.stream_answer("s", "Hi", ask))
    for _ in range(7):
        next(pieces)
    with pytest.raises(exceptions.TurnInProgress):
        memory.answer("s", "Another", lambda turn: "Yes.", wait=0)
    list(pieces)


def runs_a_tool_and_fails(turn: Turn) -> Any:
    turn.append(ChatMessage.ai(None, tool_calls=[CALL]))
    turn.append(turn.open_calls[0].result("found"))
    raise ZeroDivisionError


def test_a_retry_of_again_keeps_the_results_of_its_tools_and_what_others_have_asked(
    memory: ConversationSummaryBufferMemory,
) -> None:
    question = memory.answer("s", "Hi", lambda turn: "Hello!").question
    with pytest.raises(ZeroDivisionError):
        memory.answer("s", again=question, ask=runs_a_tool_and_fails, key="k")
    memory.answer("s", "And?", lambda turn: "Well.")
    with pytest.raises(exceptions.QuestionChanged):
        memory.answer("s", again=question, ask=lambda turn: "Good day!", key="k")
    assert [row.message.text for row in memory.history("s")] == ["Hi", "", "found", "And?", "Well."]


def test_a_retry_of_again_for_a_revision_goes_on(memory: ConversationSummaryBufferMemory) -> None:
    question = memory.answer("s", "Hi", lambda turn: "Hello!").question
    revision, _ = memory.store.revisions(memory.resolve("s"))
    with pytest.raises(ZeroDivisionError):
        memory.answer("s", again=question, ask=runs_a_tool_and_fails, key="k", revision=revision)
    turn = memory.answer("s", again=question, ask=lambda turn: turn.context[-1].text, key="k", revision=revision)
    assert turn.text == "found"


def test_a_stream_that_nobody_begins_to_read_holds_up_nobody_for_long(
    memory: ConversationSummaryBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a click on Stop right after one on Send: a middleware has the response then, or nobody has."""
    monkeypatch.setattr(streams, "UNREAD_SECONDS", 0.5)
    stream = memory.stream_answer("s", "Hello?", lambda turn: iter(["Hi."]))
    with pytest.raises(exceptions.TurnInProgress):
        memory.answer("s", "And now?", lambda turn: "Fine.", wait=0)
    assert memory.answer("s", "And now?", lambda turn: "Fine.", wait=PATIENCE).text == "Fine."
    with pytest.raises(exceptions.TurnLost):
        list(stream)


def test_a_stream_that_is_read_lasts_longer(
    memory: ConversationSummaryBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "UNREAD_SECONDS", 0.0)
    pieces = iter(memory.stream_answer("s", "Hello?", lambda turn: iter(["Hi ", "there."])))
    next(pieces)
    with pytest.raises(exceptions.TurnInProgress):
        memory.answer("s", "And now?", lambda turn: "Fine.", wait=0)
    assert list(pieces) == ["there."]


def test_a_stream_that_was_stopped_before_it_began_asks_nobody(memory: ConversationSummaryBufferMemory) -> None:
    stream = memory.stream_answer("s", "Hello?", lambda turn: pytest.fail("The model was asked."))
    assert memory.stop_answer("s", stream.turn.question)
    assert list(stream) == []
    assert memory.answer("s", "And now?", lambda turn: "Fine.", wait=0).text == "Fine."
