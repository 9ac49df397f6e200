"""The session of the OpenAI Agents SDK, by itself and through the SDK's runner."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from agents import Agent, MaxTurnsExceeded, OpenAIResponsesModel, Runner, SQLiteSession, function_tool
from agents.memory import Session, SessionSettings, session_settings
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


def folded() -> ConvMemorySession:
    """Return a session whose older turns are folded."""
    session = ConvMemorySession("folded")
    for number in range(12):
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
        tail = [item for item in shown if item.get("role") != "system"]
        assert tail == added[len(added) - len(tail) :]
    assert get(ConvMemorySession(session.session_id, view="history")) == added


def items_of(turn: Turn) -> list[Item]:
    items = [user(turn.said)]
    for number, step in enumerate(turn.steps):
        items += [thought(step.thought, number)] if step.thought else []
        items += [said(step.text, number)] if step.text else []
        items += [called(call.id, "look_up", word=call.word) for call in step.calls]
        items += [returned(call.id, "a word") for call in reversed(step.calls)]
    return items


def test_no_items_are_no_change() -> None:
    add(ConvMemorySession("main"))

    assert not models.Session.objects.exists()


def test_a_late_result_of_a_folded_call_is_not_given() -> None:
    session = ConvMemorySession("folded")
    add(session, called("late", "look_up"), user("Never mind."), said("As you like."))
    folded()
    add(session, returned("late", "at last"), user("Thanks."))

    assert unmatched(get(session)) == []
    assert get(session)[-1] == user("Thanks.")
    assert returned("late", "at last") in get(ConvMemorySession("folded", view="history"))


def test_a_call_that_waits_is_given(session: ConvMemorySession) -> None:
    add(session, user("Book it."), called("a", "book"))

    assert get(session) == [user("Book it."), called("a", "book")]


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


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("prefix", ["Summary so far:\n", ""])
def test_the_memorys_own_summary_is_not_stored(role: str, prefix: str, settings: Any) -> None:
    options = {"max_token_limit": 200, "summary_role": role, "summary_prefix": prefix}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    session = folded()
    summary, last = get(session)[0], user("What else?")
    assert (summary["role"], summary["content"].startswith(prefix)) == (role, True)
    # A site that passes it on may have changed its end. A user could have written that.
    end = " " if prefix and role != "user" else ""

    add(session, summary, last)
    add(session, {**summary, "content": summary["content"] + end})

    assert get(session, 2) == [said("Answer 11.", 11), last]


def test_a_user_may_write_what_the_prefix_of_a_summary_says(settings: Any) -> None:
    options = {"max_token_limit": 200, "summary_role": "user", "summary_prefix": "Summary:"}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    session = folded()

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
    items = [user("secret"), thought("secret"), called("a", "look_up", word="secret"), returned("a", "secret")]
    add(session, *items, said("secret"))

    for position in range(1, 6):
        handle(session).redact(position)

    given = get(session)
    assert given == get(ConvMemorySession("main", view="history"))
    assert given == [
        {"type": "message", "role": "user", "content": REDACTED},
        {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": REDACTED},
        {"type": "message", "role": "assistant", "content": REDACTED},
    ]


def test_a_redacted_thought_is_not_the_last_item(session: ConvMemorySession) -> None:
    add(session, user("Hi"), thought("secret"))
    handle(session).redact(2)

    assert pop(session) == user("Hi")
    assert pop(session) is None


def test_messages_that_the_site_has_stored_are_given_too(session: ConvMemorySession) -> None:
    handle(session).append(ChatMessage.system("Be brief."), ChatMessage.human("What?"))
    add(session, said("42."))

    assert get(session) == [
        {"type": "message", "role": "system", "content": "Be brief."},
        {"type": "message", "role": "user", "content": "What?"},
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
