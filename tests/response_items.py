"""Hypothesis strategies for items of OpenAI's Responses API, in the order in which agents store them.

:func:`turns` makes conversations as the OpenAI Agents SDK does: a response is a run of thoughts, texts and calls, and
then come the results of its calls. :func:`sequences` makes any order, as after an interruption or a rewinding.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.conversations import IDS, TEXTS

Item = dict[str, Any]


def said(role: str, text: str) -> Item:
    if role == "assistant":
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {"id": "msg_1", "type": "message", "role": role, "status": "completed", "content": content}
    return {"role": role, "content": text}


def thought(text: str) -> Item:
    return {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": text}], "content": None}


def called(call_id: str, name: str = "look_up") -> Item:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": '{"city": "Köln"}', "id": "fc_1"}


def returned(call_id: str, text: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


HOSTED: st.SearchStrategy[Item] = st.sampled_from(
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "Rust"}},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGVsbG8="},
        {"type": "compaction", "encrypted_content": "gAAAAA", "id": "cmp_1"},
    ]
)


@st.composite
def responses(draw: st.DrawFn) -> list[Item]:
    """The items of one response, with the results of all of its calls after them."""
    run = [thought(draw(TEXTS))] if draw(st.booleans()) else []
    if draw(st.booleans()):
        run.append(said("assistant", draw(TEXTS)))
    if draw(st.booleans()):
        run.append(draw(HOSTED))
    ids = draw(st.lists(st.sampled_from(IDS), max_size=3, unique=True))
    run += [called(call_id) for call_id in ids]
    return run + [returned(call_id, draw(TEXTS)) for call_id in draw(st.permutations(ids))]


@st.composite
def turns(draw: st.DrawFn, *, max_size: int = 5) -> list[list[Item]]:
    """Turns: what the user says, and one or more responses. Each is a list of items."""
    conversation = []
    for _ in range(draw(st.integers(1, max_size))):
        conversation.append([said("user", draw(TEXTS))])
        conversation += draw(st.lists(responses(), min_size=1, max_size=2))
    return [items for items in conversation if items]


def sequences(*, max_size: int = 15) -> st.SearchStrategy[list[Item]]:
    """Items in any order."""
    roles = st.sampled_from(["user", "assistant", "system", "developer"])
    ids = st.sampled_from(IDS)
    return st.lists(
        st.one_of(
            st.builds(said, roles, TEXTS),
            st.builds(thought, TEXTS),
            st.builds(called, ids),
            st.builds(called, ids),
            st.builds(returned, ids, TEXTS),
            HOSTED,
        ),
        max_size=max_size,
    )
