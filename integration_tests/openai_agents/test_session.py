"""The session of the OpenAI Agents SDK, by itself and through the SDK's runner."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from agents import Agent, MaxTurnsExceeded, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession, function_tool
from agents.memory import Session, SessionSettings, is_openai_responses_compaction_aware_session, session_settings
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from hypothesis import given, strategies as st

from django_convmemory import models
from django_convmemory.contrib import openai_agents, responses_items
from django_convmemory.contrib.openai_agents import ConvMemorySession
from django_convmemory.exceptions import InvalidArgument, InvalidMessage, InvalidSession
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.exchanges import REDACTED
from integration_tests import agent_scripts
from integration_tests.agent_scripts import LIMIT, WORDS, Turn
from integration_tests.openai_agents.model import called, inputs, response, said, talking, thought, unmatched
from tests import response_items
from tests.openai_server import OpenAIServer
from tests.response_items import returned

pytestmark = pytest.mark.django_db

Item = dict[str, Any]


def user(text: str) -> Item:
    return {"role": "user", "content": text}


def add(session: Session, *items: Item) -> None:
    async_to_sync(session.add_items)(cast("Any", list(items)))


def get(session: Session, limit: int | None = None) -> list[Item]:
    return cast("list[Item]", async_to_sync(session.get_items)(limit))


def pop(session: Session) -> Item | None:
    return cast("Item | None", async_to_sync(session.pop_item)())


def handle(session: ConvMemorySession) -> Any:
    return memories["default"].session(session.session_id)


@pytest.fixture
def folded(settings: Any) -> Callable[[int], ConvMemorySession]:
    """Return a session with so many turns, whose older ones are folded."""

    def make(turns: int) -> ConvMemorySession:
        session = ConvMemorySession("folded")
        for number in range(turns):
            call_id = f"call_{number}"
            add(
                session,
                user(f"Question {number}. {WORDS}"),
                thought("hm", number),
                called(call_id, "look_up"),
                returned(call_id, WORDS),
                said(f"Answer {number}.", number),
            )
        assert handle(session).compact() == "published"
        return session

    return make


@pytest.fixture
def session() -> ConvMemorySession:
    return ConvMemorySession("main")


# The session by itself.

# The oldest version that we support takes no dict for the settings.
SETTINGS: list[Any] = [SessionSettings(limit=3)]
if hasattr(session_settings, "coerce_session_settings"):
    SETTINGS.append({"limit": 3})


@given(response_items.sequences(), st.data())
def test_it_does_what_the_sessions_of_the_sdk_do(sequence: list[Item], data: st.DataObject) -> None:
    """As long as nothing is folded."""
    ours, theirs = ConvMemorySession("same", view="history"), SQLiteSession("same")
    async_to_sync(ours.clear_session)()
    both: tuple[Session, Session] = (ours, theirs)
    try:
        for item in sequence:
            for session in both:
                add(session, item)
            if data.draw(st.integers(0, 4)) == 0:
                assert pop(ours) == pop(theirs)
            limit = data.draw(st.sampled_from([None, 0, 1, 3]))
            assert get(ours, limit) == get(theirs, limit)
    finally:
        theirs.close()


@pytest.mark.usefixtures("limit")
@given(agent_scripts.turns(min_size=3, max_size=6))
def test_after_a_fold_the_budget_is_held_and_each_call_has_its_result(turns: list[Turn]) -> None:
    session = ConvMemorySession(agent_scripts.new_key())
    added: list[Item] = []

    for turn in turns:
        add(session, *items_of(turn))
        added += items_of(turn)
        handle(session).compact()

        context, shown = handle(session).load(), get(session)
        assert unmatched(shown) == []
        count = memories["default"].counter.count
        # As an item, the summary has a few tokens more.
        assert sum(count(responses_items.message(item)) for item in shown) <= context.tokens + 5
        assert context.over_budget or context.tokens <= 2 * LIMIT
    assert get(ConvMemorySession(session.session_id, view="history")) == added


def items_of(turn: Turn) -> list[Item]:
    items = [user(turn.said)]
    for number, step in enumerate(turn.steps):
        items += [thought(step.thought, number)] if step.thought else []
        items += [said(step.text, number)] if step.text else []
        items += [called(call.id, "look_up", word=call.word) for call in step.calls]
        items += [returned(call.id, "a word") for call in reversed(step.calls)]
    return items


def test_it_is_a_session_of_the_sdk(session: ConvMemorySession) -> None:
    assert isinstance(session, Session)
    assert is_openai_responses_compaction_aware_session(session)


def test_no_items_are_no_change() -> None:
    add(ConvMemorySession("main"))

    assert not models.Session.objects.exists()


def test_after_a_fold_the_summary_is_an_item_and_the_history_has_every_item(
    folded: Callable[[int], ConvMemorySession],
) -> None:
    session = folded(12)

    context, history = get(session), get(ConvMemorySession(session.session_id, view="history"))

    assert len(history) == 60
    summary, *tail = context
    assert summary["role"] == "system"
    assert summary["content"].startswith(memories["default"].options.summary_prefix)
    assert 0 < len(tail) < 60
    assert tail == history[-len(tail) :]
    assert unmatched(context) == unmatched(history) == []


def test_a_late_result_of_a_folded_call_is_not_given(folded: Callable[[int], ConvMemorySession]) -> None:
    session = ConvMemorySession("folded")
    add(session, called("late", "look_up"), user("Never mind."), said("As you like."))
    folded(12)
    add(session, returned("late", "at last"), user("Thanks."))

    assert unmatched(get(session)) == []
    assert get(session)[-1] == user("Thanks.")
    assert returned("late", "at last") in get(ConvMemorySession("folded", view="history"))


def test_a_call_that_waits_is_given(session: ConvMemorySession) -> None:
    add(session, user("Book it."), called("a", "book"))

    assert get(session) == [user("Book it."), called("a", "book")]


def test_a_limit_gives_the_last_items_as_they_came(folded: Callable[[int], ConvMemorySession]) -> None:
    session = folded(12)
    history = get(ConvMemorySession(session.session_id, view="history"))

    for limit in (0, 1, 7, 60, 1000):
        assert get(session, limit) == history[60 - min(limit, 60) :]


@pytest.mark.parametrize("given_as", SETTINGS)
def test_a_limit_in_the_settings_is_kept_and_warned_about_once(given_as: Any, caplog: pytest.LogCaptureFixture) -> None:
    openai_agents._warn_of_limit.cache_clear()
    session = ConvMemorySession("main", session_settings=given_as)
    items = [user(f"Number {number}.") for number in range(9)]
    add(session, *items)

    with caplog.at_level(logging.WARNING):
        assert get(session) == items[-3:]
        assert get(session, 2) == items[-2:]

    assert [record.getMessage()[:31] for record in caplog.records] == ["The session settings have a lim"]


def test_the_last_item_is_popped(folded: Callable[[int], ConvMemorySession]) -> None:
    session = folded(12)
    history = get(ConvMemorySession(session.session_id, view="history"))

    while history:
        assert pop(session) == history.pop()
        assert get(ConvMemorySession(session.session_id, view="history")) == history
    assert pop(session) is None
    assert get(session) == []


def test_a_cleared_session_is_empty_and_can_be_used(folded: Callable[[int], ConvMemorySession]) -> None:
    session = folded(12)

    async_to_sync(session.clear_session)()
    assert get(session) == []
    add(session, user("Again."))

    assert get(session) == [user("Again.")]


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("prefix", ["Summary so far:\n", ""])
def test_the_memorys_own_summary_is_not_stored(
    role: str, prefix: str, settings: Any, folded: Callable[[int], ConvMemorySession]
) -> None:
    options = {"max_token_limit": 200, "summary_role": role, "summary_prefix": prefix}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    session = folded(12)
    summary, last = get(session)[0], user("What else?")
    assert summary["role"] == role

    add(session, summary, last)
    add(session, summary)

    assert get(session, 2) == [said("Answer 11.", 11), last]


def test_a_user_may_write_what_the_prefix_of_a_summary_says(
    settings: Any, folded: Callable[[int], ConvMemorySession]
) -> None:
    options = {"max_token_limit": 200, "summary_role": "user", "summary_prefix": "Summary:"}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    session = folded(12)

    add(session, user("Summary: what is that?"))

    assert get(session)[-1] == user("Summary: what is that?")


def test_system_items_are_not_pinned(session: ConvMemorySession) -> None:
    """Sites send one in each turn. Pinned messages are kept for ever, and there is room for 64."""
    for number in range(80):
        add(session, {"role": "developer", "content": f"It is day {number}."}, user("Hi"), said("Hi", number))

    assert handle(session).compact() == "published"

    assert len(get(session)) < 80
    assert len(get(ConvMemorySession("main", view="history"))) == 240


def test_what_is_redacted_does_not_come_back(session: ConvMemorySession) -> None:
    shell = {"type": "shell_call", "call_id": "b", "action": {"commands": ["cat secret"]}, "status": "completed"}
    output = {"type": "shell_call_output", "call_id": "b", "output": [{"stdout": "x", "outcome": {"type": "exit"}}]}
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "secret"}
    ran = {"type": "custom_tool_call_output", "call_id": "c", "output": "secret"}
    items = [user("secret"), thought("secret"), called("a", "look_up", word="secret"), returned("a", "secret")]
    items += [shell, output, custom, ran, said("secret")]
    add(session, *items)

    for position in (1, 2, 3, 4, 5, 8, 9):
        handle(session).redact(position)

    given = get(session)
    assert given == get(ConvMemorySession("main", view="history"))
    assert "secret" not in repr([item for item in given if item != custom])
    assert given[0] == {"type": "message", "role": "user", "content": REDACTED}
    assert given[1] == {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": "{}"}
    assert given[2] == {"type": "function_call_output", "call_id": "a", "output": REDACTED}
    # What answered a shell call that is gone has the form of any result.
    assert given[3]["type"] == "function_call"
    assert given[4]["type"] == "function_call_output"
    assert given[5:7] == [custom, {"type": "custom_tool_call_output", "call_id": "c", "output": REDACTED}]
    assert given[7] == {"type": "message", "role": "assistant", "content": REDACTED}
    assert unmatched(given) == []


def test_a_redacted_thought_is_not_the_last_item(session: ConvMemorySession) -> None:
    add(session, user("Hi"), thought("secret"))
    handle(session).redact(2)

    assert pop(session) == user("Hi")
    assert pop(session) is None


def test_messages_that_the_site_has_stored_are_given_too(session: ConvMemorySession) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    handle(session).append(
        ChatMessage.system("Be brief."),
        ChatMessage.human("What?"),
        ChatMessage.ai(tool_calls=[call]),
        ChatMessage.tool("42", "a"),
    )
    add(session, said("42."))

    assert get(session) == [
        {"type": "message", "role": "system", "content": "Be brief."},
        {"type": "message", "role": "user", "content": "What?"},
        {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "42"},
        said("42."),
    ]


def test_a_session_of_an_owner_is_not_read_by_another() -> None:
    ann, ben = (get_user_model().objects.create(username=name) for name in ("ann", "ben"))
    scopes: list[dict[str, Any]] = [{"owner": ann}, {"owner": ben}, {"visitor": "ann"}, {}]
    sessions = [ConvMemorySession("main", **scope) for scope in scopes]
    for number, session in enumerate(sessions):
        add(session, user(f"Of {number}."))

    assert [get(session) for session in sessions] == [[user(f"Of {number}.")] for number in range(4)]
    async_to_sync(sessions[0].clear_session)()
    assert [len(get(session)) for session in sessions] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"owner": None}, InvalidSession),
        ({"visitor": ""}, InvalidSession),
        ({"view": "all"}, InvalidArgument),
        ({"session_id": ""}, InvalidSession),
    ],
)
def test_wrong_arguments_are_refused(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        ConvMemorySession(**{"session_id": "main", **arguments})


def test_an_item_that_is_too_large_is_an_error_and_stores_nothing(session: ConvMemorySession) -> None:
    with pytest.raises(InvalidMessage):
        add(session, user("Before."), user("x" * 20_000_000))

    assert get(session) == []


def test_a_compaction_is_only_asked_for_if_it_is_forced(settings: Any) -> None:
    inline = {"BACKEND": "django_convmemory.scheduling.InlineScheduler"}
    session = ConvMemorySession("main")
    add(session, *[user(WORDS) for _ in range(20)])
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "SCHEDULER": inline}}
    session = ConvMemorySession("main")

    async_to_sync(session.run_compaction)({"response_id": "resp_1"})
    async_to_sync(session.run_compaction)()
    assert handle(session).load().summary is None
    async_to_sync(session.run_compaction)({"force": True})

    assert handle(session).load().summary is not None


# Through the runner.


@function_tool
def look_up(city: str) -> str:
    """Look up a city."""
    return f"{city}: 1 million people."


def test_a_run_stores_its_items_and_the_next_run_is_sent_them(server: OpenAIServer) -> None:
    calls = [thought("two"), called("a", "look_up", city="Köln"), called("b", "look_up", city="Bonn")]
    server.queue(response(*calls), response(said("One each.")), response(said("Goodbye.", 2)))
    ours, theirs = ConvMemorySession("main"), SQLiteSession("main")

    async def talk(model: OpenAIResponsesModel) -> None:
        guide = Agent("Guide", model=model, tools=[look_up])
        await Runner.run(guide, "How many?", session=ours)
        await Runner.run(guide, "Bye.", session=ours)
        server.queue(response(*calls), response(said("One each.")), response(said("Goodbye.", 2)))
        await Runner.run(guide, "How many?", session=theirs)
        await Runner.run(guide, "Bye.", session=theirs)

    talking(server, talk)

    assert get(ours) == get(theirs)
    theirs.close()
    assert [item.get("type") for item in get(ours)][:6] == [
        *(None, "reasoning", "function_call", "function_call"),
        *("function_call_output", "function_call_output"),
    ]
    sent = inputs(server)
    assert sent[:3] == sent[3:]
    assert unmatched(sent[2]) == []


def test_a_callback_that_passes_the_summary_on_does_not_store_it(
    server: OpenAIServer, folded: Callable[[int], ConvMemorySession]
) -> None:
    session = folded(12)
    [summary] = [item for item in get(session) if item.get("role") == "system"]

    def shorten(history: list[Any], new: list[Any]) -> list[Any]:
        # A copy, so that the SDK takes it for a new item.
        return [{"role": "system", "content": history[0]["content"] + " "}, *history[-2:], *new]

    server.queue(response(said("Yes.")))
    config = RunConfig(session_input_callback=shorten)
    talking(server, lambda model: Runner.run(Agent("Guide", model=model), "And?", session=session, run_config=config))

    [sent] = inputs(server)
    assert sent[0]["content"].strip() == summary["content"].strip()
    history = get(ConvMemorySession("folded", view="history"))
    assert len(history) == 62
    assert not [item for item in history if item.get("role") == "system"]


def test_a_failed_run_leaves_what_was_acknowledged(server: OpenAIServer) -> None:
    server.queue(response(called("a", "look_up", city="Köln")), response(said("A million.")))
    session = ConvMemorySession("main")

    async def talk(model: OpenAIResponsesModel) -> None:
        guide = Agent("Guide", model=model, tools=[look_up])
        with pytest.raises(MaxTurnsExceeded):
            await Runner.run(guide, "How many?", session=session, max_turns=1)
        assert (await session.get_items())[0] == user("How many?")
        await Runner.run(guide, "So?", session=session)

    talking(server, talk)

    assert unmatched(inputs(server)[-1]) == []
