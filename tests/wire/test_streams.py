"""Streams as servers really send them, and not only as the references say: one reply is one message, with its calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from django_convmemory.memory import ConversationBufferMemory
from django_convmemory.store.in_memory import InMemoryStore
from tests.openai_server import Behaviour, OpenAIServer

Json = dict[str, Any]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
USED: Json = {"choices": [], "usage": USAGE}


def chunk(content: Any = None, end: str | None = None, **delta: Any) -> Json:
    said = delta if content is None else {"content": content, **delta}
    choice = {"index": 0, "delta": said, "finish_reason": end}
    return {"id": "chatcmpl-1", "created": 1, "object": "chat.completion.chunk", "choices": [choice]}


def calling(call: Sequence[Any], index: int | None = 0) -> Json:
    call_id, name, arguments = call
    fields = {"index": index, "id": call_id, "type": "", "function": {"name": name, "arguments": arguments}}
    return chunk(tool_calls=[{field: value for field, value in fields.items() if value is not None}])


def block(text: str, index: int = 0) -> list[Json]:
    start = {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
    piece = {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}
    return [start, piece, {"type": "content_block_stop", "index": index}]


START: Json = {"type": "message_start", "message": {"role": "assistant", "model": "m"}}
END: Json = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
COMPLETED: Json = {
    "type": "response.completed",
    "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}]},
}
TWO = [("c1", "find", '{"a":1}'), ("c2", "look", '{"a":2}')]


def stored(*chunks: Any) -> list[Any]:
    """The messages that are stored of a stream, and the text that the reader gets."""
    session = ConversationBufferMemory(InMemoryStore()).session("s")
    told: list[Any] = []

    def ask(turn: Any) -> Any:
        if told or turn.open_calls:
            return "Done."
        told.append(turn)
        return iter(chunks)

    text = "".join(session.stream_answer("Who?", ask))
    messages = session.history(after=1)
    assert text == "".join(message.message.text for message in messages)
    return messages


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([chunk("Hel", "stop"), chunk("lo", "stop")], id="each chunk has the reason of the end"),
        pytest.param([chunk(end="stop"), chunk("Hel"), chunk("lo"), chunk(end="stop")], id="the end comes first too"),
        pytest.param([USED, chunk("Hel"), chunk("lo", "stop")], id="the usage comes first"),
        pytest.param([chunk("Hel"), chunk("lo"), USED], id="no reason of the end, but the usage"),
        pytest.param([chunk("Hel"), chunk("lo", "stop"), {"choices": None, "usage": USAGE}], id="no list of choices"),
        pytest.param(
            [chunk("Hel"), {"choices": [{"index": 1, "delta": {"content": "Bye"}}]}, chunk("lo", "stop")],
            id="another choice",
        ),
        pytest.param(
            [
                chunk([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]),
                chunk([{"type": "text", "text": "Hel"}]),
                chunk("lo", "stop"),
            ],
            id="parts, as Mistral sends them",
        ),
        pytest.param([chunk("Hel", audio=None, annotations=[]), chunk("lo", "stop", annotations=None)], id="nulls"),
        pytest.param([chunk("Hel", id="m", name="a"), chunk("lo", "stop", id="m", name="a")], id="fields that repeat"),
        pytest.param([START, {"type": "ping"}, *block("Hello"), END, {"type": "ping"}], id="a ping after the end"),
        pytest.param([{"type": "response.output_text.delta", "delta": "Hello"}, COMPLETED, {"type": "keepalive"}]),
        pytest.param([{"choices": [{"message": {"role": "assistant", "content": "Hello"}}]}], id="a whole reply"),
    ],
)
def test_a_reply_is_one_message(chunks: list[Json]) -> None:
    [reply] = stored(*chunks)
    assert (reply.message.text, reply.cut_off) == ("Hello", "")
    assert {field: value for field, value in reply.message.extra.items() if value} in ({}, {"id": "m"})


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([calling(call, index=number) for number, call in enumerate(TWO)], id="whole"),
        pytest.param([calling(call) for call in TWO], id="one index"),
        pytest.param([calling(call, index=None) for call in TWO], id="no index"),
        pytest.param([calling(["", *call]) for _, *call in TWO], id="one index, no ids"),
        pytest.param([calling([None, *call], index=None) for _, *call in TWO], id="no index, no ids"),
        pytest.param([calling(["same", *call]) for _, *call in TWO], id="one index, one id"),
        pytest.param(
            [
                calling([call_id, name, piece], index=number)
                for number, (call_id, name, arguments) in enumerate(TWO)
                for piece in (arguments[:3], arguments[3:], "")
            ],
            id="the name in each piece",
        ),
        pytest.param(
            [calling(["c1", "find", '{"a']), calling(["other", None, '":1}']), calling(TWO[1], index=1)],
            id="each piece with a new id",
        ),
    ],
)
def test_each_call_is_one_call(chunks: list[Json]) -> None:
    message, _ = stored(*chunks, chunk(end="tool_calls"))
    called = [tuple(call["function"].values()) for call in message.message.tool_calls]
    assert called == [(name, arguments) for _, name, arguments in TWO]


def test_blocks_of_anthropic_with_one_index_are_all_kept() -> None:
    assert [reply.message.text for reply in stored(START, *block("Hel"), *block("lo"), END)] == ["Hel\nlo"]


def test_the_id_of_a_sound_may_repeat() -> None:
    pieces = [chunk(audio={"id": "a", "transcript": text}) for text in ("Hel", "lo")]
    session = ConversationBufferMemory(InMemoryStore()).session("s")
    list(session.stream_answer("Who?", lambda turn: iter([*pieces, chunk(end="stop")])))
    assert session.load()[-1].extra["audio"] == {"id": "a", "transcript": "Hello"}


def test_two_replies_are_two_messages() -> None:
    second = [{**piece, "id": "chatcmpl-2"} for piece in (chunk("Bye"), chunk(end="stop"))]
    assert [reply.message.text for reply in stored(chunk("Hello"), chunk(end="stop"), *second)] == ["Hello", "Bye"]


def test_the_events_of_the_client_of_openai() -> None:
    events = "".join(f"data: {json.dumps(each)}\n\n" for each in (chunk("Hel"), chunk("lo"), chunk(end="stop"), USED))
    with OpenAIServer() as server:
        server.queue(Behaviour("raw", headers={"Content-Type": "text/event-stream"}, body=events + "data: [DONE]\n\n"))
        client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)
        completions: Any = client.chat.completions
        if not hasattr(completions, "stream"):  # An older client.
            completions = client.beta.chat.completions
        session = ConversationBufferMemory(InMemoryStore()).session("s")
        pieces = session.stream_answer(
            "Who?", lambda turn: completions.stream(model="m", messages=turn.context.to_openai())
        )
        assert (list(pieces), session.history()[-1].cut_off) == (["Hel", "lo"], "")


def test_the_input_of_a_call_that_is_too_deep_is_a_text() -> None:
    call = {"type": "tool_use", "id": "c", "name": "find", "input": {}}
    start = {"type": "content_block_start", "index": 0, "content_block": call}
    piece = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": "[" * 9999},
    }
    message, _ = stored(START, start, piece, {**END, "delta": {"stop_reason": "tool_use"}})
    assert "_raw" in message.message.tool_calls[0]["function"]["arguments"]
