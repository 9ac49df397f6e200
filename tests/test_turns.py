"""Turns: a question is stored, the model is asked, and its reply is stored, each once."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.test import RequestFactory
from openai.types.chat import ChatCompletion

from django_convmemory import exceptions, models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.context.wire import replies
from django_convmemory.memory import ConversationBufferMemory, ConversationMemory, ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations import streams
from django_convmemory.operations.streams import TurnStream
from django_convmemory.operations.turns import Turn
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store import Store
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.store.orm import ORMStore
from tests import event_loops
from tests.test_changes_at_once import InThread

# The databases decide who opens a turn.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendors]

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}


@pytest.fixture
def memory(store: Store) -> ConversationSummaryBufferMemory:
    return built(store)


def built(store: Store) -> ConversationSummaryBufferMemory:
    model = ScriptedChatModel(["A word."] * 9)
    return ConversationSummaryBufferMemory(store, model, 200, scheduler=NullScheduler())


def says(text: str) -> Callable[[Turn], str]:
    return lambda turn: text


def fails(turn: Turn) -> Any:
    raise ZeroDivisionError


def stored(memory: ConversationMemory) -> list[tuple[str, str, int | None, str | None]]:
    return [(row.message.role, row.message.text, row.reply_to, row.cut_off) for row in memory.history("s")]


def texts(memory: ConversationMemory) -> list[str]:
    return [row.message.text for row in memory.history("s")]


# Once.


def test_the_question_and_the_reply_are_stored(memory: ConversationMemory) -> None:
    prompts: list[list[str]] = []

    def ask(turn: Turn) -> str:
        prompts.append([message.text for message in turn.context])
        return "Hello!"

    turn = memory.session("s").answer("Hi", ask, system="Be kind.", metadata={"page": 1})

    assert prompts == [["Be kind.", "Hi"]]
    assert stored(memory) == [("user", "Hi", None, None), ("assistant", "Hello!", 1, "")]
    assert (turn.text, turn.result, turn.replayed, turn.cut_off, turn.refusal) == ("Hello!", "Hello!", False, "", "")
    assert [message.id for message in turn.messages] == [message.id for message in memory.history("s")]
    assert memory.history("s")[0].message.metadata == {"page": 1}


def test_a_used_key_returns_the_stored_reply(memory: ConversationMemory) -> None:
    first = memory.answer("s", "Hi", says("Hello!"), key="k")
    # Whatever happened to the metadata, and before the size of the question is looked at.
    memory.update_message("s", 1, metadata={"seen": True})
    again = memory.answer("s", "Hi", fails, key="k", max_tokens=1)
    assert (again.replayed, again.text) == (True, "Hello!")
    assert again.reply is not None
    assert again.reply.id == first.messages[-1].id
    with pytest.raises(exceptions.IdempotencyConflict):
        memory.answer("s", "Something else", says("Hello!"), key="k")
    # If the reply is gone, the model is asked again. If the question is gone, nobody can.
    memory.truncate("s", 1)
    assert memory.answer("s", "Hi", says("Hello again!"), key="k").text == "Hello again!"
    memory.truncate("s", 0)
    with pytest.raises(exceptions.QuestionChanged):
        memory.answer("s", "Hi", fails, key="k")
    assert stored(memory) == []


def test_a_call_that_has_the_id_of_an_earlier_one_is_open(memory: ConversationMemory) -> None:
    """Some servers give each call of a function the same id."""
    seen: list[list[str]] = []

    def ask(turn: Turn) -> str:
        for _ in range(2):
            turn.append(ChatMessage.ai(tool_calls=[CALL]))
            seen.append([call.id for call in turn.open_calls])
            turn.append(turn.open_calls[0].result("found"))
            seen.append([call.id for call in turn.open_calls])
        return "Done."

    memory.answer("s", "Hi", ask)
    assert seen == [["c1"], [], ["c1"], []]


def test_a_result_that_is_stored_is_not_made_again(memory: ConversationMemory) -> None:
    ran = []

    def ask(turn: Turn) -> str:
        for call in turn.open_calls:
            ran.append(call.name)
            turn.append(call.result("42"))
            if len(ran) == 1:
                raise ZeroDivisionError
        if not ran:
            turn.append(ChatMessage.ai(None, tool_calls=[CALL, {**CALL, "id": "c2"}]))
            raise ZeroDivisionError
        return f"{turn.context[-1].text} it is."

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            memory.answer("s", "What is it?", ask, key="k")
    assert memory.answer("s", "What is it?", ask, key="k").text == "42 it is."
    assert ran == ["find", "find"]
    assert [row.reply_to for row in memory.history("s")] == [None, 1, 1, 1, 1]
    assert [row.cut_off for row in memory.history("s")] == [None, None, None, None, ""]


def test_a_message_of_a_turn_keeps_the_id_that_the_site_has_chosen(memory: ConversationMemory) -> None:
    message_id = uuid.uuid4()

    def ask(turn: Turn) -> str:
        turn.append(ChatMessage.ai(tool_calls=[CALL]), ChatMessage.tool("Found.", "c1", id=message_id))
        return "Here it is."

    turn = memory.answer("s", "Find it.", ask)
    assert turn.messages[2].id == memory.history("s")[2].id == message_id


def test_a_reply_with_calls_leaves_the_question_open(memory: ConversationMemory) -> None:
    """Somebody may have to approve them first."""
    turn = memory.answer("s", "Delete it.", lambda turn: ChatMessage.ai(None, tool_calls=[CALL]))
    assert (turn.reply, turn.open_calls[0].name) == (None, "find")

    def ask(turn: Turn) -> str:
        turn.append(turn.open_calls[0].result("Done."))
        return "It is deleted."

    assert memory.answer("s", None, ask).text == "It is deleted."


def test_what_the_provider_reported_is_stored_with_its_message(memory: ConversationMemory) -> None:
    reply = {
        "choices": [{"message": {"role": "assistant", "content": "Hello"}, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1},
    }
    turn = memory.answer("s", "Hi", lambda turn: reply)
    assert (turn.text, turn.cut_off, turn.result) == ("Hello", "length", reply)
    assert turn.usage == (7, 0, 1)
    assert memory.history("s")[1].usage == reply["usage"]


def test_what_no_provider_reported_is_unknown_and_not_zero(memory: ConversationMemory) -> None:
    assert memory.answer("s", "Hi", says("Hello!")).usage is None

    def ask(turn: Turn) -> Any:
        turn.append(ChatMessage.ai(None, tool_calls=[CALL]), ChatMessage.tool("42", "c1"))
        return {"choices": [{"message": {"role": "assistant", "content": "42"}}], "usage": {"prompt_tokens": 7}}

    # What was reported is added up.
    assert memory.answer("s", "What is it?", ask).usage == (7, 0, 0)


def test_the_function_says_what_metadata_the_reply_has(memory: ConversationMemory) -> None:
    def ask(turn: Turn) -> Iterator[Any]:
        turn.append(ChatMessage.ai(None, tool_calls=[CALL]), ChatMessage.tool("42", "c1"))
        turn.reply_metadata = {"sources": [1]}
        yield from ("It is ", "42.")

    for text, cut_off in (("It is ", "lost"), ("It is 42.", "")):
        pieces = iter(memory.stream_answer("s", "What is it?", ask))
        next(pieces)
        pieces.close() if cut_off else list(pieces)  # type: ignore[attr-defined]
        found = [(row.message.text, row.message.metadata, row.cut_off) for row in memory.history("s")[1:]]
        assert found == [("", {}, None), ("42", {}, None), (text, {"sources": (1,)}, cut_off)]
        memory.clear("s")
    message = ChatMessage.ai("Hello!", metadata={"a": 1, "b": 1})

    def returns(turn: Turn) -> ChatMessage:
        turn.reply_metadata = {"b": 2}
        return message

    reply = memory.answer("s", "Hi", returns).reply
    assert reply is not None
    assert reply.message.metadata == {"a": 1, "b": 2}


# Questions.


def test_the_newest_question_without_a_reply_is_answered(memory: ConversationMemory) -> None:
    memory.append("s", ChatMessage.human("Hi"))
    assert memory.answer("s", None, says("Hello!"), key="k").text == "Hello!"
    assert memory.answer("s", None, fails, key="k").replayed
    with pytest.raises(exceptions.NothingToAnswer):
        memory.answer("s", None, says("Hello!"))
    # An assistant's message that was appended is a reply.
    memory.append("s", ChatMessage.human("And?"), ChatMessage.ai("That is all."))
    with pytest.raises(exceptions.NothingToAnswer):
        memory.answer("s", None, says("More."))
    with pytest.raises(exceptions.NothingToAnswer, match="no question"):
        memory.answer("empty", None, says("Hello!"))


def test_a_question_is_answered_again(memory: ConversationMemory) -> None:
    first = memory.answer("s", "Hi", says("Hello!"))
    memory.answer("s", "And?", says("Well."))
    with pytest.raises(ZeroDivisionError):
        memory.answer("s", again=first.question, ask=fails)
    # The old reply stays until the new one is stored.
    assert texts(memory) == ["Hi", "Hello!", "And?", "Well."]
    prompts: list[list[str]] = []

    def ask(turn: Turn) -> str:
        prompts.append([message.text for message in turn.context])
        return "Good morning!"

    assert memory.answer("s", again=str(first.question.id), ask=ask, key="k").text == "Good morning!"
    assert prompts == [["Hi"]]
    assert texts(memory) == ["Hi", "Good morning!"]
    assert memory.answer("s", again=first.question, ask=fails, key="k").replayed


def test_a_question_that_was_folded_is_in_the_prompt_of_another_answer(memory: ConversationMemory) -> None:
    memory.answer("s", "Old " + "word " * 60, says("Yes. " + "word " * 60))
    turn = memory.answer("s", "What is it?", says("It is " + "long " * 300))
    memory.append("s", ChatMessage.human("Thanks."))
    assert memory.compact("s") == "published"
    assert memory.load("s").covered >= turn.question.position
    prompts: list[list[str]] = []

    def ask(turn: Turn) -> str:
        prompts.append([message.text for message in turn.context])
        return "It is short."

    memory.answer("s", again=turn.question, ask=ask)
    assert prompts[0][-1] == "What is it?"
    assert not any("long" in text for text in prompts[0])
    assert texts(memory)[2:] == ["What is it?", "It is short."]


def test_a_question_is_shown_although_the_rounds_of_its_tools_were_folded(memory: ConversationMemory) -> None:
    def ask(turn: Turn) -> str:
        for number in range(4):
            turn.append(ChatMessage.ai("Let me see.", tool_calls=[{**CALL, "id": f"c{number}"}]))
            turn.append(turn.open_calls[0].result("word " * 150))
        assert memory.compact("s", despite_pause=True) == "published"
        turn._context = None
        assert [message.text for message in turn.context if message.role == "user"] == ["What is it?"]
        return "It is this."

    memory.answer("s", "What is it?", ask)
    assert memory.load("s").covered > 1


def test_an_edited_question_takes_the_place_of_what_followed(memory: ConversationMemory) -> None:
    first = memory.answer("s", "Hi", says("Hello!"), key="k")
    memory.answer("s", "And?", says("Well."))
    edited = memory.answer("s", "Good day", says("Hello, you!"), edit=first.question, key="e")
    assert texts(memory) == ["Good day", "Hello, you!"]
    assert edited.question.id != first.question.id
    assert memory.answer("s", "Good day", fails, edit=first.question, key="e").replayed
    for gone in ({"question": "Good day", "edit": first.question}, {"again": first.question}):
        with pytest.raises(exceptions.UnknownMessage, match="no question with this id"):
            memory.answer("s", ask=fails, **gone)
    with pytest.raises(exceptions.QuestionChanged):
        memory.answer("s", "Hi", fails, key="k")


def test_a_question_that_does_not_fit_is_refused_before_it_is_stored(memory: ConversationMemory) -> None:
    memory.append("s", ChatMessage.system("word " * 50), ChatMessage.ai("Hello."))
    with pytest.raises(exceptions.MessageTooLong) as caught:
        memory.answer("s", "word " * 8000, fails, key="k")
    assert (caught.value.tokens > 6000, 5000 < caught.value.limit < 6000) == (True, True)
    with pytest.raises(exceptions.MessageTooLong):
        memory.answer("s", "word " * 50, fails, system="word " * 50, max_tokens=120)
    assert len(memory.history("s")) == 2
    assert memory.answer("s", "word " * 20, says("Yes."), system="word " * 5, max_tokens=120).text == "Yes."


def test_wrong_arguments_are_named_before_anything_is_stored(memory: ConversationMemory) -> None:
    for arguments in (
        {"question": "Hi"},
        {"question": "Hi", "ask": 3},
        {"question": "Hi", "again": "x", "ask": fails},
        {"edit": "018f2a3b-0000-7000-8000-000000000000", "ask": fails},
        {"question": "Hi", "edit": object(), "ask": fails},
        {"question": "Hi", "wait": -1, "ask": fails},
        {"question": "Hi", "max_tokens": -1, "ask": fails},
    ):
        with pytest.raises(exceptions.InvalidArgument):
            memory.answer("s", **arguments)
    for name, call in (
        ("again", lambda: memory.answer("s", again="xx", ask=fails)),
        ("edit", lambda: memory.answer("s", "Hi", fails, edit="xx")),
        ("question", lambda: memory.stop_answer("s", "xx")),
    ):
        with pytest.raises(exceptions.InvalidArgument, match=f"^{name} takes a stored message or its id, not 'xx'"):
            call()
    with pytest.raises(exceptions.InvalidMessage, match=r"^key must be .* the header Idempotency-Key"):
        memory.answer("s", "Hi", fails, key="")
    for question in (ChatMessage.ai("Hi"), "", " \n", [], [{"type": "text", "text": ""}]):
        with pytest.raises(exceptions.InvalidMessage):
            memory.answer("s", question, fails)
    with pytest.raises(exceptions.InvalidMessage, match="Cannot read a reply"):
        memory.answer("t", "Hi", lambda turn: object())
    assert memory.history("s") == []


BLANK = ["", " \n", ChatMessage.ai(None), [], {"role": "assistant", "content": ""}]
BLANK += [{"choices": []}, {"choices": None}, {"choices": [{"message": None}]}, ChatCompletion.construct(error="Busy")]


@pytest.mark.parametrize("reply", BLANK, ids=str)
def test_a_blank_reply_is_not_stored(reply: Any, memory: ConversationMemory) -> None:
    with pytest.raises(exceptions.EmptyReply):
        memory.answer("s", "Hi", lambda turn: reply)
    assert texts(memory) == ["Hi"]
    assert memory.answer("s", None, says("Hello!")).text == "Hello!"


# Nothing wrong.


def test_a_reply_to_a_question_that_changed_is_not_stored(memory: ConversationMemory) -> None:
    changes: list[Callable[[Turn], Any]] = [
        lambda turn: memory.append("s", ChatMessage.human("Wait!")),
        lambda turn: memory.redact("s", turn.question.position),
        lambda turn: memory.truncate("s", turn.question.position - 1),
        lambda turn: memory.replace("s", turn.question.position - 1, ChatMessage.human("Another one")),
        lambda turn: memory.clear("s"),
    ]
    for change in changes:

        def ask(turn: Turn, change: Callable[[Turn], Any] = change) -> str:
            change(turn)
            return "Too late."

        with pytest.raises(exceptions.QuestionChanged) as caught:
            memory.answer("s", "Hi", ask)
        assert [message.text for message in caught.value.reply] == ["Too late."]
        assert "Too late." not in texts(memory)
    assert memory.answer("s", "Hi", says("Hello!")).text == "Hello!"


def test_a_change_elsewhere_does_not_matter(memory: ConversationMemory) -> None:
    memory.append("s", ChatMessage.human("My card is 4711."), ChatMessage.ai("Thanks."))

    def ask(turn: Turn) -> str:
        memory.redact("s", 1)
        memory.update("s", title="Cards")
        memory.update_message("s", 3, metadata={"seen": True})
        return "Hello!"

    assert memory.answer("s", "Hi", ask).text == "Hello!"


# One at a time.


def test_another_request_waits_only_as_long_as_it_may(memory: ConversationMemory) -> None:
    def ask(turn: Turn) -> str:
        for question, key in (("Hi", "k"), ("Another", None)):
            with pytest.raises(exceptions.TurnInProgress) as caught:
                memory.answer("s", question, fails, key=key, wait=0.05)
            # The next request waits too, so it need not wait until the turn of a killed process would have ended.
            assert (caught.value.retry_after, caught.value.headers) == (5.0, {"Retry-After": "5"})
        with pytest.raises(exceptions.TurnInProgress):
            memory.answer("s", None, fails, wait=0)
        return "Hello!"

    memory.answer("s", "Hi", ask, key="k")
    assert texts(memory) == ["Hi", "Hello!"]


def test_who_has_lost_the_turn_stores_nothing() -> None:
    memory = built(ORMStore())

    def ask(turn: Turn) -> str:
        models.Session.objects.update(turn_expires_at=dt.datetime(2001, 1, 1, tzinfo=dt.UTC))
        assert memory.answer("s", "Hi", says("The second one."), key="k").text == "The second one."
        return "The first one."

    with pytest.raises(exceptions.TurnLost) as caught:
        memory.answer("s", "Hi", ask, key="k")
    assert [message.text for message in caught.value.reply] == ["The first one."]
    assert texts(memory) == ["Hi", "The second one."]
    # An expired turn that nobody has taken goes on.
    memory.answer("s", "And?", lambda turn: str(models.Session.objects.update(turn_expires_at=None)))
    assert texts(memory)[2:] == ["And?", "1"]


def test_a_double_click_asks_once(memory: ConversationMemory) -> None:
    asked = itertools.count()
    started = threading.Barrier(4)

    def ask(turn: Turn) -> str:
        next(asked)
        return "Hello!"

    def click() -> Turn:
        started.wait(30)
        return memory.answer("s", "Hi", ask, key="k")

    threads = [InThread(click) for _ in range(4)]
    turns = [thread.result() for thread in threads]
    assert next(asked) == 1
    assert [turn.text for turn in turns] == ["Hello!"] * 4
    assert sum(not turn.replayed for turn in turns) == 1
    assert texts(memory) == ["Hi", "Hello!"]


def test_a_question_inside_a_transaction_is_refused_before_it_is_stored() -> None:
    memory = built(ORMStore())
    with transaction.atomic(), pytest.raises(RuntimeError, match="non_atomic_requests"):
        memory.answer("s", "Hi", says("Hello!"))
    assert memory.history("s") == []


# Streams.


def chunk(text: str | None = None, end: str | None = None, calls: Any = None) -> dict[str, Any]:
    delta = {"content": text, "tool_calls": calls}
    choice = {"index": 0, "delta": {name: value for name, value in delta.items() if value}, "finish_reason": end}
    return {"object": "chat.completion.chunk", "choices": [choice]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


class Client:
    """A client's stream, which has to be entered and left."""

    def __init__(self, *chunks: Any) -> None:
        self.chunks = chunks
        self.closed = False

    def __enter__(self) -> Iterator[Any]:
        return iter(self.chunks)

    def __exit__(self, *error: object) -> None:
        self.closed = True


class AsyncClient:
    """The same without blocking."""

    def __init__(self, *chunks: Any) -> None:
        self.client = Client(*chunks)

    async def __aenter__(self) -> AsyncIterator[Any]:
        async def chunks() -> AsyncIterator[Any]:
            for one in self.client.chunks:
                await asyncio.sleep(0)
                yield one

        return chunks()

    async def __aexit__(self, *error: object) -> None:
        self.client.closed = True


def test_a_stream_stores_the_reply_before_its_end(memory: ConversationMemory) -> None:
    client = Client(chunk("He"), chunk("llo"), chunk(end="stop"), USAGE)
    stream = memory.session("s").stream_answer("Hi", lambda turn: client, key="k")
    # The call has stored the question, and not asked the model yet.
    assert stored(memory) == [("user", "Hi", None, None)]
    assert list(stream) == ["He", "llo"]
    assert client.closed
    assert stored(memory)[1:] == [("assistant", "Hello", 1, "")]
    assert (stream.turn.text, stream.turn.usage) == ("Hello", (3, 0, 2))
    again = memory.stream_answer("s", "Hi", fails, key="k")
    assert (list(again), again.turn.replayed) == (["Hello"], True)


def test_a_stream_runs_tools_between_its_messages(memory: ConversationMemory) -> None:
    begun, rest = [{"index": 0, **CALL}], [{"index": 0, "function": {"arguments": " "}}]
    calling = [chunk("Wait."), chunk(calls=begun), chunk(calls=rest), chunk(end="tool_calls"), USAGE]
    saying = [chunk("It is "), chunk("42."), chunk(end="stop")]

    def returns(turn: Turn) -> Client:
        for call in turn.open_calls:
            assert call.arguments == "{} "
            turn.append(call.result("42"))
        return Client(*(saying if len(turn.messages) > 1 else calling))

    def yields(turn: Turn) -> Iterator[Any]:
        yield from calling
        [call] = turn.open_calls
        turn.append(call.result("42"))
        assert turn.context[-1].text == "42"
        yield from saying

    for ask in (returns, yields):
        memory.clear("s")
        assert list(memory.stream_answer("s", "What?", ask)) == ["Wait.", "It is ", "42."]
        assert [(role, text) for role, text, _, _ in stored(memory)] == [
            ("user", "What?"),
            ("assistant", "Wait."),
            ("tool", "42"),
            ("assistant", "It is 42."),
        ]
    # A function that does not run its calls is not called for ever.
    memory.clear("s")
    stream = memory.stream_answer("s", "What?", lambda turn: Client(*calling))
    assert len(list(stream)) <= 2
    assert stream.turn.reply is None


def test_a_reply_that_was_cut_off_is_kept_and_replaced(memory: ConversationMemory) -> None:
    def lost(source: Any) -> TurnStream:
        return memory.stream_answer("s", "Hi", lambda turn: source, key="k")

    # The model's stream ends without a reason.
    assert list(lost(Client(chunk("He"), chunk("l")))) == ["He", "l"]
    assert stored(memory)[1:] == [("assistant", "Hel", 1, "lost")]
    # The reader goes away.
    stream = lost(iter(["Good ", "day", " to you"]))
    pieces = iter(stream)
    assert [next(pieces), next(pieces)] == ["Good ", "day"]
    stream.close()
    assert stored(memory)[1:] == [("assistant", "Good day", 1, "lost")]
    # Nothing of what an error interrupts is stored.
    with pytest.raises(ZeroDivisionError):
        list(memory.stream_answer("s", "Hi", lambda turn: (1 // number for number in range(1)), key="k"))
    assert stored(memory)[1:] == [("assistant", "Good day", 1, "lost")]
    lost(iter(["Nothing"])).close()
    # Without a question, the newest one is answered: it has no whole reply.
    assert memory.answer("s", None, says("Hello there.")).text == "Hello there."
    assert stored(memory) == [("user", "Hi", None, None), ("assistant", "Hello there.", 1, "")]
    memory.truncate("s", 1)
    # A server that gives no reason ends with the usage.
    other = memory.session("other").stream_answer("Hi", lambda turn: Client(chunk("He"), chunk("llo"), USAGE))
    assert (list(other), other.turn.cut_off) == (["He", "llo"], "")
    assert list(lost(Client(chunk("Hello"), chunk(end="length")))) == ["Hello"]
    assert stored(memory)[1:] == [("assistant", "Hello", 1, "length")]
    assert list(memory.stream_answer("s", "Hi", fails, key="k")) == ["Hello"]


def test_a_reader_who_goes_away_after_the_turn_was_lost_gets_no_error(memory: ConversationMemory) -> None:
    pieces = iter(memory.stream_answer("s", "Hi", lambda turn: iter(["Good ", "day"])))
    next(pieces)
    memory.replace("s", 0, ChatMessage.human("Good morning"))
    pieces.close()  # type: ignore[attr-defined]
    assert texts(memory) == ["Good morning"]
    # The turn has ended, so nobody waits for it.
    assert memory.answer("s", None, says("Hello!"), wait=0).text == "Hello!"


def test_a_reply_that_is_stopped_stays(memory: ConversationMemory) -> None:
    def ask(turn: Turn) -> Iterator[str]:
        yield "One, "
        assert memory.store.stop_turn(memory.resolve("s"), turn.question.position)
        turn._alive -= 10.0  # The next sign of life is due.
        yield "two, "
        yield "three"

    stream = memory.stream_answer("s", "Count.", ask, key="k")
    assert list(stream) == ["One, ", "two, "]
    assert (stream.turn.cut_off, stored(memory)[1][1:]) == ("stopped", ("One, two, ", 1, "stopped"))
    assert memory.stream_answer("s", "Count.", ask, key="k").turn.replayed
    assert not memory.store.stop_turn(memory.resolve("s"), 1)


@pytest.mark.parametrize("responds", [False, True])
def test_no_connection_is_held_while_the_model_speaks(monkeypatch: pytest.MonkeyPatch, responds: bool) -> None:
    memory, events = built(ORMStore()), []
    monkeypatch.setattr(streams.TurnStream, "sign_of_life", 0.0)
    monkeypatch.setattr(ORMStore, "give_back_connection", lambda store: events.append("given back"))

    def note(execute: Any, *query: Any) -> Any:
        events.append("query")
        return execute(*query)

    def ask(turn: Turn) -> Iterator[str]:
        assert events[-1] == "given back"
        turn.append(ChatMessage.ai(None, tool_calls=[CALL]), ChatMessage.tool("42", "c1"))
        assert turn.context[-1].text == "42"
        for text in ("It ", "is ", "42."):
            assert events[-1] == "given back"
            events.clear()
            yield text

    with connection.execute_wrapper(note):
        stream = memory.stream_answer("s", "What is it?", ask)
        pieces = iter(stream.response(RequestFactory().post("/")) if responds else stream)
        assert events[-1] == "given back"
        assert len(list(pieces)) == (5 if responds else 3)


def asks(kind: str) -> tuple[Callable[[Turn], Any], list[bool]]:
    """A function of the site of each kind, and what notes that the model's stream was closed."""
    closed: list[bool] = []

    def generator(turn: Turn) -> Iterator[str]:
        try:
            yield from "ABC"
        finally:
            closed.append(True)

    async def async_generator(turn: Turn) -> AsyncIterator[str]:
        try:
            for text in "ABC":
                await asyncio.sleep(0)
                yield text
        finally:
            closed.append(True)

    class Noted(AsyncClient):
        async def __aexit__(self, *error: object) -> None:
            closed.append(True)

    async def coroutine(turn: Turn) -> AsyncClient:
        return Noted(*map(chunk, "ABC"), chunk(end="stop"))

    def plain(turn: Turn) -> AsyncIterator[str]:
        return async_generator(turn)

    functions = {"generator": generator, "async generator": async_generator, "coroutine": coroutine, "plain": plain}
    return functions[kind], closed


def test_a_stream_is_whole_in_a_thread_that_has_run_an_event_loop() -> None:
    async def other_view() -> None:
        await sync_to_async(lambda: None)()

    async_to_sync(other_view)()
    ask, closed = asks("async generator")
    assert list(built(InMemoryStore()).stream_answer("s", "Hi", ask)) == ["A", "B", "C"]
    assert closed == [True]


@pytest.mark.parametrize("kind", ["generator", "async generator", "coroutine", "plain"])
def test_each_function_streams_to_each_reader(kind: str, memory: ConversationMemory) -> None:
    ask, closed = asks(kind)
    stream = memory.stream_answer("s", "Hi", ask)
    assert list(stream) == ["A", "B", "C"]

    async def read(most: int) -> list[str]:
        stream = await memory.session("s").astream_answer("Hi", ask)
        pieces = aiter(stream)
        found = [await anext(pieces) for _ in range(most)]
        if most < 3:
            await pieces.aclose()
        else:
            found += [piece async for piece in pieces]
        return found

    assert event_loops.run(read(3)) == ["A", "B", "C"]
    assert event_loops.run(read(1)) == ["A"]
    pieces = iter(memory.stream_answer("s", "Hi", ask))
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    replies = [(text, cut_off) for role, text, _, cut_off in stored(memory) if role == "assistant"]
    assert replies == [("ABC", ""), ("ABC", ""), ("A", "lost"), ("A", "lost")]
    assert closed == [True] * 4


def test_the_asynchronous_twin_takes_each_function(memory: ConversationMemory) -> None:
    async def ask(turn: Turn) -> str:
        if not turn.open_calls and len(turn.messages) == 1:
            await turn.aappend(ChatMessage.ai(None, tool_calls=[CALL]))
        await turn.aappend(turn.open_calls[0].result("42"))
        return f"It is {turn.context[-1].text}."

    async def answer() -> list[str]:
        chat = memory.session("s")
        with pytest.raises(ZeroDivisionError):
            await chat.aanswer("Hi", fails, key="k")
        first = await chat.aanswer("Hi", says("Hello!"), key="k")
        second = await chat.aanswer("What is it?", ask)
        return [first.text, second.text]

    assert event_loops.run(answer()) == ["Hello!", "It is 42."]
    assert memory.answer("t", "What is it?", ask).text == "It is 42."


@pytest.mark.parametrize("step", ["_open", "_prepare"])
@pytest.mark.parametrize("operation", ["aanswer", "astream_answer"])
def test_a_request_that_is_cancelled_while_it_opens_a_turn_leaves_none_open(
    step: str, operation: str, memory: ConversationMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls: Any = Turn if step == "_prepare" else type(memory)
    work, reached, cancelled = getattr(cls, step), threading.Event(), threading.Event()

    def slowly(*args: Any) -> Any:
        done = work(*args)
        reached.set()
        cancelled.wait(30)
        return done

    async def cancel() -> None:
        answering = asyncio.ensure_future(getattr(memory.session("s"), operation)("Hi", fails))
        await asyncio.to_thread(reached.wait, 30)
        answering.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await answering

    with monkeypatch.context() as patched:
        patched.setattr(cls, step, slowly)
        event_loops.run(cancel())
    assert memory.answer("s", None, says("Hello!"), wait=0).text == "Hello!"


# The forms of the clients.


def joined(chunks: Sequence[Any]) -> tuple[str, ChatMessage, Any, str]:
    pieces = replies.Chunks()
    text = "".join([pieces.add(one) for one in chunks])
    [reply] = pieces.replies()
    return text, reply.message, reply.usage, reply.cut_off


def test_the_reply_of_the_responses_api() -> None:
    response = {
        "output": [
            {"type": "reasoning", "id": "rs", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "ls"},
        ],
        "usage": {"input_tokens": 3, "output_tokens": 2},
        "incomplete_details": {"reason": "max_output_tokens"},
    }
    [reply] = replies.read(response)
    calls = [CALL, {"id": "c2", "type": "custom", "custom": {"name": "run", "input": "ls"}}]
    own = {"responses": {"content": response["output"]}}
    assert reply.message == ChatMessage.ai("Let me see.", tool_calls=calls, extra=own)
    assert (reply.usage, reply.cut_off) == (response["usage"], "length")
    events = [
        {"type": "response.created", "response": {}},
        {"type": "response.output_text.delta", "delta": "Let me "},
        {"type": "response.output_text.delta", "delta": "see."},
        {"type": "response.incomplete", "response": response},
    ]
    assert joined(events) == ("Let me see.", *reply)


def test_the_reply_of_anthropic() -> None:
    message = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "c1", "name": "find", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    [reply] = replies.read(message)
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a":1}'}}
    assert reply.message == ChatMessage.ai("Let me see.", tool_calls=[call])
    events = [
        {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": {"input_tokens": 3}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me see."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "c1", "name": "find"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a"'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": ":1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    assert joined(events) == ("Let me see.", *reply)


def test_a_refusal_and_unknown_fields_of_chat_completions() -> None:
    chunks = [
        {"choices": [{"delta": {"role": "assistant", "reasoning_content": "Hm"}}]},
        {"choices": [{"delta": {"reasoning_content": "m."}}]},
        {"choices": [{"delta": {"refusal": "I cannot."}, "finish_reason": "stop"}]},
    ]
    _, message, usage, cut_off = joined(chunks)
    assert (message.extra["refusal"], message.extra["reasoning_content"]) == ("I cannot.", "Hmm.")
    assert (usage, cut_off) == (None, "")
    memory = ConversationBufferMemory(InMemoryStore())
    assert memory.answer("s", "Hi", lambda turn: message).refusal == "I cannot."
