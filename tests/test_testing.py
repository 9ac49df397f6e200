"""The test kit of sites: it scripts memories, refuses network calls, and restores everything."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings

from django_convmemory import exceptions, models, signals, tasks
from django_convmemory.chat_models.base import ChatRequest, ChatResponse, Usage
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.chat_models.scripted import ScriptedChatModel, ScriptExhausted
from django_convmemory.memory import ConversationSummaryBufferMemory, SessionHandle, memories
from django_convmemory.messages import ChatMessage
from django_convmemory.scheduling import InlineScheduler
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.testing import (
    NetworkModelCalled,
    Queued,
    QueueScheduler,
    ScriptedMemories,
    UnusedReplies,
    scripted_memories,
)
from tests.test_changes_at_once import InThread

ROOT = pathlib.Path(__file__).parent.parent
REQUEST = ChatRequest([ChatMessage.human("What is Rust?")])
TURN = "The cat sat on the mat and thought about the sea. " * 4
# A model that no test may call, and tasks for a broker that does not exist.
ALIAS: dict[str, Any] = {
    "OPTIONS": {"max_token_limit": 60},
    "CHAT_MODEL": {
        "BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel",
        "OPTIONS": {"model": "gpt-none", "base_url": "http://127.0.0.1:9/v1"},
    },
    "SCHEDULER": {"BACKEND": "django_convmemory.tasks.CeleryScheduler"},
}


@pytest.fixture(autouse=True)
def production() -> Iterator[None]:
    """The settings of a site as it runs in production."""
    with override_settings(CONVMEMORY={"default": ALIAS, "support": ALIAS}):
        yield


@pytest.fixture
async def asynchronous_db(transactional_db: None) -> AsyncIterator[None]:
    """The database, for a test on an event loop."""
    yield
    # The connections of the thread that Django's asynchronous code uses.
    await sync_to_async(connections.close_all)()


def talk(key: str = "user-1", *, alias: str = "default", turns: int = 2) -> None:
    """Append enough to make the session due."""
    memories[alias].append(key, *[ChatMessage.human(TURN)] * turns)


def queued(key: str = "user-1", *, alias: str = "default") -> Queued:
    return Queued(alias, models.Session.objects.get(alias=alias, key=key).pk)


def summary(key: str = "user-1") -> str:
    return memories["default"].load(key).summary or ""


@contextlib.contextmanager
def ending_in(
    error: type[AssertionError], *replies: str
) -> Iterator[tuple[ScriptedMemories, pytest.ExceptionInfo[AssertionError]]]:
    """Script the memories for a block that must end with an error; yield both."""
    with pytest.raises(error) as raised, scripted_memories(replies) as convmemory:
        yield convmemory, raised


# Scripting.


@pytest.mark.django_db
def test_due_sessions_wait_until_run_and_are_folded_by_the_script() -> None:
    with scripted_memories(["They spoke of a cat."]) as convmemory:
        talk()
        assert convmemory.queued == [queued()]
        assert convmemory.requests == []
        assert summary() == ""

        assert convmemory.run() == ["published"]

        assert summary() == "They spoke of a cat."
        [request] = convmemory.requests
        assert "thought about the sea" in request.messages[-1].text
        assert convmemory.queued == []
        assert convmemory.run() == []


@pytest.mark.django_db
def test_replies_are_texts_messages_responses_and_exceptions_in_order() -> None:
    response = ChatResponse(ChatMessage.ai("Third."), usage=Usage(prompt_tokens=7, completion_tokens=3))
    with scripted_memories(["First."]) as convmemory:
        convmemory.reply(ChatMessage.ai("Second."), response)
        convmemory.reply(exceptions.ContentRefused)
        summaries = []
        for key in "abcd":
            talk(key)
            convmemory.run()
            summaries.append(summary(key))
    assert summaries == ["First.", "Second.", "Third.", ""]
    assert list(models.Attempt.objects.exclude(prompt_tokens=None).values_list("prompt_tokens", flat=True)) == [7]


def test_a_reply_of_another_type_is_refused_at_once() -> None:
    with scripted_memories() as convmemory, pytest.raises(TypeError, match="not dict"):
        convmemory.reply({"role": "assistant"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not int"), scripted_memories([1]):  # type: ignore[list-item]
        pass
    with scripted_memories():
        pass  # It was not left in use.


def test_existing_memories_are_changed_in_place_and_restored() -> None:
    memory = memories["default"]
    before = (memory.model, memory.fallback, memory.scheduler)
    assert [type(part) for part in before] == [OpenAIChatModel, ExtractiveChatModel, tasks.CeleryScheduler]

    with scripted_memories():
        assert memories["default"] is memory
        assert isinstance(memory.model, ScriptedChatModel)
        assert memory.fallback is None
        assert isinstance(memory.scheduler, QueueScheduler)

    assert memories["default"] is memory
    assert (memory.model, memory.fallback, memory.scheduler) == before


def test_memories_made_later_are_scripted_too_and_restored_to_the_settings() -> None:
    with scripted_memories():
        later = memories["support"]
        with override_settings(CONVMEMORY={"default": ALIAS}):
            overridden = memories["default"]
        made = [later, overridden, memories["default"]]
        assert len({id(memory) for memory in made}) == 3
        assert len({memory.model for memory in made}) == 1
        assert len({memory.scheduler for memory in made}) == 1
        assert isinstance(later.model, ScriptedChatModel)

    for memory in made:
        assert isinstance(memory.model, OpenAIChatModel)
        assert isinstance(memory.fallback, ExtractiveChatModel)
        assert isinstance(memory.scheduler, tasks.CeleryScheduler)


def test_all_other_settings_keep_their_effect() -> None:
    price = {"input": 1, "output": 2}
    alias = ALIAS | {
        "MEMORY": "django_convmemory.memory.ConversationSummaryMemory",
        "OPTIONS": {"buffer_size": 3, "summary_prefix": "So far: "},
        "CHAT_MODEL": ALIAS["CHAT_MODEL"] | {"PRICE": price},
    }
    with scripted_memories(), override_settings(CONVMEMORY={"default": alias}):
        memory = memories["default"]
        assert dataclasses.asdict(memory.strategy) == {"buffer_size": 3}
        assert memory.options.summary_prefix == "So far: "
        assert memory.counter.name == "utf8:2"
        assert memory.price == (1, 2, None)


@pytest.mark.parametrize("wrong", [{"OPTIONS": {"limit": 1}}, {"CHAT_MODEL": {"BACKEND": "no.Model"}}, {"MODEL": {}}])
def test_wrong_settings_raise_their_usual_errors(wrong: dict[str, Any]) -> None:
    with (
        scripted_memories(),
        override_settings(CONVMEMORY={"default": wrong}),
        pytest.raises(ImproperlyConfigured, match=r"convmemory\.E00"),
    ):
        memories["default"]


@pytest.mark.django_db
def test_a_memory_that_does_not_summarize_gets_no_model() -> None:
    window = {"MEMORY": "django_convmemory.memory.ConversationWindowMemory", "SCHEDULER": ALIAS["SCHEDULER"]}
    with scripted_memories() as convmemory, override_settings(CONVMEMORY={"default": window}):
        talk(turns=50)
        assert memories["default"].model is None
        assert isinstance(memories["default"].scheduler, QueueScheduler)
        assert memories["default"].compact("user-1") == "not_due"
        assert (convmemory.queued, convmemory.requests) == ([], [])


# The queue.


@pytest.mark.django_db
def test_sessions_of_all_aliases_are_queued_once_each_and_folded_in_order() -> None:
    with scripted_memories(["One.", "Two.", "Three."]) as convmemory:
        talk("a")
        talk("a", alias="support")
        talk("b")
        memories["default"].truncate("a", after=0)
        talk("a")  # due a second time
        due = [queued("a"), queued("a", alias="support"), queued("b")]
        assert convmemory.queued == due

        assert convmemory.run() == ["published"] * 3

        assert (summary("a"), summary("b")) == ("One.", "Three.")


@pytest.mark.django_db(transaction=True)
def test_sessions_queued_during_a_run_are_folded_too() -> None:
    def go_on(session: SessionHandle, **kwargs: Any) -> None:
        if session.key != "c":
            talk(chr(ord(session.key) + 1))

    signals.summary_published.connect(go_on)
    try:
        with scripted_memories(["One.", "Two.", "Three."]) as convmemory:
            talk("a")
            assert convmemory.run() == ["published"] * 3
            assert summary("c") == "Three."
    finally:
        signals.summary_published.disconnect(go_on)


@pytest.mark.django_db
def test_a_paused_alias_keeps_no_session_from_being_folded() -> None:
    busy = exceptions.ModelUnavailable("busy", retry_after=900)
    with scripted_memories([exceptions.ModelMisconfigured("key"), "Two.", busy, "One."]) as convmemory:
        talk("a")
        talk("b")
        assert convmemory.run() == ["stalled", "published"]
        assert convmemory.run() == ["stalled"]
        assert convmemory.queued == [queued("a")]
        # The next run does not wait for the time of the next attempt.
        assert convmemory.run() == ["published"]
        assert convmemory.queued == []
    assert (summary("a"), summary("b")) == ("One.", "Two.")


@pytest.mark.django_db
def test_an_exception_that_no_model_may_raise_leaves_run_and_the_session_stays_queued() -> None:
    with scripted_memories([RuntimeError("a defect"), "They spoke of a cat."]) as convmemory:
        talk()
        with pytest.raises(RuntimeError, match="a defect"):
            convmemory.run()
        assert convmemory.queued == [queued()]
        assert convmemory.run() == ["published"]


@pytest.mark.django_db
@pytest.mark.parametrize("known", [True, False])
def test_a_session_that_a_rolled_back_transaction_queued_is_not_due(known: bool) -> None:
    with scripted_memories() as convmemory:
        if known:
            memories["default"].append("user-1", ChatMessage.human("Hello."))
        with transaction.atomic():
            talk()
            transaction.set_rollback(True)
        assert len(convmemory.queued) == 1

        assert convmemory.run() == ["not_due"]

        assert convmemory.queued == []


@pytest.mark.django_db
@pytest.mark.parametrize("sweep", [tasks.sweep, lambda: call_command("convmemory_sweep", verbosity=0)])
def test_a_sweep_queues_due_sessions_and_needs_no_broker(sweep: Callable[[], None]) -> None:
    unsent = {"SCHEDULER": {"BACKEND": "django_convmemory.scheduling.NullScheduler"}}
    with override_settings(CONVMEMORY={"default": ALIAS | unsent}):
        talk()

    with scripted_memories(["They spoke of a cat."]) as convmemory:
        sweep()
        assert convmemory.queued == [queued()]
        assert convmemory.run() == ["published"]


async def test_the_asynchronous_twins_are_scripted(asynchronous_db: None) -> None:
    with scripted_memories(["By compact.", "By run."]) as convmemory:
        memory = memories["default"]
        for key in ("a", "b"):
            await memory.aappend(key, *[ChatMessage.human(TURN)] * 2)
        assert len(convmemory.queued) == 2

        assert await memory.acompact("b") == "published"
        assert await convmemory.arun() == ["published", "not_due"]

        assert (await memory.aload("a")).summary == "By run."
        assert (await memory.aload("b")).summary == "By compact."


# Refusals.


def chat(model: OpenAIChatModel) -> None:
    model.chat(REQUEST)


def chat_in_a_thread(model: OpenAIChatModel) -> None:
    InThread(lambda: model.chat(REQUEST)).result()


def achat(model: OpenAIChatModel) -> None:
    asyncio.run(model.achat(REQUEST))


@pytest.mark.parametrize("call", [chat, chat_in_a_thread, achat])
def test_a_call_of_a_network_model_is_refused_and_the_error_says_what_to_do(
    call: Callable[[OpenAIChatModel], None],
) -> None:
    model = OpenAIChatModel(model="gpt-none")
    with scripted_memories() as convmemory:
        with pytest.raises(NetworkModelCalled, match=r"gpt-none.*ScriptedChatModel.*convmemory\.reply\(\)") as raised:
            call(model)
        assert convmemory.failures == [raised.value]
        convmemory.failures.clear()
    assert not isinstance(raised.value, exceptions.ConvMemoryError)


def test_a_refused_call_whose_error_was_caught_is_raised_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    memory = ConversationSummaryBufferMemory(
        InMemoryStore(), OpenAIChatModel(model="gpt-none"), 20, scheduler=InlineScheduler()
    )
    with ending_in(NetworkModelCalled) as (_, raised):
        memory.append("s", *[ChatMessage.human(TURN)] * 2)
        assert "failed inside append" in caplog.text
    assert "gpt-none" in str(raised.value)
    assert raised.value.__notes__ == [
        "The test went on after this error, so the error is raised again at the test's end."
    ]


def test_the_error_lists_all_refused_calls() -> None:
    with ending_in(NetworkModelCalled) as (_, raised):
        for name in ("first", "second"):
            with contextlib.suppress(NetworkModelCalled):
                OpenAIChatModel(model=name).chat(REQUEST)
    assert "first" in str(raised.value)
    assert "NetworkModelCalled" in raised.value.__notes__[-1]
    assert "second" in raised.value.__notes__[-1]


@pytest.mark.django_db
def test_an_exhausted_script_whose_error_was_caught_is_raised_at_the_end() -> None:
    with ending_in(ScriptExhausted) as (convmemory, raised):
        talk()
        with contextlib.suppress(ScriptExhausted):
            convmemory.run()
    assert "no reply left for request 1" in str(raised.value)
    assert "convmemory.reply()" in raised.value.__notes__[0]


@pytest.mark.django_db
def test_unused_replies_are_an_error() -> None:
    with ending_in(UnusedReplies) as (convmemory, raised):
        convmemory.reply("Used.", "The user asked about a cat.", exceptions.ModelUnavailable("busy"))
        talk("a")
        convmemory.run()
        talk("b")
    assert isinstance(raised.value, AssertionError)
    assert str(raised.value).startswith(
        "Replies are left that the model was not asked for: 'The user asked about a cat.', "
        "ModelUnavailable('busy'). Requests to the model: 1. Sessions still queued: 1."
    )


def fail_after_a_call_of_the_network() -> None:
    with contextlib.suppress(NetworkModelCalled):
        OpenAIChatModel(model="gpt-none").chat(REQUEST)
    raise AssertionError("the test's own error")


def test_an_error_of_the_test_itself_is_raised_and_everything_is_restored() -> None:
    memory = memories["default"]
    model, network = memory.model, OpenAIChatModel.chat
    with pytest.raises(AssertionError, match="the test's own"), scripted_memories(["Unused."]):
        fail_after_a_call_of_the_network()
    assert (memory.model, OpenAIChatModel.chat) == (model, network)


def test_everything_is_restored_if_the_end_raises() -> None:
    memory = memories["default"]
    model, network, anetwork = memory.model, OpenAIChatModel.chat, OpenAIChatModel.achat
    for _ in range(2):
        with ending_in(UnusedReplies, "Unused."):
            assert memory.model is not model
            assert OpenAIChatModel.chat is not network
            assert OpenAIChatModel.achat is not anetwork
        assert (memory.model, OpenAIChatModel.chat, OpenAIChatModel.achat) == (model, network, anetwork)


def test_nesting_is_refused_and_changes_nothing() -> None:
    with scripted_memories() as convmemory:
        convmemory.allow_unused_replies = True
        model = memories["default"].model
        with (
            pytest.raises(RuntimeError, match=r"scripted already.*Use the one that is already active"),
            scripted_memories(),
        ):
            pass
        assert memories["default"].model is model
        assert isinstance(model, ScriptedChatModel)
    assert isinstance(memories["default"].model, OpenAIChatModel)


# Imports.


@pytest.mark.slow
def test_it_imports_without_pytest_and_before_the_apps_are_loaded() -> None:
    code = "import sys; sys.modules['pytest'] = None; from django_convmemory import testing; testing.scripted_memories"
    environ = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}

    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, env=environ, check=True)
