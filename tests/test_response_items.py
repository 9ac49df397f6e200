"""Items of OpenAI's Responses API: their chat messages, their exchanges, and that they come back as they were."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_convmemory.contrib.responses_items import items, message
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage
from django_convmemory.rules import exchanges
from django_convmemory.rules.counters import Counters
from tests import conversations, response_items
from tests.response_items import called, returned, said, thought
from tests.test_counters import rewound_to


def exchanges_of(sequence: list[dict[str, Any]]) -> list[list[int]]:
    """The positions of the items of each exchange."""
    counters, rows = conversations.placed([message(item) for item in sequence])
    starts = exchanges.starts(rows, counters.open_position)
    ends = [*starts[1:], len(rows)]
    return [[row.position for row in rows[start:end]] for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        pytest.param(
            [called("a"), called("b"), called("c"), returned("b", ""), returned("a", ""), returned("c", "")],
            [[1, 2, 3, 4, 5, 6]],
            id="parallel calls",
        ),
        pytest.param(
            [said("user", "?"), thought("hm"), called("a"), returned("a", "1"), thought("so"), said("assistant", "1")],
            [[1], [2, 3, 4], [5, 6]],
            id="a thought belongs to what follows",
        ),
        pytest.param(
            [called("a"), thought("and"), called("b"), returned("a", ""), returned("b", "")],
            [[1, 2, 3, 4, 5]],
            id="a thought between two calls closes nothing",
        ),
        pytest.param(
            [called("a"), said("assistant", "I look."), returned("a", "")], [[1, 2, 3]], id="a text after a call"
        ),
        pytest.param(
            [called("a"), returned("a", ""), called("b"), returned("b", "")], [[1, 2], [3, 4]], id="one after the other"
        ),
        pytest.param(
            [called("a"), said("user", "wait"), called("b"), returned("a", ""), returned("b", "")],
            [[1], [2], [3, 4, 5]],
            id="after a user's word a call begins anew",
        ),
        pytest.param([returned("a", "x"), said("user", "?")], [[1], [2]], id="a result without its call"),
        pytest.param(
            [called("a"), called("b"), returned("a", ""), said("user", "?"), thought("hm"), said("assistant", "!")],
            [[1, 2, 3], [4], [5, 6]],
            id="a result that never came",
        ),
    ],
)
def test_exchanges(sequence: list[dict[str, Any]], expected: list[list[int]]) -> None:
    assert exchanges_of(sequence) == expected


@given(response_items.turns())
def test_the_calls_and_results_of_one_response_are_one_exchange(turns: list[list[dict[str, Any]]]) -> None:
    together = exchanges_of([item for items in turns for item in items])

    position = 1
    for of_turn in turns:
        linked = [
            position + index
            for index, item in enumerate(of_turn)
            if item.get("type") in ("function_call", "function_call_output")
        ]
        assert not linked or any(set(linked) <= set(exchange) for exchange in together)
        position += len(of_turn)


@given(response_items.sequences(), st.data())
def test_items_that_come_in_portions_are_placed_as_if_they_came_together(
    sequence: list[dict[str, Any]], data: st.DataObject
) -> None:
    conversation = [message(item) for item in sequence]
    position = data.draw(st.integers(0, len(conversation)))
    after, _ = Counters().append(conversations.entries(conversation))
    before, _ = Counters().append(conversations.entries(conversation[:position]))

    assert rewound_to(position, after, conversation) == before


@given(response_items.sequences())
def test_what_a_provider_is_sent_has_each_call_with_one_result(sequence: list[dict[str, Any]]) -> None:
    counters, rows = conversations.placed([message(item) for item in sequence])
    starts = [*exchanges.starts(rows, counters.open_position), len(rows)]

    for start, end in itertools.pairwise(starts):
        assert conversations.is_well_formed(row.message for row in exchanges.well_formed(rows[start:end]))


@given(response_items.sequences())
def test_items_come_back_equal(sequence: list[dict[str, Any]]) -> None:
    assert items([message(item) for item in sequence]) == sequence


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
FIELDS = ("type", "role", "content", "call_id", "id", "output", "arguments", "name", "action", "approval_request_id")


@given(
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.one_of(
            JSON,
            st.sampled_from(
                ["message", "function_call", "function_call_output", "custom_tool_call", "mcp_approval_response"]
            ),
        ),
    )
)
def test_any_json_object_is_a_message_or_a_clear_error(item: dict[str, Any]) -> None:
    try:
        made = message(item)
    except InvalidMessage:
        return
    assert items([made]) == [item]


@pytest.mark.parametrize("item", [None, "text", 5, [said("user", "?")], object()])
def test_what_is_no_item_is_refused(item: Any) -> None:
    with pytest.raises(InvalidMessage, match="An item must be a dict"):
        message(item)


def test_chat_messages_are_made_into_items() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    custom = {"id": "b", "type": "custom", "custom": {"name": "run", "input": "ls"}}
    chat = [
        ChatMessage.human("What?"),
        ChatMessage.ai("I look.", tool_calls=[call, custom]),
        ChatMessage.tool("42", "a"),
        ChatMessage.tool("bin", "b"),
    ]

    assert items(chat) == [
        {"type": "message", "role": "user", "content": "What?"},
        {"type": "message", "role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "a", "name": "look_up", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "b", "name": "run", "input": "ls"},
        {"type": "function_call_output", "call_id": "a", "output": "42"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "bin"},
    ]


def test_without_its_item_one_side_of_a_call_fits_the_other() -> None:
    """A redaction takes the item of one side only."""
    shell = {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}}
    shell_output = {"type": "shell_call_output", "call_id": "s", "output": [{"stdout": "bin"}]}
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"}
    custom_output = {"type": "custom_tool_call_output", "call_id": "c", "output": "bin"}
    sequence = [shell, shell_output, custom, custom_output]
    stored = [message(item) for item in sequence]
    forms = {
        at: [
            item["type"]
            for item in items([each.emptied() if at == index else each for index, each in enumerate(stored)])
        ]
        for at in range(4)
    }

    plain = ["function_call", "function_call_output"]
    special = ["shell_call", "shell_call_output"]
    customs = ["custom_tool_call", "custom_tool_call_output"]
    assert forms == {0: plain + customs, 1: plain + customs, 2: special + customs, 3: special + customs}


@pytest.mark.parametrize("text", [{}, {"text": None}, {"text": 5}])
@pytest.mark.parametrize("field", ["content", "output"])
def test_a_part_of_text_without_a_text_is_stored(field: str, text: dict[str, Any]) -> None:
    beginning = {"role": "user"} if field == "content" else {"type": "function_call_output", "call_id": "a"}
    item = {**beginning, field: [{"type": "text", **text}]}
    assert message(item).text == ""
    assert items([message(item)]) == [item]


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), {(1, 2): 3}])
@pytest.mark.parametrize("field", ["output", "action", "type"])
def test_an_item_that_is_no_json_is_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidMessage):
        message({"type": "shell_call_output", "call_id": "a", field: value})


def test_an_empty_item_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="not empty"):
        message({})
