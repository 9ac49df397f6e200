"""The id of a message: the same as long as the message is there, and never that of another message."""

from __future__ import annotations

import uuid

from hypothesis import given, strategies as st

from django_convmemory.rules import cuts

SESSION = uuid.UUID("11111111-1111-1111-1111-111111111111")


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 8)), max_size=30))
def test_no_two_messages_of_a_session_ever_have_the_same_id(steps: list[tuple[int, int]]) -> None:
    """Each step appends messages and then deletes those after a position. The model numbers all messages."""
    text, number = "", 0
    living: list[int] = []
    ids: dict[int, uuid.UUID] = {}
    for epoch, (added, after) in enumerate(steps, 1):
        for _ in range(added):
            number += 1
            living.append(number)
        for position, message in enumerate(living, 1):
            assert ids.setdefault(message, cuts.message_id(SESSION, text, position)) == cuts.message_id(
                SESSION, text, position
            )
        if after < len(living):
            del living[after:]
            text = cuts.cut(text, after, epoch)
    assert len(set(ids.values())) == len(ids)


def test_cuts_that_a_later_one_covers_are_forgotten() -> None:
    text = ""
    for epoch, after in enumerate((2, 5, 9, 4, 0, 3), 1):
        text = cuts.cut(text, after, epoch)
    assert text == "0:5 3:6"


def test_messages_of_two_sessions_have_different_ids() -> None:
    assert cuts.message_id(SESSION, None, 1) != cuts.message_id(uuid.uuid4(), None, 1)
