from __future__ import annotations

import itertools
import time
import uuid
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from django_convmemory.exceptions import InvalidMessage, ToolResultRefused, TooManyPinned
from django_convmemory.messages import ChatMessage
from django_convmemory.rules import exchanges
from django_convmemory.rules.counters import (
    MAX_PINNED,
    Batch,
    Counters,
    Covered,
    Entry,
    Pinned,
    call_mark,
    new_ids,
    rewound,
)
from django_convmemory.rules.strategies import Threshold
from tests import conversations
from tests.conversations import call


def after(*messages: ChatMessage, start: Counters | None = None) -> Counters:
    """The counters after messages of 10 tokens each."""
    return (start or Counters()).append([Entry(message, 10) for message in messages])[0]


HUMAN, AI, SYSTEM = ChatMessage.human("Hi."), ChatMessage.ai("Hello."), ChatMessage.system("Be brief.")
CALLS_A, CALLS_AB = ChatMessage.ai(tool_calls=[call("a")]), ChatMessage.ai(tool_calls=[call("a"), call("b")])
RESULT_A, RESULT_B = ChatMessage.tool("1", "a"), ChatMessage.tool("2", "b")


@given(conversations.conversations(), st.lists(st.integers(0, 20), max_size=6))
def test_any_partition_into_batches_gives_the_same_counters_and_rows(
    conversation: list[ChatMessage], cuts: list[int]
) -> None:
    entries = conversations.entries(conversation)
    whole, rows = Counters().append(entries)
    edges = sorted({0, len(entries), *(min(cut, len(entries)) for cut in cuts)})
    piecewise, piecewise_rows = Counters(), []
    for first, last in itertools.pairwise(edges):
        piecewise, more = piecewise.append(entries[first:last])
        piecewise_rows += more
    assert piecewise == whole
    assert piecewise_rows == rows


@given(conversations.conversations())
def test_positions_have_no_gaps_and_totals_are_sums(conversation: list[ChatMessage]) -> None:
    entries = conversations.entries(conversation)
    counters, rows = Counters().append(entries)
    total = 0
    for position, (entry, row) in enumerate(zip(entries, rows, strict=True), start=1):
        total += 0 if entry.message.pinned else entry.tokens
        assert (row.position, row.tokens_through) == (position, total)
    unpinned = [entry for entry in entries if not entry.message.pinned]
    assert counters.last_position == len(entries)
    assert (counters.unpinned_count, counters.unpinned_tokens) == (len(unpinned), total)
    assert counters.pinned == tuple(
        Pinned(row.position, entry.tokens) for entry, row in zip(entries, rows, strict=True) if entry.message.pinned
    )


@given(conversations.conversations())
def test_a_result_answers_the_nearest_assistant_message_that_made_a_call_with_its_id(
    conversation: list[ChatMessage],
) -> None:
    _, rows = Counters().append(conversations.entries(conversation))
    for index, (message, row) in enumerate(zip(conversation, rows, strict=True)):
        made = [at for at in range(index) if message.tool_call_id in conversation[at].call_ids]
        assert row.answers == (made[-1] + 1 if message.role == "tool" else None)


@given(conversations.conversations())
def test_the_newest_exchange_is_the_one_that_planning_finds(conversation: list[ChatMessage]) -> None:
    counters, placed = conversations.placed(conversation)
    rows = [row for row in placed if not row.message.pinned]
    starts = exchanges.starts(rows, counters.open_position)
    assert counters.newest_position == (rows[starts[-1]].position if starts else 0)
    assert counters.settled_tokens == (sum(row.tokens for row in rows[: starts[-1]]) if starts else 0)
    assert (counters.settled_tokens > 0) == (len(starts) > 1)


@given(conversations.conversations())
def test_an_exchange_is_open_until_every_call_is_answered(conversation: list[ChatMessage]) -> None:
    calls = conversations.Calls().after(*conversation)
    counters, _ = Counters().append(conversations.entries(conversation))
    assert (counters.open_position > 0) == calls.open
    assert len(counters.open_calls) == len(calls.unanswered) * len(call_mark(""))
    for call_id in conversations.IDS:
        if calls.exchange.count(call_id) == 1:
            assert (call_mark(call_id) in counters.open_calls) == (call_id in calls.unanswered)


@given(conversations.conversations(), st.integers(0, 20))
def test_a_tail_is_due_exactly_when_something_in_it_can_be_folded(conversation: list[ChatMessage], limit: int) -> None:
    counters, placed = conversations.placed(conversation)
    rows = [row for row in placed if not row.message.pinned]
    starts = exchanges.starts(rows, counters.open_position)
    for covered in (0, *starts):
        folded = rows[:covered]
        tail = counters._replace(
            covered_position=folded[-1].position if folded else 0,
            covered_count=len(folded),
            covered_tokens=sum(row.tokens for row in folded),
        )
        assert tail.tail_count == len(rows) - covered
        assert tail.tail_tokens == sum(row.tokens for row in rows[covered:])
        more_than_one = covered < (starts[-1] if starts else 0)
        assert tail.due(Threshold(tokens=limit), indexed_position=0) == (more_than_one and tail.tail_tokens > limit)


@pytest.mark.parametrize("message", [HUMAN, AI, SYSTEM, CALLS_A])
def test_a_summary_covers_what_it_covered_when_messages_are_added(message: ChatMessage) -> None:
    covered = Covered(covered_position=3, covered_count=2, covered_tokens=20)
    assert after(message, start=after(SYSTEM, HUMAN, AI).covering(covered))[-3:] == covered


def test_an_empty_session_is_never_due() -> None:
    assert not Counters().due(Threshold(tokens=0, messages=0), indexed_position=0)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [HUMAN],
        [AI],
        [CALLS_A, RESULT_A],  # answered: the exchange is closed
        [CALLS_A, AI],
        [CALLS_A, ChatMessage.ai(tool_calls=[call("b")])],
        [CALLS_AB, RESULT_A, RESULT_B, HUMAN],
    ],
)
def test_a_result_outside_of_its_open_exchange_is_refused(messages: list[ChatMessage]) -> None:
    counters = after(*messages)
    with pytest.raises(ToolResultRefused, match=r"'a'.*assistant message") as refused:
        counters.append([Entry(RESULT_A, 10)])
    assert isinstance(refused.value, InvalidMessage)
    assert isinstance(refused.value, ValueError)
    assert refused.value.call_id == "a"


def test_ids_that_begin_alike_or_look_like_patterns_are_not_mixed_up() -> None:
    ids = ["call_1", "call_10", "call_%", "%", "_", "|", "a" * 300, "中", "call_1 "]
    for call_id in ids:
        counters = after(ChatMessage.ai(tool_calls=[call(call_id)]))
        for other_id in ids:
            if other_id != call_id:
                with pytest.raises(ToolResultRefused):
                    counters.append([Entry(ChatMessage.tool("1", other_id), 1)])
        assert after(ChatMessage.tool("1", call_id), start=counters).open_position == 0


def test_marks_are_of_one_length_and_free_of_wildcards() -> None:
    marks = {call_mark(call_id) for call_id in ("", "a", "%" * 500, "_\\'")}
    assert {len(mark) for mark in marks} == {17}
    assert not any(set("%_\\'\"") & set(mark) for mark in marks)


def test_a_session_holds_64_pinned_messages() -> None:
    full = after(*[SYSTEM] * MAX_PINNED)
    assert MAX_PINNED == len(full.pinned) == 64
    with pytest.raises(TooManyPinned, match=r"64 .*load\(system=") as refused:
        full.append([Entry(ChatMessage("developer", "One more."), 1)])
    assert isinstance(refused.value, ValueError)
    assert after(HUMAN, start=full).last_position == 65


@given(st.data())
def test_a_batch_knows_what_it_changes_before_the_session_is_read(data: st.DataObject) -> None:
    before = data.draw(conversations.conversations(max_size=8))
    calls = conversations.Calls().after(*before)
    entries = conversations.entries(data.draw(conversations.batches(calls)))
    batch = Batch(entries)
    start, _ = Counters().append(conversations.entries(before))
    end, rows = start.append(entries)

    assert batch.tokens == sum(entry.tokens for entry in entries)
    assert batch.after.unpinned_tokens == end.unpinned_tokens - start.unpinned_tokens
    assert batch.after.unpinned_count == end.unpinned_count - start.unpinned_count
    assert [Pinned(pinned.position + start.last_position, pinned.tokens) for pinned in batch.after.pinned] == list(
        end.pinned[len(start.pinned) :]
    )
    assert [(row.position + start.last_position, row.tokens_through + start.unpinned_tokens) for row in batch.rows] == [
        (row.position, row.tokens_through) for row in rows
    ]
    own = [row.answers and row.answers + start.last_position for row in batch.rows]
    later = [row.answers if row.answers and row.answers > start.last_position else None for row in rows]
    assert own == later
    assert all(mark in start.exchange_calls for mark in batch.leading_results)
    assert len(batch.leading_results) == sum(
        row.answers is not None and row.answers <= start.last_position for row in rows
    )
    if batch.has_assistant:
        assert end.settled_tokens == batch.after.settled_tokens + start.unpinned_tokens
        assert end.newest_position == batch.after.newest_position + start.last_position
        assert (end.open_calls, end.exchange_calls) == (batch.after.open_calls, batch.after.exchange_calls)


def rewound_to(position: int, after: Counters, conversation: list[ChatMessage]) -> Counters:
    """Rewind the counters by the facts about the first messages that a store reads."""
    _, rows = conversations.placed(conversation[:position])
    unpinned, total = [], 0
    for row in rows:
        if not row.message.pinned:
            total += row.tokens
            unpinned.append(row._replace(tokens_through=total))
    begun = (row for row in reversed(unpinned) if row.message.role == "assistant" and row.answers is None)
    spoke = next(begun, None)
    continuing = [row for row in unpinned if spoke is not None and row.answers == spoke.position]
    return rewound(after, position, unpinned[-1] if unpinned else None, spoke, continuing)


@given(conversations.conversations(), st.integers(0, 20))
@example([SYSTEM, SYSTEM, AI], 1)
@example([SYSTEM, SYSTEM, HUMAN, SYSTEM, AI], 3)
@example([HUMAN, CALLS_A, RESULT_A, SYSTEM, AI], 3)
@example([HUMAN, CALLS_A, RESULT_A, HUMAN, SYSTEM, AI], 4)
@example([CALLS_AB, RESULT_A, HUMAN, SYSTEM, AI], 3)
@example([CALLS_AB, RESULT_A, HUMAN, RESULT_B, SYSTEM, SYSTEM, AI], 5)
@example([CALLS_AB, RESULT_A, AI, HUMAN, SYSTEM, AI], 4)
def test_rewound_counters_are_those_of_a_session_that_never_went_on(
    conversation: list[ChatMessage], position: int
) -> None:
    position = min(position, len(conversation))
    after, _ = Counters().append(conversations.entries(conversation))
    before, _ = Counters().append(conversations.entries(conversation[:position]))
    assert rewound_to(position, after, conversation) == before


@given(conversations.conversations(min_size=1))
def test_a_batch_ends_with_a_result_when_its_last_unpinned_message_is_one(conversation: list[ChatMessage]) -> None:
    last = next((message for message in reversed(conversation) if not message.pinned), None)
    assert Batch(conversations.entries(conversation)).ends_with_result == (last is not None and last.role == "tool")


def test_a_batch_that_no_session_could_take_is_refused_at_once() -> None:
    with pytest.raises(ToolResultRefused):
        Batch([Entry(AI, 1), Entry(RESULT_A, 1)])
    with pytest.raises(ToolResultRefused):
        Batch([Entry(CALLS_A, 1), Entry(RESULT_A, 1), Entry(RESULT_A, 1)])
    with pytest.raises(TooManyPinned):
        Batch([Entry(SYSTEM, 1)] * (MAX_PINNED + 1))
    assert Batch([Entry(RESULT_A, 1), Entry(RESULT_B, 1)]).leading_results == (
        call_mark("a"),
        call_mark("b"),
    )


def entry(message: ChatMessage = HUMAN, **fields: Any) -> Entry:
    return Entry(message, 1)._replace(**fields)


@pytest.mark.parametrize(
    "other",
    [
        [],
        [entry(), entry()],
        [entry(AI)],
        [entry(ChatMessage.human("Hi. "))],
        [entry(ChatMessage.human("Hi.", kind="plan"))],
        [entry(ChatMessage.human("Hi.", metadata={"a": 1}))],
        [entry(ChatMessage.human("Hi.", name="anna"))],
        [entry(usage={"prompt_tokens": 1})],
    ],
)
def test_a_payload_hash_tells_other_content(other: list[Entry]) -> None:
    assert Batch([entry()]).payload_hash != Batch(other).payload_hash


def test_a_payload_hash_does_not_depend_on_the_order_of_keys_or_on_the_counter() -> None:
    message = {"role": "user", "content": "a", "x": {"b": 1, "a": 2}, "y": 1}
    reordered = {"y": 1, "x": {"a": 2, "b": 1}, "content": "a", "role": "user"}
    batches = [
        Batch([Entry(ChatMessage.from_openai(wire), tokens)]) for wire, tokens in ((message, 1), (reordered, 99))
    ]
    assert batches[0].payload_hash == batches[1].payload_hash


def test_an_idempotency_key_is_kept_as_a_hash() -> None:
    batch = Batch([entry()], idempotency_key="of a user")
    assert batch.key_hash is not None
    assert len(batch.key_hash) == 64
    assert "user" not in batch.key_hash
    assert Batch([entry()]).key_hash is None


# Ids.


def test_new_ids_are_uuids_of_version_7_that_ascend() -> None:
    began = time.time_ns() // 1_000_000
    ids = new_ids(5000)  # more than a millisecond has places for
    ended = time.time_ns() // 1_000_000

    assert {(made.version, made.variant) for made in ids} == {(7, uuid.RFC_4122)}
    assert list(ids) == sorted(set(ids))
    assert began <= ids[0].int >> 80 <= ended
    assert ids[-1].int >> 80 <= ended + 2
    assert len({made.int & 2**62 - 1 for made in ids}) == len(ids)


def test_messages_keep_their_own_ids_and_the_others_get_new_ones() -> None:
    own = ChatMessage.human("Hi.", id=uuid.uuid4())

    batch = Batch([Entry(own, 10), Entry(AI, 10)])

    assert batch.has_own_ids
    assert batch.ids[0] == own.id
    assert batch.ids[1].version == 7
    assert not Batch([Entry(HUMAN, 10)]).has_own_ids
    with pytest.raises(InvalidMessage, match="the same id"):
        Batch([Entry(own, 10), Entry(own, 10)])


@pytest.mark.parametrize(
    ("messages", "first"), [([HUMAN, AI], 3), ([HUMAN, CALLS_A], 2), ([HUMAN, CALLS_A, RESULT_A], 4)]
)
def test_no_summary_covers_an_open_exchange(messages: list[ChatMessage], first: int) -> None:
    assert after(*messages).first_unfoldable == first
