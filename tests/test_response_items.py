"""Items of OpenAI's Responses API: their chat messages, their exchanges, and that they come back as they were."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from django_convmemory.contrib.responses_items import items, message
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import ChatMessage, storable
from django_convmemory.rules import exchanges
from django_convmemory.rules.counters import Counters
from django_convmemory.tokens import IMAGE, LOW_DETAIL_IMAGE, UNKNOWN_FILE, Utf8TokenCounter
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
            [thought("hm"), said("assistant", "I look."), called("a"), returned("a", "1"), said("user", "?")],
            [[1, 2, 3, 4], [5]],
            id="a thought, a text and a call of one response",
        ),
        pytest.param(
            [
                thought("hm"),
                {"type": "web_search_call", "id": "ws_1", "action": {"query": "Rust"}},
                thought("so"),
                said("assistant", "1"),
                said("user", "?"),
                said("assistant", "!"),
            ],
            [[1, 2, 3, 4], [5], [6]],
            id="a thought, a search of the provider and a text",
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
    expected = storable(item)
    if item.get("call_id") == "":
        expected["call_id"] = "call"
    assert items([made]) == [expected]


def test_calls_with_one_id_or_none_are_all_given_with_their_results() -> None:
    for call_id in ("", "same"):
        sequence = [said("user", "?"), *[called(call_id) for _ in "ab"], *[returned(call_id, each) for each in "ab"]]
        _, rows = conversations.placed([message(item) for item in sequence])

        sent = [row.message for row in exchanges.well_formed(rows)]

        assert [each.text for each in sent if each.role == "tool"] == ["a", "b"]
        assert {item["call_id"] for item in items(sent)[1:]} == {call_id or "call"}


SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "Rust"}}


def plain(sequence: list[dict[str, Any]], *redacted: int) -> list[tuple[str, str | None]]:
    """What is sent of ``sequence`` after a redaction of some: the types, and the ids."""
    stored = [message(item) for item in sequence]
    shown = [exchanges.redacted(each.emptied()) if at in redacted else each for at, each in enumerate(stored)]
    return [(item.get("type", "message"), item.get("id")) for item in items(shown)]


def test_after_a_redaction_a_thought_is_sent_with_all_that_follows_it_or_not_at_all() -> None:
    """Providers refuse one of them without the others."""
    turn = [said("user", "?"), thought("hm"), said("assistant", "I look."), called("a"), returned("a", "1")]
    turn += [thought("so"), SEARCH, said("assistant", "1.")]
    whole = plain(turn)
    torn = [("message", None), ("function_call", None)]

    assert [item_id for _, item_id in whole] == [None, "rs_1", "msg_1", "fc_1", None, "rs_1", "ws_1", "msg_1"]
    for redacted in (1, 2, 3):
        assert plain(turn, redacted) == [whole[0], *torn, *whole[4:]]
    for redacted in (5, 6, 7):
        assert plain(turn, redacted) == [*whole[:5], ("message", None), ("message", None)]


def test_files_count_what_they_cost_and_are_never_sent_without_their_content() -> None:
    data = "a" * 400_000
    content = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "high"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}", "detail": "low"},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}},
        {"type": "own", "data": data},
    ]
    costs = [IMAGE, LOW_DETAIL_IMAGE, LOW_DETAIL_IMAGE, IMAGE, 6000, UNKNOWN_FILE, 187, 8000]
    count = Utf8TokenCounter().count
    for part, cost in zip(content, costs, strict=True):
        for item in ({"role": "user", "content": [part]}, {**returned("a", ""), "output": [part]}):
            assert cost <= count(message(item)) <= cost + 10

    [wire] = [message({"role": "user", "content": content}).to_openai()]

    forms = ["image", "image", None, "image", "document", "document", "audio", "own"]
    assert [part.get("text") for part in wire["content"]] == [form and f"[{form}]" for form in forms]


@pytest.mark.parametrize("item", [None, "text", 5, [said("user", "?")], object(), {}])
def test_what_is_no_item_is_refused(item: Any) -> None:
    with pytest.raises(InvalidMessage, match="not empty" if item == {} else "An item must be a dict"):
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
