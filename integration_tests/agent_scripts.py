"""What the tests of all frameworks share: random turns with an agent, and the budget of the memory."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from hypothesis import strategies as st

# The budget of the memory `default`: see the fixture `limit`.
LIMIT = 200
WORDS = "The ferry to the island leaves at nine and takes an hour. " * 3
_numbers = itertools.count()

TEXTS = st.one_of(
    st.sampled_from(["What is Rust?", "一种系统编程语言。", '{"flights": []}', "I'm fine 🙂", "a\nb", "word " * 40]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40),
)
ANY_TEXTS = st.one_of(TEXTS, st.just(""))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), ANY_TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(ANY_TEXTS, inner, max_size=3)),
    max_leaves=5,
)


def new_key() -> str:
    """Return the key of a session that no other test, and no other example, uses."""
    return f"session {next(_numbers)}"


class Call(NamedTuple):
    """A call of the tool ``look_up``. If ``fails`` is true, the tool raises an error the first time."""

    id: str
    word: str
    fails: bool = False


class Step(NamedTuple):
    """A reply of the model: a thought, a text, and calls that it makes at once."""

    thought: str
    text: str
    calls: list[Call]


class Turn(NamedTuple):
    """What the user says, and the replies of the model. All but the last one make calls."""

    said: str
    steps: list[Step]


@st.composite
def turns(draw: st.DrawFn, *, min_size: int = 1, max_size: int = 4) -> list[Turn]:
    number = 0
    conversation = []
    for _ in range(draw(st.integers(min_size, max_size))):
        steps = []
        for _ in range(draw(st.integers(0, 2))):
            calls = []
            for _ in range(draw(st.integers(1, 3))):
                number += 1
                calls.append(Call(f"call_{number}", draw(TEXTS), draw(st.booleans())))
            steps.append(Step(draw(st.sampled_from(["", "hm"])), draw(st.sampled_from(["", "I look."])), calls))
        conversation.append(Turn(draw(TEXTS), [*steps, Step(draw(st.sampled_from(["", "so"])), draw(TEXTS), [])]))
    return conversation
