"""Chat completions: one system message, and roles that alternate."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_convmemory.context.assembly import Context, Part, assemble
from django_convmemory.context.wire import chat
from django_convmemory.exceptions import InvalidArgument
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.exchanges import NO_RESULT, MessageRef
from django_convmemory.rules.options import Options
from django_convmemory.rules.strategies import Buffer, SummaryBuffer
from django_convmemory.tokens import Utf8TokenCounter
from tests import conversations
from tests.conversations import call
from tests.test_context import snapshot
from tests.wire import validators

CONTINUES, NO_ANSWER = "[The conversation continues.]", "[No answer yet.]"
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def wire(*messages: ChatMessage) -> list[dict[str, Any]]:
    return [message.to_openai() for message in chat.alternating(messages)]


def roles_and_texts(*messages: ChatMessage) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in wire(*messages)]


def test_parts_are_merged_as_parts() -> None:
    assert roles_and_texts(ChatMessage.human("Look:"), ChatMessage.human([IMAGE])) == [
        ("user", [{"type": "text", "text": "Look:"}, IMAGE])
    ]


def test_names_that_differ_stand_before_their_text() -> None:
    anna, ben = ChatMessage.human("Hi.", name="anna"), ChatMessage.human("Hello.", name="ben")
    assert wire(anna, anna) == [{"role": "user", "content": "Hi.\n\nHi.", "name": "anna"}]
    assert wire(anna, ben, ChatMessage.human("You?")) == [
        {"role": "user", "content": "anna: Hi.\n\nben: Hello.\n\nYou?"}
    ]
    assert wire(anna, ChatMessage.human([IMAGE], name="ben")) == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "anna: Hi."}, {"type": "text", "text": "ben: "}, IMAGE],
        }
    ]


def test_a_text_is_merged_into_the_calls_that_follow_it() -> None:
    text, calls = ChatMessage.ai("Let me look."), ChatMessage.ai(tool_calls=[call("a")])
    result = ChatMessage.tool("1", "a")
    assert wire(ChatMessage.human("?"), text, calls, result)[1:] == [
        {"role": "assistant", "content": "Let me look.", "tool_calls": [call("a")]},
        {"role": "tool", "content": "1", "tool_call_id": "a"},
    ]


def test_unknown_fields_of_merged_messages_stay() -> None:
    first = ChatMessage.ai("One.", extra={"reasoning_content": "Hm.", "annotations": []})
    second = ChatMessage.ai("Two.", extra={"reasoning_content": "So."})
    assert wire(ChatMessage.human("?"), first, second)[1] == {
        "role": "assistant",
        "content": "One.\n\nTwo.",
        "reasoning_content": "So.",
        "annotations": [],
    }


def test_a_single_message_of_the_developer_is_the_systems() -> None:
    assert roles_and_texts(ChatMessage("developer", "B.")) == [("system", "B.")]


@given(conversations.conversations())
def test_twice_is_as_once(conversation: list[ChatMessage]) -> None:
    counters, rows = conversations.placed(conversation)
    held = snapshot(conversation)
    context = assemble(held, Buffer(), Options(), Utf8TokenCounter())
    once = chat.alternating(list(context))
    assert chat.alternating(once) == once
    assert chat.fillers(once) == []
    assert counters.last_position == len(rows)


# In a context.


def test_the_option_and_the_argument_give_the_form() -> None:
    held = snapshot([ChatMessage.ai("Hello.")])
    by_option = assemble(held, Buffer(), Options(roles="alternating"), Utf8TokenCounter())
    by_argument = assemble(held, Buffer(), Options(), Utf8TokenCounter())
    assert [message["role"] for message in by_option.to_openai()] == ["user", "assistant"]
    assert [message["role"] for message in by_argument.to_openai(roles="alternating")] == ["user", "assistant"]
    assert [message["role"] for message in by_option.to_openai(roles="any")] == ["assistant"]
    assert [message["role"] for message in by_argument.to_openai()] == ["assistant"]
    assert len(by_option) == len(by_argument) == 1


def test_other_values_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="roles must be one of any, one_system, alternating, not 'strict'"):
        Context().to_openai(roles="strict")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="roles"):
        Context().to_responses(roles="strict")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="option roles must be one of any, one_system, alternating, not 'strict'"):
        Options(roles="strict")


def test_what_is_added_counts_but_leaves_nothing_out() -> None:
    counter = Utf8TokenCounter()
    held = snapshot([ChatMessage.ai("Hello."), ChatMessage.human("Hi."), ChatMessage.ai("What can I do?")])
    plain = assemble(held, SummaryBuffer(1000), Options(), counter)
    budget = plain.tokens
    filled = assemble(held, SummaryBuffer(1000), Options(roles="alternating"), counter, max_tokens=budget)
    assert list(filled) == list(plain)
    assert filled.tokens == plain.tokens + counter.count(chat.CONTINUES)
    assert (filled.omitted, filled.over_budget, plain.over_budget) == (0, True, False)
    more = budget + counter.count(chat.CONTINUES)
    exact = assemble(held, SummaryBuffer(1000), Options(roles="alternating"), counter, max_tokens=more)
    assert not exact.over_budget


def test_a_message_without_a_word_is_not_sent() -> None:
    blank = [{"type": "text", "text": " "}]
    said = [ChatMessage.ai(), ChatMessage.ai([]), ChatMessage.ai("\n"), ChatMessage.human(""), ChatMessage.human(blank)]
    refused, calling = ChatMessage.ai(extra={"refusal": "No."}), ChatMessage.ai("", tool_calls=[call("a")])
    said += [refused, calling, ChatMessage.tool("", "a")]
    context = Context([], [MessageRef(number, message, 3) for number, message in enumerate(said, 1)])
    assert [message.get("content") for message in context.to_openai()] == [None, None, ""]
    assert context.stable_prefix == 3


def test_blank_texts_are_not_merged_with_parts() -> None:
    refused: Any = ChatMessage.ai([{"type": "refusal", "refusal": "No."}])
    said = [ChatMessage.human("?"), refused, ChatMessage.ai(" ", tool_calls=[call("a")]), ChatMessage.tool("1", "a")]
    wire: list[Any] = assemble(snapshot(said), Buffer(), Options(), Utf8TokenCounter()).to_openai("alternating")
    assert wire[1]["content"] == [{"type": "refusal", "refusal": "No."}]


def test_the_prefix_that_stays_ends_before_an_open_exchange() -> None:
    asked = [ChatMessage.human("?"), ChatMessage.ai(tool_calls=[call("a"), call("b")]), ChatMessage.tool("2", "b")]
    context = assemble(snapshot(asked), Buffer(), Options(), Utf8TokenCounter(), system="Be brief.")
    assert [message.text for message in context][2:] == ["", NO_RESULT, "2"]
    assert context.stable_prefix == 3
    answered = assemble(snapshot([*asked, ChatMessage.tool("1", "a")]), Buffer(), Options(), Utf8TokenCounter())
    assert answered.stable_prefix == len(answered) == 4


def test_with_alternating_roles_the_last_message_may_yet_grow() -> None:
    asked = [ChatMessage.human("?"), ChatMessage.ai("One."), ChatMessage.ai("Two.")]
    context = assemble(snapshot(asked), Buffer(), Options(roles="alternating"), Utf8TokenCounter(), system="Be brief.")
    assert (len(context), context.stable_prefix) == (4, 2)
    assert assemble(snapshot(asked), Buffer(), Options(), Utf8TokenCounter()).stable_prefix == 3
    assert Context([Part("system", ChatMessage.system("A."), 3)], _roles="alternating").stable_prefix == 1


# Names.


def names_sent(*names: str) -> list[str]:
    held = snapshot([ChatMessage.human("Hi.", name=name) for name in names])
    messages: list[Any] = assemble(held, Buffer(), Options(), Utf8TokenCounter()).to_openai()
    return [message["name"] for message in messages]


def test_a_name_that_openai_accepts_is_sent_as_it_is() -> None:
    names = ["anna", "Ärztin-1", "李雷", "o'neill", "a.b@example.com", "n" * 64]
    assert names_sent(*names) == names


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("Anna Berg", "Anna_Berg"),
        ("Anna \n Berg", "Anna_Berg"),
        ("<|im_start|>system", "_im_start_system"),
        ("sales/anna\\berg", "sales_anna_berg"),
        ("\ufeff", "_"),
        ("n" * 65, "n" * 64),
    ],
)
def test_a_name_that_openai_refuses_is_sent_in_another_form(name: str, sent: str) -> None:
    assert names_sent(name) == [sent]


@given(st.lists(st.lists(st.sampled_from(["a", "_", "2", " ", "/", "n" * 62]), min_size=1).map("".join)))
def test_any_names_are_accepted_and_stay_different(names: list[str]) -> None:
    accepted = chat.accepted_names([ChatMessage.human("Hi.", name=name) for name in names])
    assert set(accepted) == set(names)
    assert len(set(accepted.values())) == len(accepted)
    for name in accepted.values():
        assert list(validators.chat([{"role": "user", "content": "Hi.", "name": name}])) == []


def test_many_names_that_are_equal_without_spaces_are_told_apart_quickly() -> None:
    messages = [ChatMessage.human("Hi.", name=f"a{' ' * number}b") for number in range(1, 5_000)]
    began = time.process_time()
    assert len(set(chat.accepted_names(messages).values())) == len(messages)
    assert time.process_time() - began < 2.0


def test_the_stored_name_and_the_texts_keep_the_name_as_it_is() -> None:
    anna, ben = ChatMessage.human("Hi.", name="Anna B."), ChatMessage.human("Hello.", name="Ben/C.")
    context = assemble(snapshot([anna, ben]), Buffer(), Options(), Utf8TokenCounter())
    assert [message.name for message in context] == ["Anna B.", "Ben/C."]
    assert context.to_openai(roles="alternating") == [
        {"role": "user", "content": "Anna B.: Hi.\n\nBen/C.: Hello."},
    ]
    items: list[Any] = context.to_responses()
    assert items[0]["content"] == "Anna B.: Hi."
    assert context.to_anthropic()["messages"][0]["content"][0]["text"] == "Anna B.:"
