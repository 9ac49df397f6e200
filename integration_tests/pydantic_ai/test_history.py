"""The message history of pydantic-ai, by itself and through its agents."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from hypothesis import given, strategies as st
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRetry,
    RunContext,
    messages as pydantic_ai,
)
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from django_convmemory.contrib.pydantic_ai import (
    aappend_messages,
    amessage_history,
    append_messages,
    message_history,
    rows,
)
from django_convmemory.exceptions import InvalidArgument, InvalidMessage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules.exchanges import NO_RESULT, REDACTED
from integration_tests import agent_scripts
from integration_tests.agent_scripts import ANY_TEXTS, JSON, LIMIT, WORDS, Step, Turn

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("limit")]

Json = dict[str, Any]


def new_session(alias: str = "default") -> SessionHandle:
    return memories[alias].session(agent_scripts.new_key())


class Scripted:
    """An agent whose model gives the replies of a script, and notes what it is sent."""

    def __init__(self) -> None:
        self.sent: list[list[ModelMessage]] = []
        self.replies: Iterator[Step] = iter(())
        self.failing: set[str] = set()
        self.agent: Agent[object] = Agent(
            FunctionModel(self.reply), system_prompt="You are a guide.", instructions="Be brief."
        )
        self.agent.tool(retries=3)(self.look_up)

    async def look_up(self, context: RunContext[object], word: str) -> Any:
        """Answer a call. In threads, the results of parallel calls would come in another order each time."""
        if context.tool_call_id in self.failing:
            raise ModelRetry("Try again.")
        return {"word": word} if len(word) % 2 else word

    def reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.sent.append(messages)
        step = next(self.replies)
        self.failing = {call.id for call in step.calls if call.fails}
        parts: list[Any] = [ThinkingPart(step.thought)] if step.thought else []
        parts += [TextPart(step.text)] if step.text else []
        parts += [ToolCallPart("look_up", {"word": call.word}, tool_call_id=call.id) for call in step.calls]
        return ModelResponse(parts=parts)

    def run(self, turn: Turn, history: list[ModelMessage]) -> Any:
        self.replies = iter(turn.steps)
        return self.agent.run_sync(turn.said, message_history=history)


def untimed(messages: list[ModelMessage]) -> Any:
    """The messages as JSON, without what differs between two equal runs."""
    return _untimed(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


def _untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _untimed(inner)
            for key, inner in value.items()
            if key not in ("timestamp", "run_id", "conversation_id", "usage")
        }
    return [_untimed(inner) for inner in value] if isinstance(value, list) else value


@pytest.fixture
def session() -> SessionHandle:
    """A session that is not folded."""
    return new_session("large")


@given(agent_scripts.turns())
def test_the_model_is_sent_the_same_as_with_a_list_of_messages(turns: list[Turn]) -> None:
    ours, theirs = Scripted(), Scripted()
    session = new_session("large")
    kept: list[ModelMessage] = []
    stored: list[ModelMessage] = []

    for turn in turns:
        kept = theirs.run(turn, kept).all_messages()
        new = ours.run(turn, message_history(session)).new_messages()
        append_messages(session, new)
        stored += new

    assert list(map(untimed, ours.sent)) == list(map(untimed, theirs.sent))
    assert message_history(session) == message_history(session, view="history") == stored
    assert untimed(stored) == untimed(kept)


@given(agent_scripts.turns(min_size=3, max_size=8))
def test_after_a_fold_the_budget_is_held_and_each_call_has_its_result(turns: list[Turn]) -> None:
    scripted = Scripted()
    session = new_session()
    stored: list[ModelMessage] = []

    for turn in turns:
        history = message_history(session)
        context = session.load()
        shown = [row for each in dumped(history) for row in rows(each)]
        assert sum(session.memory.counter.count(row) for row in shown) <= context.tokens
        assert context.over_budget or context.tokens <= 2 * LIMIT + 10
        new = scripted.run(turn, history).new_messages()
        append_messages(session, new)
        stored += new
        session.compact()

    for sent in scripted.sent:
        check_calls(sent)
        assert "You are a guide." in [part.content for part in sent[0].parts if isinstance(part, SystemPromptPart)]
    assert message_history(session, view="history") == stored


def dumped(messages: list[ModelMessage]) -> list[Json]:
    return list(ModelMessagesTypeAdapter.dump_python(messages, mode="json"))


def check_calls(sent: list[ModelMessage]) -> None:
    """Each call has one result, before the next response, and each result has its call."""
    waiting: list[str] = []
    for message in dumped(sent):
        if message["kind"] == "response":
            assert waiting == []
            waiting = [part["tool_call_id"] for part in message["parts"] if part["part_kind"] == "tool-call"]
        else:
            for part in message["parts"]:
                if part["part_kind"] == "tool-return" or (part["part_kind"] == "retry-prompt" and part["tool_name"]):
                    waiting.remove(part["tool_call_id"])
    assert waiting == []


@pytest.mark.parametrize(("role", "form"), [("system", SystemPromptPart), ("user", UserPromptPart)])
def test_the_summary_is_a_prompt(settings: Any, role: str, form: type[Any]) -> None:
    memory = settings.CONVMEMORY["default"]
    settings.CONVMEMORY = {"default": memory | {"OPTIONS": memory["OPTIONS"] | {"summary_role": role}}}
    session = new_session()
    append_messages(session, [ModelRequest([UserPromptPart(f"{number} {WORDS}")]) for number in range(12)])
    session.compact()

    [summary] = message_history(session)[0].parts

    assert isinstance(summary, form)
    assert str(summary.content).startswith("Summary of earlier conversation: ")


def test_a_result_that_is_deferred_answers_its_call() -> None:
    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("pay", {}, "a"), ToolCallPart("look_up", {}, "b")])
        return ModelResponse([TextPart("Paid.")])

    agent = Agent(FunctionModel(reply), output_type=[str, DeferredToolRequests])

    @agent.tool_plain
    def look_up() -> str:
        return "9 €"

    @agent.tool_plain(requires_approval=True)
    def pay() -> str:
        return "paid"

    session = new_session("large")

    first = agent.run_sync("Pay the ferry.", message_history=message_history(session))
    append_messages(session, first.new_messages())
    assert isinstance(first.output, DeferredToolRequests)
    second = agent.run_sync(
        message_history=message_history(session), deferred_tool_results=DeferredToolResults(approvals={"a": True})
    )
    append_messages(session, second.new_messages())

    assert second.output == "Paid."
    assert [message.role for message in session.load()] == ["user", "assistant", "tool", "tool", "assistant"]
    assert NO_RESULT not in session.load().to_text()


@pytest.mark.parametrize("results", [[], [ToolReturnPart("look_up", "9 €", "b")]])
def test_a_new_prompt_may_follow_a_call_that_nobody_answered(results: list[Any]) -> None:
    scripted, session = Scripted(), new_session("large")
    calls = [ToolCallPart("look_up", {"word": each}, each) for each in ("a", "b")[: 1 + len(results)]]
    append_messages(session, [ModelRequest([UserPromptPart("Where?")]), ModelResponse(calls)])
    append_messages(session, [ModelRequest(results)] if results else [])
    before = message_history(session, view="history")

    run = scripted.run(Turn("Hello?", [Step("", "Hi.", [])]), message_history(session))
    append_messages(session, run.new_messages())

    check_calls(scripted.sent[-1])
    history = message_history(session, view="history")
    assert history[: len(before)] == before
    check_calls(message_history(session))


def test_calls_with_one_id_or_none_are_all_given_with_their_results(session: SessionHandle) -> None:
    for call_id in ("", "same"):
        calls = [ToolCallPart("look_up", {"word": each}, call_id) for each in "ab"]
        results = [ToolReturnPart("look_up", each, call_id) for each in "ab"]
        append_messages(session, [ModelRequest([UserPromptPart("?")]), ModelResponse(calls), ModelRequest(results)])

    made = dumped(message_history(session))

    assert made == dumped(message_history(session, view="history"))
    for call_id, (asks, answers) in zip(("call", "same"), (made[1:3], made[4:6]), strict=True):
        assert [(part["args"]["word"], part["tool_call_id"]) for part in asks["parts"]] == [
            ("a", call_id),
            ("b", call_id),
        ]
        assert [(part["content"], part["tool_call_id"]) for part in answers["parts"]] == [
            ("a", call_id),
            ("b", call_id),
        ]


def test_a_call_without_a_result_gets_a_notice_when_the_conversation_goes_on(session: SessionHandle) -> None:
    call = ModelResponse([ToolCallPart("look_up", {}, "a")])
    append_messages(session, [ModelRequest([UserPromptPart("Where?")]), call])
    assert message_history(session, view="history")[-1] == call
    assert message_history(session)[-1].parts == call.parts

    append_messages(session, [ModelRequest([UserPromptPart("Well?")])])

    [notice] = message_history(session)[2].parts
    assert isinstance(notice, ToolReturnPart)
    assert (notice.content, notice.tool_call_id, notice.tool_name) == (NO_RESULT, "a", "look_up")
    assert len(message_history(session, view="history")) == 3


def test_messages_of_the_site_and_redacted_ones_are_made_into_messages(session: SessionHandle) -> None:
    calls = [
        {"id": each, "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}} for each in "ab"
    ]
    image = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    session.append(
        ChatMessage.system("Be brief."), ChatMessage.human("Hello"), ChatMessage.ai("Look.", tool_calls=calls)
    )
    session.append(ChatMessage.tool("1", "a"), ChatMessage.tool("2", "b"))
    session.append(ChatMessage.human([{"type": "text", "text": "This?"}, image, {"type": "input_audio"}]))
    append_messages(session, [ModelRequest([UserPromptPart("My name is Ada.")]), ModelResponse([TextPart("Hi Ada.")])])
    session.redact(7)
    session.redact(8)

    made = message_history(session)

    assert message_history(session, view="history") == made
    assert [[part.part_kind for part in message.parts] for message in made] == [
        ["system-prompt"],
        ["user-prompt"],
        ["text", "tool-call", "tool-call"],
        ["tool-return", "tool-return"],
        ["user-prompt"],
        ["user-prompt"],
        ["text"],
    ]
    _, _, asks, results, question, *redacted = dumped(made)
    assert asks["parts"][1]["args"] == '{"a": 1}'
    assert [part["content"] for part in results["parts"]] == ["1", "2"]
    assert [part if isinstance(part, str) else part["url"] for part in question["parts"][0]["content"]] == [
        "This?",
        "https://a.example/b.png",
        "[input_audio]",
    ]
    assert [message["parts"][0]["content"] for message in redacted] == [REDACTED, REDACTED]


def test_one_of_several_results_is_redacted(session: SessionHandle) -> None:
    calls = ModelResponse([ToolCallPart("look_up", {}, each) for each in "abc"])
    results = ModelRequest([*(ToolReturnPart("look_up", each, each) for each in "abc"), UserPromptPart("And?")])
    append_messages(session, [ModelRequest([UserPromptPart("?")]), calls, results])
    session.redact(4)

    made = message_history(session)

    assert [part.content for message in made[2:] for part in message.parts] == ["a", REDACTED, "c", "And?"]  # type: ignore[union-attr]
    check_calls(made)


def test_asynchronous_twins() -> None:
    session = new_session()
    messages: list[ModelMessage] = [ModelRequest([UserPromptPart("?")]), ModelResponse([TextPart("!")])]

    async def talk() -> list[ModelMessage]:
        await aappend_messages(session, messages)
        return await amessage_history(session)

    assert async_to_sync(talk)() == messages


def test_what_is_refused() -> None:
    session = new_session()
    append_messages(session, [])
    unwritable: tuple[Any, ...] = (object(), {"a": lambda: None})
    for value in unwritable:
        with pytest.raises(InvalidMessage, match="cannot write these messages as JSON and read them again"):
            append_messages(session, [ModelRequest([UserPromptPart("a"), ToolReturnPart("f", value, "c")])])
    unreadable: Any = None
    with pytest.raises(InvalidMessage, match="read them again"):
        append_messages(session, [ModelResponse([TextPart(unreadable)])])
    with pytest.raises(InvalidArgument, match="view must be"):
        message_history(session, view="all")  # type: ignore[arg-type]
    assert message_history(session) == []


IDS = st.sampled_from(["a", "b", "c"])
TIMES = st.just(dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC))
FILES = st.one_of(
    st.builds(ImageUrl, st.just("https://a.example/b.png")),
    st.builds(BinaryContent, st.binary(max_size=8), media_type=st.sampled_from(["image/png", "application/pdf"])),
)
REQUEST_PARTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(SystemPromptPart, ANY_TEXTS, timestamp=TIMES),
    st.builds(UserPromptPart, st.one_of(ANY_TEXTS, st.lists(st.one_of(ANY_TEXTS, FILES), max_size=3)), timestamp=TIMES),
    st.builds(ToolReturnPart, ANY_TEXTS, JSON, IDS, timestamp=TIMES),
    st.builds(ToolReturnPart, ANY_TEXTS, st.lists(st.one_of(ANY_TEXTS, FILES), max_size=2), IDS, timestamp=TIMES),
    st.builds(
        pydantic_ai.RetryFeedbackPart,
        ANY_TEXTS,
        retry=st.just(pydantic_ai.RetryInfo("model_retry")),
        timestamp=TIMES,
    ),
    st.just(pydantic_ai.ToolAvailabilityDeltaPart(tools_added=["look_up"])),
    st.just(pydantic_ai.InstructionBaselinePart(instructions=[])),
    st.builds(pydantic_ai.CompactionPart, ANY_TEXTS),
    st.builds(pydantic_ai.SpeechPart, speaker=st.just("user"), transcript=ANY_TEXTS),
)
RESPONSE_PARTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(TextPart, ANY_TEXTS),
    st.builds(ThinkingPart, ANY_TEXTS, signature=st.none()),
    st.builds(
        ToolCallPart, ANY_TEXTS, st.one_of(st.none(), ANY_TEXTS, st.dictionaries(ANY_TEXTS, JSON, max_size=2)), IDS
    ),
    st.builds(pydantic_ai.NativeToolCallPart, ANY_TEXTS, ANY_TEXTS, IDS),
    st.builds(pydantic_ai.FilePart, st.builds(BinaryContent, st.binary(max_size=8), media_type=st.just("image/png"))),
)
MESSAGES: st.SearchStrategy[ModelMessage] = st.one_of(
    st.builds(ModelRequest, st.lists(REQUEST_PARTS, max_size=5), instructions=st.one_of(st.none(), ANY_TEXTS)),
    st.builds(ModelResponse, st.lists(RESPONSE_PARTS, max_size=4), timestamp=TIMES, model_name=st.just("m")),
)


@given(st.lists(st.lists(MESSAGES, max_size=4), max_size=3))
def test_any_messages_come_back_equal(batches: list[list[ModelMessage]]) -> None:
    session = new_session("large")
    for batch in batches:
        append_messages(session, batch)

    stored = [message for batch in batches for message in batch]
    assert message_history(session, view="history") == ModelMessagesTypeAdapter.validate_json(
        ModelMessagesTypeAdapter.dump_json(stored)
    )
    message_history(session)  # A random order is valid, too.
