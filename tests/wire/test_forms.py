"""Messages in the forms of Anthropic and of the Responses API: what is stored of them, and who gets what back."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_convmemory import exceptions
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.context.wire import replies
from django_convmemory.contrib import responses_items
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.in_memory import InMemoryStore
from django_convmemory.tokens import IMAGE, UNKNOWN_FILE, Utf8TokenCounter
from tests.conversations import call
from tests.wire import validators

COUNT = Utf8TokenCounter().count
DATA = "iVBORw0KGgo="
THOUGHT = {"type": "thinking", "thinking": "The user wants a train.", "signature": "c2ln" * 100}
SEARCH = [
    {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "trains"}},
    {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result", "url": "a"}]},
]
USE = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"to": "Porto"}}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "Z29u" * 300}
FUNCTION = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": "{}"}
PREAMBLE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
}


@pytest.fixture
def session() -> SessionHandle:
    model = ScriptedChatModel([])
    memory = ConversationSummaryBufferMemory(InMemoryStore(), model, 100_000, scheduler=NullScheduler())
    return memory.session("s")


def wires(session: SessionHandle) -> tuple[list[Any], list[Any], list[Any]]:
    """What each provider gets. All requests are valid."""
    context = session.load()
    chat, anthropic, responses = context.to_openai(), context.to_anthropic(), context.to_responses()
    assert list(validators.chat(chat)) == []
    assert list(validators.anthropic(anthropic)) == []
    assert list(validators.responses(responses)) == []
    return list(chat), anthropic["messages"], list(responses)


def test_one_of_anthropics_messages_is_several(session: SessionHandle) -> None:
    failed = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No train.", "is_error": True}
    receipt = session.append(
        ChatMessage.human("Find a train."),
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, USE]},
        {"role": "user", "content": [failed, {"type": "text", "text": "By bus?"}]},
    )
    assert len(receipt.ids) == 4
    roles = [(stored.message.role, stored.message.text) for stored in session.history()]
    assert roles == [("user", "Find a train."), ("assistant", "I look."), ("tool", "No train."), ("user", "By bus?")]
    chat, anthropic, responses = wires(session)
    assert chat[1]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"to":"Porto"}'}
    assert "is_error" not in str(chat) + str(responses)
    assert anthropic[2]["content"] == [
        {**failed, "content": [{"type": "text", "text": "No train."}]},
        {"type": "text", "text": "By bus?"},
    ]


@pytest.mark.parametrize("form", ["dict", "message", "reply"])
def test_thoughts_and_searches_of_anthropic_go_back_to_anthropic_only(session: SessionHandle, form: str) -> None:
    blocks: list[Any] = [THOUGHT, {"type": "text", "text": "I look."}, *SEARCH, USE]
    session.append(ChatMessage.human("Find a train."))
    if form == "reply":
        [reply] = replies.read({"role": "assistant", "content": blocks, "stop_reason": "tool_use", "model": "claude-a"})
        session.append(reply.message)
    else:
        session.append(ChatMessage.ai(blocks) if form == "message" else {"role": "assistant", "content": blocks})
    session.append(ChatMessage.tool("At nine.", "toolu_1"))
    chat, anthropic, responses = wires(session)
    assert anthropic[1]["content"] == blocks
    assert not {"signature", "thinking", "server_tool_use"} & set(str(chat + responses).replace("'", " ").split())
    with_other_model = session.load().to_anthropic(model="claude-b")["messages"][1]["content"]
    assert with_other_model == (blocks[1:] if form == "reply" else blocks)
    # A redaction leaves nothing of it.
    session.redact(2)
    assert "wants a train" not in str(wires(session))


def test_thoughts_in_a_stream_of_anthropic_are_kept() -> None:
    events = [
        {"type": "message_start", "message": {"role": "assistant", "model": "claude-a", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {**THOUGHT, "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "The user "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "wants a train."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln" * 100}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {**USE, "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"to":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '"Porto"}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
    ]
    chunks = replies.Chunks()
    assert "".join(map(chunks.add, events)) == ""
    assert chunks.has_calls is True
    [reply] = chunks.replies()
    assert reply == replies.read(
        {"role": "assistant", "content": [THOUGHT, USE], "stop_reason": "tool_use", "model": "claude-a"}
    )[0]._replace(usage={"output_tokens": 2})


def test_a_paused_reply_is_the_end_of_what_anthropic_gets(session: SessionHandle) -> None:
    session.append(ChatMessage.human("Find a train."))
    [paused] = replies.read({"role": "assistant", "content": SEARCH, "stop_reason": "pause_turn"})
    session.append(paused.message)
    assert session.load().to_anthropic()["messages"][-1] == {"role": "assistant", "content": SEARCH}


def test_items_of_a_response_are_one_message(session: SessionHandle) -> None:
    output = {"type": "function_call_output", "call_id": "c1", "output": "At nine."}
    session.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A train?"}]})
    session.append(REASONING, PREAMBLE, FUNCTION)
    session.append(output)
    assert [stored.message.role for stored in session.history()] == ["user", "assistant", "tool"]
    chat, anthropic, responses = wires(session)
    assert responses[1:] == [REASONING, PREAMBLE, FUNCTION, output]
    assert "rs_1" not in str(chat + anthropic)
    [reply] = replies.read({"output": [REASONING, PREAMBLE], "model": "o-a"})
    session.append(reply.message)
    # Without the thought, the provider does not know the ids of what followed it.
    without_id = {field: value for field, value in PREAMBLE.items() if field != "id"}
    assert session.load().to_responses(model="o-b")[5:] == [without_id]


@pytest.mark.parametrize("form", ["computer_call", "computer_call_output", "mcp_approval_request"])
def test_an_item_that_is_no_chat_message_is_refused_with_the_repair(session: SessionHandle, form: str) -> None:
    with pytest.raises(exceptions.InvalidMessage, match="openai_agents"):
        session.append({"type": form, "call_id": "c1"})
    assert session.history() == []


def test_an_image_in_a_result_comes_after_it_in_a_chat_completion(session: SessionHandle) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/jpg;base64,{DATA}"}}
    session.append(ChatMessage.human("Look."), ChatMessage.ai(tool_calls=[call("a"), call("b")]))
    session.append(ChatMessage.tool([{"type": "text", "text": "Here."}, image], "a"), ChatMessage.tool("No.", "b"))
    chat, anthropic, responses = wires(session)
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "tool", "user"]
    assert chat[-1]["content"] == [image]
    assert anthropic[-1]["content"][0]["content"][1]["source"]["media_type"] == "image/jpeg"
    assert responses[3]["output"][1]["type"] == "input_image"
    strict = session.load().to_openai("alternating")
    assert [message["role"] for message in strict] == ["user", "assistant", "tool", "tool", "assistant", "user"]


def test_speech_is_sent_by_its_id_until_it_expires(session: SessionHandle) -> None:
    audio = {"id": "audio_1", "data": DATA * 5000, "transcript": "At nine.", "expires_at": int(time.time()) + 60}
    session.append(ChatMessage.human("When?"))
    session.append({"role": "assistant", "content": None, "audio": audio})
    assert session.history()[-1].tokens < 30
    chat, anthropic, responses = wires(session)
    assert chat[-1] == {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}
    assert "At nine." in str(anthropic)
    assert "At nine." in str(responses)
    assert "At nine." in session.load().to_text()
    session.append({"role": "assistant", "content": None, "audio": {**audio, "expires_at": 1}})
    assert wires(session)[0][-1] == {"role": "assistant", "content": "At nine."}


PDF = "JVBERi0" * 20_000


@pytest.mark.parametrize(
    ("part", "least", "most"),
    [
        ({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}"}}, 2000, 2200),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}, 2000, 2200),
        ({"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}, 2000, 2200),
        ({"type": "file", "file": {"file_id": "file-1"}}, UNKNOWN_FILE, UNKNOWN_FILE + 5),
        ({"type": "input_audio", "input_audio": {"data": PDF, "format": "mp3"}}, 60, 80),
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PDF}"}}, IMAGE, IMAGE + 5),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PDF}}, IMAGE, IMAGE + 5),
        ({"type": "input_image", "image_url": f"data:image/png;base64,{PDF}"}, IMAGE, IMAGE + 5),
        ({"type": "unheard_of", "payload": PDF}, 2000, 2200),
    ],
)
def test_a_file_counts_what_it_costs(session: SessionHandle, part: dict[str, Any], least: int, most: int) -> None:
    assert least <= COUNT(ChatMessage.human([part])) <= most
    session.append(ChatMessage.human([{"type": "text", "text": "Look."}, part]))
    wires(session)


def test_a_result_that_an_agent_stored_without_its_call_is_not_sent(session: SessionHandle) -> None:
    session.append(responses_items.message({"type": "function_call_output", "call_id": "c1", "output": "Late."}))
    assert wires(session) == ([], [], [])
    assert len(session.history()) == 1
