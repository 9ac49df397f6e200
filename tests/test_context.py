from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_convmemory.context.assembly import Context, assemble
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage, spoken
from django_convmemory.rules import exchanges
from django_convmemory.rules.counters import Counters, Entry
from django_convmemory.rules.exchanges import NO_RESULT, MessageRef
from django_convmemory.rules.options import Options
from django_convmemory.rules.strategies import Buffer, Strategy, SummaryBuffer, SummaryWindow, TokenBuffer, Window
from django_convmemory.rules.values import Snapshot, SummaryVersion, shown_pinned
from django_convmemory.tokens import Utf8TokenCounter
from tests import conversations
from tests.conversations import call

COUNTER = Utf8TokenCounter()
STRATEGY = SummaryBuffer(1000)


class ToTheLimit(SummaryBuffer):
    """Leaves out no more than it must, each time."""

    trims_to = 1.0


def snapshot(
    conversation: list[ChatMessage],
    *,
    folded: int = 0,
    summary_tokens: int = 20,
    pinned_tokens: int = 2000,
    due: bool = False,
) -> Snapshot:
    """A session with these messages, and a summary of the first ``folded`` exchanges."""
    counters, rows = Counters().append([Entry(message, COUNTER.count(message)) for message in conversation])
    placed = [
        MessageRef(row.position, message, COUNTER.count(message), row.answers)
        for message, row in zip(conversation, rows, strict=True)
    ]
    unpinned = [row for row in placed if not row.message.pinned]
    starts = [*exchanges.starts(unpinned, counters.open_position), len(unpinned)]
    covered = unpinned[: starts[min(folded, max(0, len(starts) - 2))]]
    summary = None
    if covered:
        last = covered[-1].position
        tokens = sum(row.tokens for row in covered)
        summary = SummaryVersion(1, 1, last, "They spoke of Rust.", summary_tokens)
        counters = counters._replace(covered_position=last, covered_count=len(covered), covered_tokens=tokens)
    positions = shown_pinned(counters.pinned, pinned_tokens)
    pinned = [row for row in placed if row.position in positions]
    return Snapshot(1, counters, due, 1, 0, summary, pinned, unpinned[len(covered) :])


def put_together(snapshot: Snapshot | None, strategy: Strategy = STRATEGY, **arguments: Any) -> Context:
    options = arguments.pop("options", Options(max_context_tokens=arguments.pop("max_context_tokens", None)))
    return assemble(snapshot, strategy, options, COUNTER, **arguments)


def parts(context: Context) -> list[tuple[str, str]]:
    return [(part.name, part.message.text) for part in context.parts]


CHAT = [
    ChatMessage.system("Be brief."),
    ChatMessage.human("What is Rust?"),
    ChatMessage.ai("A systems language."),
    ChatMessage("developer", "Answer in English."),
    ChatMessage.human("And ownership?"),
    ChatMessage.ai("Each value has one owner."),
]


def test_the_order_is_system_pinned_summary_tail() -> None:
    context = put_together(snapshot(CHAT, folded=2), system="You are a teacher.")
    assert parts(context) == [
        ("system", "You are a teacher."),
        ("pinned", "Be brief."),
        ("pinned", "Answer in English."),
        ("summary", "Summary of earlier conversation: They spoke of Rust."),
        ("tail", "And ownership?"),
        ("tail", "Each value has one owner."),
    ]
    assert [message.role for message in context[:4]] == ["system", "system", "developer", "system"]
    assert [part.position for part in context.parts] == [None, 1, 4, None, 5, 6]
    assert context.summary == "They spoke of Rust."
    assert context.tokens == sum(part.tokens for part in context.parts)
    assert (context.omitted, context.over_budget, context.pending) == (0, False, False)


def test_a_context_is_a_sequence_of_messages() -> None:
    context = put_together(snapshot(CHAT[1:3]))
    assert len(context) == 2
    assert list(context) == [context[0], context[-1]] == context[:] == CHAT[1:3]
    assert CHAT[1] in context
    assert context == CHAT[1:3]
    assert context == put_together(snapshot(CHAT[1:3]))
    assert context != CHAT
    assert context.__eq__(tuple(CHAT[1:3])) is NotImplemented
    assert put_together(None) == []


def test_the_context_of_an_unknown_session_says_so() -> None:
    context = put_together(None)
    assert (context.summary, context.covered, context.omitted, context.tokens) == (None, 0, 0, 0)
    assert (context.over_budget, context.pending, context.revision) == (False, False, 0)
    prompt = ChatMessage.system("You are a teacher.")
    assert not put_together(None, system=prompt, max_tokens=COUNTER.count(prompt)).over_budget
    assert put_together(None, system=prompt, max_tokens=COUNTER.count(prompt) - 1).over_budget


def test_a_context_says_what_its_summary_stands_for_and_of_which_revision_it_is() -> None:
    held = snapshot(CHAT, folded=2)
    assert held.summary is not None
    context = put_together(held)
    assert context.covered == held.summary.last_position
    assert context.revision == held.revision
    assert [message.kind for message in context].count("summary") == 1
    # With no room for the summary, the context stands for nothing but its messages.
    without = put_together(held, max_tokens=0)
    assert (without.summary, without.covered) == (None, 0)


def test_an_empty_prompt_is_none() -> None:
    assert put_together(snapshot(CHAT[1:3]), system="") == CHAT[1:3]


def test_a_stored_message_counts_as_it_did_at_append() -> None:
    held = snapshot([ChatMessage.human("Hi."), ChatMessage.ai(tool_calls=[call("a")]), ChatMessage.tool("1", "a")])
    stored = held._replace(tail=[row._replace(tokens=1000) for row in held.tail])
    assert put_together(stored).tokens == 3000


def test_further_lines_of_a_message_are_indented() -> None:
    context = put_together(snapshot([ChatMessage.human("one\ntwo"), ChatMessage.ai("three")]))
    assert context.to_text() == "user: one\n  two\nassistant: three"


def test_the_prefix_of_the_summary_is_an_option() -> None:
    context = put_together(snapshot(CHAT, folded=2), options=Options(summary_prefix="So far: "))
    assert ("summary", "So far: They spoke of Rust.") in parts(context)


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_the_role_of_the_summary_is_an_option(role: str) -> None:
    context = put_together(snapshot(CHAT, folded=2), options=Options(summary_role=role))
    (summary,) = [part.message for part in context.parts if part.name == "summary"]
    assert (summary.role, summary.kind) == (role, "summary")
    assert {"role": role, "content": "Summary of earlier conversation: They spoke of Rust."} in context.to_openai()


def test_a_summary_of_the_user_is_part_of_no_system_message() -> None:
    options = Options(summary_role="user", roles="alternating")
    context = put_together(snapshot(CHAT, folded=2), system="Be brief.", options=options)
    first, second, *_ = context.to_openai()
    system = "Be brief.\n\nBe brief.\n\nAnswer in English."
    assert first == {"role": "system", "content": system}
    assert second["role"] == "user"
    assert str(second["content"]).startswith("Summary of earlier conversation: They spoke of Rust.")
    assert "\n\n".join(block["text"] for block in context.to_anthropic()["system"]) == system


def test_pending_says_that_a_compaction_is_due() -> None:
    assert put_together(snapshot(CHAT, due=True)).pending


@pytest.mark.parametrize(
    "system",
    [
        {"role": "system", "content": "Be kind."},
        ChatMessage("developer", "Be kind."),
        ChatMessage.system([{"type": "text", "text": "Be kind."}]),
    ],
)
def test_the_sites_own_prompt_is_a_text_or_a_message(system: Any) -> None:
    assert parts(put_together(snapshot(CHAT[1:3]), system=system))[0] == ("system", "Be kind.")


@pytest.mark.parametrize(
    "system",
    [
        ChatMessage.human("Hi."),
        ChatMessage.ai(tool_calls=[call("a")]),
        {"role": "tool", "content": "", "tool_call_id": "a"},
    ],
)
def test_the_sites_own_prompt_is_not_of_another_role(system: Any) -> None:
    with pytest.raises(InvalidMessage, match="system"):
        put_together(snapshot(CHAT), system=system)
    with pytest.raises(InvalidMessage, match="system"):
        put_together(None, system=system)


def cost(context: Context, *names: str) -> int:
    return sum(part.tokens for part in context.parts if part.name in names)


def test_left_out_first_are_the_oldest_exchanges_then_the_summary() -> None:
    held = snapshot(CHAT, folded=1)
    whole = put_together(held, system="You are a teacher.")
    contexts: list[list[str]] = []
    for budget in range(whole.tokens, -1, -1):
        names = [
            text
            for _, text in parts(put_together(held, ToTheLimit(1000), system="You are a teacher.", max_tokens=budget))
        ]
        if not contexts or contexts[-1] != names:
            contexts.append(names)
    front = ["You are a teacher.", "Be brief.", "Answer in English."]
    summary = ["Summary of earlier conversation: They spoke of Rust."]
    tail = ["A systems language.", "And ownership?", "Each value has one owner."]
    assert contexts == [
        [*front, *summary, *tail],
        [*front, *summary, *tail[1:]],
        [*front, *summary, *tail[2:]],
        [*front, *tail[2:]],
    ]


def test_max_tokens_bounds_all_and_the_option_all_but_system() -> None:
    held = snapshot([*CHAT, *CHAT[1:3] * 4])
    whole = put_together(held, system="You are a teacher.")
    stored = cost(whole, "pinned", "summary", "tail")

    def shown(**arguments: Any) -> int:
        return len(put_together(held, ToTheLimit(1000), **arguments))

    assert shown(system="You are a teacher.", max_context_tokens=stored) == len(whole)
    assert shown(system="You are a teacher.", max_context_tokens=stored - 1) == len(whole) - 1
    assert shown(system="You are a teacher.", max_tokens=whole.tokens) == len(whole)
    assert shown(system="You are a teacher.", max_tokens=stored) < len(whole)
    # The argument of the call overrides the option.
    assert shown(max_tokens=whole.tokens, max_context_tokens=1) == len(whole) - 1


def test_what_may_never_be_left_out_is_returned_and_over_budget_says_so() -> None:
    context = put_together(snapshot(CHAT, folded=2), system="You are a teacher.", max_tokens=0)
    assert [name for name, _ in parts(context)] == ["system", "pinned", "pinned", "tail"]
    assert context[-1] == CHAT[-1]
    assert context.over_budget
    assert context.summary is None
    exact = put_together(snapshot(CHAT, folded=2), system="You are a teacher.", max_tokens=context.tokens)
    assert (exact.over_budget, len(exact)) == (False, len(context))


def test_a_pinned_message_larger_than_its_share_takes_no_room_from_the_rest() -> None:
    """Otherwise messages would be neither shown nor folded."""
    long = ChatMessage.system("word " * 60)
    held = snapshot([long, *CHAT[1:]], folded=1)
    rest = cost(put_together(held), "summary", "tail")
    most = -(-4 * rest // 3)
    context = put_together(held, max_context_tokens=most)
    assert (context.omitted, context.summary, context.over_budget) == (0, "They spoke of Rust.", True)
    assert put_together(held, max_context_tokens=context.tokens).over_budget is False


def test_omitted_counts_what_is_shown_neither_itself_nor_through_the_summary() -> None:
    held = snapshot([message for message in CHAT if not message.pinned], folded=2)
    stored = put_together(held).tokens
    assert put_together(held).omitted == 0
    assert put_together(held, max_context_tokens=stored - 1).omitted == 1
    # Without the summary, the messages that it stands for are omitted as well.
    assert put_together(held, max_context_tokens=1).omitted == 3
    assert put_together(snapshot(CHAT, pinned_tokens=0)).omitted == 1
    assert put_together(snapshot(CHAT), Window(1)).omitted == 3
    assert put_together(snapshot(CHAT), TokenBuffer(1)).omitted == 4


def test_a_call_that_still_runs_is_shown_with_a_result_that_counts() -> None:
    context = put_together(snapshot([ChatMessage.ai(tool_calls=[call("a")]), ChatMessage.human("Well?")]))
    assert [message.text for message in context] == ["", NO_RESULT, "Well?"]
    assert context[1].tool_call_id == "a"
    assert context.parts[1].tokens == COUNTER.count(context[1])
    assert context.parts[1].position is None or context.parts[1].position == 0
    assert context.omitted == 0


@given(st.integers(0, 20), st.integers(1, 12))
def test_what_a_summary_covers_takes_no_place_of_a_message_after_it(folded: int, kept: int) -> None:
    held = snapshot([ChatMessage.human("Hi.")] * (folded + kept), folded=folded)
    context = put_together(held, SummaryWindow(3))
    assert (cost(context, "tail"), context.omitted) == (kept * COUNTER.count(ChatMessage.human("Hi.")), 0)


strategies = st.one_of(
    st.just(STRATEGY),
    st.just(Buffer()),
    st.builds(Window, st.integers(0, 6)),
    st.builds(TokenBuffer, st.integers(0, 80)),
)
budgets = st.none() | st.integers(-5, 300)


@given(conversations.conversations(), st.integers(0, 4), strategies, budgets, st.none() | st.integers(1, 300))
def test_any_context_is_well_formed_and_within_its_budget(
    conversation: list[ChatMessage], folded: int, strategy: Strategy, max_tokens: int | None, option: int | None
) -> None:
    held = snapshot(conversation, folded=folded if strategy is STRATEGY else 0)
    context = put_together(held, strategy, system="Be kind.", max_tokens=max_tokens, max_context_tokens=option)
    assert conversations.is_well_formed(context)
    assert context.tokens == sum(part.tokens for part in context.parts)
    for part in context.parts:
        assert part.tokens == (20 if part.name == "summary" else COUNTER.count(part.message))
    if not context.over_budget:
        assert max_tokens is None or context.tokens <= max_tokens
        assert max_tokens is not None or option is None or cost(context, "pinned", "summary", "tail") <= option
    positions = {part.position for part in context.parts if part.position}
    through = held.counters.covered_position if context.summary else 0
    hidden = set(range(1, len(conversation) + 1)) - positions
    pinned = {pinned_message.position for pinned_message in held.counters.pinned}
    assert context.omitted == len([row for row in hidden if row > through or row in pinned])


@given(conversations.conversations(min_size=1), st.integers(0, 4), budgets)
def test_system_pinned_and_the_newest_exchange_are_in_any_context(
    conversation: list[ChatMessage], folded: int, max_tokens: int | None
) -> None:
    held = snapshot(conversation, folded=folded)
    context = put_together(held, system="Be kind.", max_tokens=max_tokens)
    positions = {part.position for part in context.parts}
    newest = held.counters.newest_position
    assert context[0].text == "Be kind."
    assert {row.position for row in held.pinned} <= positions
    assert newest == 0 or newest in positions
    arranged = exchanges.well_formed(row for row in held.tail if row.position >= newest)
    assert [row.message for row in arranged] == [part.message for part in context.parts if part.name == "tail"][
        len([part for part in context.parts if part.name == "tail"]) - len(arranged) :
    ]
    if context.over_budget:
        assert context.summary is None
        assert len([part for part in context.parts if part.name == "tail"]) == len(arranged)


def test_merged_system_messages_are_one_text() -> None:
    context = put_together(snapshot(CHAT, folded=2), system="You are a teacher.", options=Options(roles="one_system"))
    wire = context.to_openai()
    assert [message["role"] for message in wire] == ["system", "user", "assistant"]
    assert wire[0] == {
        "role": "system",
        "content": "You are a teacher.\n\nBe brief.\n\nAnswer in English.\n\n"
        "Summary of earlier conversation: They spoke of Rust.",
    }
    assert [message["role"] for message in context.to_openai("any")][:3] == ["system", "system", "developer"]


def test_merged_system_messages_with_content_parts_keep_them() -> None:
    part = {"type": "text", "text": "You are a teacher.", "cache_control": {"type": "ephemeral"}}
    context = put_together(snapshot(CHAT[:3]), system=ChatMessage.system([part]))
    assert context.to_openai("one_system")[0] == {
        "role": "system",
        "content": [part, {"type": "text", "text": "Be brief."}],
    }


def test_a_single_system_message_is_merged_with_nothing() -> None:
    context = put_together(
        None, system=ChatMessage.system("Be brief.", name="site"), options=Options(roles="one_system")
    )
    assert context.to_openai() == [{"role": "system", "content": "Be brief.", "name": "site"}]


@pytest.mark.parametrize("count", [1, 2])
def test_developer_messages_are_merged_into_a_system_message(count: int) -> None:
    held = snapshot([ChatMessage("developer", "Be brief.")] * count)
    assert put_together(held).to_openai("one_system") == [
        {"role": "system", "content": "\n\n".join(["Be brief."] * count)}
    ]


@pytest.mark.parametrize("calls", [None, []])
def test_an_empty_list_of_calls_is_not_sent(calls: object) -> None:
    reply = ChatMessage.from_openai({"role": "assistant", "content": "Hello.", "tool_calls": calls})
    refusal = ChatMessage.from_openai({"role": "assistant", "content": None, "refusal": "No.", "tool_calls": calls})
    assert put_together(snapshot([reply, refusal])).to_openai() == [
        {"role": "assistant", "content": "Hello."},
        {"role": "assistant", "content": None, "refusal": "No."},
    ]


def test_what_to_openai_returns_is_the_callers_own() -> None:
    context = put_together(snapshot(CHAT))
    context.to_openai()[0]["content"] = "changed"
    context.to_openai().clear()
    assert context.to_openai()[0]["content"] == "Be brief."


def test_to_text_is_lines_of_role_and_text() -> None:
    conversation = [ChatMessage.human("Look it up."), ChatMessage.ai(tool_calls=[call("a", '{"x": 1}')])]
    assert put_together(snapshot([*CHAT[:2], *conversation])).to_text() == (
        "system: Be brief.\nuser: What is Rust?\nuser: Look it up.\n"
        f'assistant: [calls look_up({{"x": 1}})]\ntool: {NO_RESULT}'
    )
    assert put_together(None).to_text() == ""


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (ChatMessage.ai(), ""),
        (ChatMessage.human([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "x"}]), "a\n[image_url]"),
        (ChatMessage.ai("a", tool_calls=[{"id": "c"}]), "a\n[calls a tool()]"),
        (ChatMessage.ai(tool_calls=[{"id": "c", "custom": {"name": "run", "input": "ls"}}]), "[calls run(ls)]"),
        (ChatMessage.ai(tool_calls=[{"id": "c", "function": None}]), "[calls a tool()]"),
        (ChatMessage.ai(tool_calls=[{"id": "c", "function": ["run"]}]), "[calls a tool()]"),
    ],
)
def test_what_a_message_says_in_one_text(message: ChatMessage, text: str) -> None:
    assert spoken(message) == text
