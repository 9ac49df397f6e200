from __future__ import annotations

import pytest
from hypothesis import example, given, strategies as st

from django_convmemory.messages import ChatMessage
from django_convmemory.rules import exchanges
from django_convmemory.rules.exchanges import NO_RESULT, REDACTED, MessageRef, Turn
from tests import conversations
from tests.conversations import call


def unpinned(conversation: list[ChatMessage]) -> tuple[int, list[MessageRef]]:
    """The position of the open exchange, or 0, and the messages that are not pinned."""
    counters, rows = conversations.placed(conversation)
    return counters.open_position, [row for row in rows if not row.message.pinned]


def by_definition(rows: list[MessageRef]) -> list[list[int]]:
    """The positions of each exchange, by its definition. The counters are not used.

    An exchange is one message, or an assistant message with tool calls and everything up to the last tool message
    that answers it. It goes on to the end while a call is unanswered and no other assistant message follows.
    """
    positions: list[list[int]] = []
    index = 0
    while index < len(rows):
        end = index + 1
        unanswered = list(rows[index].message.call_ids)
        if unanswered:
            for at in range(index + 1, len(rows)):
                message = rows[at].message
                if message.role == "assistant" or not unanswered:
                    break
                if message.role == "tool":
                    if message.tool_call_id in unanswered:
                        unanswered.remove(message.tool_call_id)
                    end = at + 1
            else:
                end = len(rows) if unanswered else end
        positions.append([row.position for row in rows[index:end]])
        index = end
    return positions


@given(conversations.conversations())
def test_exchanges_begin_where_the_definition_says(conversation: list[ChatMessage]) -> None:
    open_position, rows = unpinned(conversation)
    starts = exchanges.starts(rows, open_position)
    assert [rows[start].position for start in starts] == [exchange[0] for exchange in by_definition(rows)]


@given(conversations.conversations(), st.integers(0, 20))
def test_what_is_left_of_an_exchange_that_began_earlier_has_no_start(conversation: list[ChatMessage], cut: int) -> None:
    open_position, rows = unpinned(conversation)
    expected = [exchange[0] for exchange in by_definition(rows)]
    tail = rows[cut:]
    starts = exchanges.starts(tail, open_position)
    assert [tail[start].position for start in starts] == [
        position for position in expected if tail and position >= tail[0].position
    ]


@given(conversations.conversations())
def test_arranging_keeps_all_that_is_no_result_in_order(conversation: list[ChatMessage]) -> None:
    _, rows = unpinned(conversation)
    arranged = exchanges.well_formed(rows)
    assert [row for row in arranged if row.message.role != "tool"] == [
        row for row in rows if row.message.role != "tool"
    ]


@given(conversations.conversations())
def test_the_nth_result_with_an_id_answers_the_nth_call_with_it(conversation: list[ChatMessage]) -> None:
    _, rows = unpinned(conversation)
    arranged = exchanges.well_formed(rows)
    begins = [row.position if row.answers is None else row.answers for row in rows]
    made_at = {(at, call_id) for at, row in zip(begins, rows, strict=True) for call_id in row.message.call_ids}
    for exchange, call_id in made_at:
        made = [row.message.call_ids.count(call_id) for at, row in zip(begins, rows, strict=True) if at == exchange]
        results = [row for row in rows if (row.answers, row.message.tool_call_id) == (exchange, call_id)]
        calls = sum(made)
        answers = results[: calls - 1] + results[-1:] if len(results) >= calls else results
        missing = [MessageRef(0, ChatMessage.tool(NO_RESULT, call_id), 0, exchange)] * (calls - len(answers))
        shown = [row for row in arranged if (row.answers, row.message.tool_call_id) == (exchange, call_id)]
        assert shown == answers + missing


@given(conversations.conversations())
def test_arranging_twice_changes_nothing(conversation: list[ChatMessage]) -> None:
    arranged = exchanges.well_formed(unpinned(conversation)[1])
    assert exchanges.well_formed(arranged) == arranged


@given(conversations.conversations(), st.integers(0, 20), st.integers(0, 20))
@example([ChatMessage.ai(tool_calls=[call("a")]), ChatMessage.tool("1", "a")], 1, 2)
def test_in_any_part_every_call_has_its_result(conversation: list[ChatMessage], first: int, last: int) -> None:
    arranged = exchanges.well_formed(unpinned(conversation)[1][first:last])
    assert conversations.is_well_formed(row.message for row in arranged)


@pytest.mark.parametrize("content", ["", [{"type": "text", "text": ""}]])
def test_an_empty_result_is_a_result(content: str | list[dict[str, str]]) -> None:
    _, rows = unpinned([ChatMessage.ai(tool_calls=[call("a")]), ChatMessage.tool(content, "a")])
    assert exchanges.well_formed(rows) == rows


def test_arranging_leaves_the_rows_as_they_are() -> None:
    _, rows = unpinned([ChatMessage.ai(tool_calls=[call("a")]), ChatMessage.human("Wait."), ChatMessage.tool("1", "a")])
    before = list(rows)
    exchanges.well_formed(rows)
    assert rows == before


def test_a_model_is_shown_that_a_message_was_removed() -> None:
    assert exchanges.redacted(ChatMessage.human("", name="Anna")) == ChatMessage.human(REDACTED, name="Anna")
    for message in (ChatMessage.human("Hello."), ChatMessage.ai(tool_calls=[call("a")])):
        assert exchanges.redacted(message) == message


@pytest.mark.parametrize("first", [2, 9])
def test_nothing_begins_in_an_open_exchange_that_began_before(first: int) -> None:
    turns = [Turn(first, 1, 1, "tool"), Turn(first + 1, 1, None, "user")]
    assert exchanges.starts(turns, 1) == []
