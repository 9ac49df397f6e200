"""What the user says to an agent and what its model answers, for random runs of the agents of all frameworks."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st

TEXTS = st.one_of(
    st.sampled_from(["What is Rust?", "一种系统编程语言。", '{"flights": []}', "I'm fine 🙂", "a\nb", "word " * 40]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40),
)


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
