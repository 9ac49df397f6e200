"""Whatever models and frameworks send: what is stored of it is valid for each provider, and the rest is refused."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from django_convmemory.contrib import responses_items
from django_convmemory.exceptions import EmptyReply, InvalidMessage
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory, SessionHandle
from django_convmemory.rules.options import ROLES, SUMMARY_ROLES
from django_convmemory.store.orm import ORMStore
from tests.wire import validity

Wire = dict[str, Any]
Append = tuple[str, list[Wire]]
FORMS = ("chat", "anthropic", "responses")
IDS = st.sampled_from(("c1", "c1", "c2", "", None, "x" * 70, "functions.look up:0"))
ID_FIELDS = {"chat": "id", "anthropic": "id", "responses": "call_id"}
TEXTS = st.sampled_from(("Hi.", "word " * 60, "", " \n", "Bye. \n"))
ADVICE = re.compile(r"\b(must|needs?|use|pass|store|add|append|remove|convert|give|leave|correct)\b", re.IGNORECASE)

# Parts of a content, calls, and what an assistant's message has besides both: fields, blocks or items. # is a number.
DATA = """
chat part {"type": "text", "text": "Look: "}
chat part {"type": "text", "text": ""}
chat part {"type": "text", "text": " \\n"}
chat part {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
chat part {"type": "image_url", "image_url": {"url": "http://example.com/a.png", "detail": "low"}}
chat part {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
chat part {"type": "image_url", "image_url": "https://example.com/a.png"}
chat part {"type": "input_audio", "input_audio": "AAAA"}
chat part {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,/9j/"}}
chat part {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}}
chat part {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
chat part {"type": "refusal", "refusal": "I can't."}
chat part {"type": "hologram", "data": "AAAA"}
chat more {}
chat more {"reasoning_content": "Hm."}
chat more {"refusal": "I can't."}
chat more {"refusal": null, "annotations": [], "audio": null, "function_call": null, "tool_calls": []}
chat more {"audio": {"id": "audio_1", "expires_at": 4102444800, "data": "AAAA", "transcript": "Hello."}}
chat more {"audio": {"id": "audio_expired", "expires_at": 1, "data": "AAAA", "transcript": "Hello."}}
chat call {"type": "function", "function": {"name": "look_up", "arguments": "{\\"a\\": 1}"}}
chat call {"type": "function", "function": {"name": "functions.look up", "arguments": {"a": "é"}}}
chat call {"function": {"name": "look_up", "arguments": "{broken"}}
chat call {"type": "function", "function": {"name": "look_up", "arguments": ""}}
chat call {"type": "function", "function": {"name": "look_up", "arguments": "[NaN]"}}
chat call {"type": "custom", "custom": {"name": "run", "input": "ls"}}
anthropic part {"type": "text", "text": "Look: "}
anthropic part {"type": "text", "text": ""}
anthropic part {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
anthropic part {"type": "image", "source": {"type": "base64", "media_type": "image/jpg", "data": "/9j/"}}
anthropic part {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
anthropic part {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Rust."}}
anthropic part {"type": "hologram", "data": "AAAA"}
anthropic more []
anthropic more [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]
anthropic more [{"type": "thinking", "thinking": "Hm.", "signature": ""}]
anthropic more [{"type": "redacted_thinking", "data": "AAAA"}]
anthropic more [{"type": "server_tool_use", "id": "srvtoolu_#", "name": "web_search", "input": {"query": "Rust"}},\
 {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_#", "content": []}]
anthropic more [{"type": "server_tool_use", "id": "srvtoolu_#", "name": "web_search", "input": {}}]
anthropic more [{"type": "web_search_tool_result", "tool_use_id": "srvtoolu_#", "content": []}]
anthropic more [{"type": "mcp_tool_use", "id": "mcptoolu_#", "name": "find", "server_name": "a", "input": {}},\
 {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_#", "is_error": true, "content": []}]
anthropic more [{"type": "text", "text": "So.", "citations": null}]
anthropic call {"type": "tool_use", "name": "look_up", "input": {"a": 1}}
responses part {"type": "input_text", "text": "Look: "}
responses part {"type": "output_text", "text": "Look: ", "annotations": []}
responses part {"type": "output_text", "text": "", "annotations": []}
responses part {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"}
responses part {"type": "input_image", "image_url": "data:image/jpg;base64,/9j/", "detail": "auto"}
responses part {"type": "input_file", "file_data": "data:application/pdf;base64,JVBERi0=", "filename": "a.pdf"}
responses part {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
responses part {"type": "refusal", "refusal": "I can't."}
responses part {"type": "hologram", "data": "AAAA"}
responses more []
responses more [{"type": "reasoning", "id": "rs_#", "summary": []}]
responses more [{"type": "reasoning", "id": "rs_#", "summary": [], "content": null, "encrypted_content": "gAAAAA"}]
responses more [{"type": "reasoning", "id": "rs_#", "summary": []},\
 {"type": "web_search_call", "id": "ws_#", "status": "completed"}]
responses more [{"type": "mcp_approval_request", "id": "mcpr_#", "name": "pay", "arguments": "{}", "server_label": "a"}]
responses call {"type": "function_call", "id": "fc_#_~", "name": "look_up", "arguments": "{\\"a\\": 1}"}
responses call {"type": "custom_tool_call", "name": "run", "input": "ls"}
"""


def known(form: str, what: str) -> st.SearchStrategy[Any]:
    lines = (line.split(" ", 2) for line in DATA.strip().splitlines())
    return st.sampled_from([json.loads(text) for *kind, text in lines if kind == [form, what]])


KNOWN = {(form, what): known(form, what) for form in FORMS for what in ("part", "more", "call")}
CONTENTS = {form: TEXTS | st.lists(KNOWN[form, "part"], max_size=3) for form in FORMS}


def identified(wire: Wire, field: str, call_id: str | None) -> Wire:
    return wire if call_id is None else {**wire, field: call_id}


def reply(form: str, content: Any, calls: list[Wire], more: Any) -> list[Wire]:
    """Return what the assistant says and calls, as one message or as the items of one response."""
    if form == "chat":
        return [{"role": "assistant", "content": content, **more, **({"tool_calls": calls} if calls else {})}]
    if form == "anthropic":
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        return [{"role": "assistant", "content": [*more, *blocks, *calls]}]
    message = {"type": "message", "id": "msg_#", "role": "assistant", "status": "completed", "content": content}
    return [*more, *([] if content is None else [message]), *calls]


def result(form: str, content: Any, call_id: str | None, kind: str = "function_call_output") -> Wire:
    if form == "chat":
        return identified({"role": "tool", "content": content}, "tool_call_id", call_id)
    if form == "anthropic":
        failed = {"is_error": True} if not content else {}
        return identified({"type": "tool_result", "content": content, **failed}, "tool_use_id", call_id)
    return identified({"type": kind, "output": content}, "call_id", call_id)


@st.composite
def results(draw: st.DrawFn, ids: list[str | None]) -> Append:
    """Results of calls, which come in together."""
    form, kind = draw(st.sampled_from(FORMS)), draw(st.sampled_from(["function", "function", "custom_tool"]))
    answers = [result(form, draw(CONTENTS[form]), call_id, f"{kind}_call_output") for call_id in ids]
    if form == "anthropic":
        answers = [{"role": "user", "content": [*answers, *draw(st.lists(KNOWN[form, "part"], max_size=1))]}]
    return form, answers


@st.composite
def turns(draw: st.DrawFn) -> list[Append]:
    """What somebody says, or a reply with results of its calls: all, some, or some twice."""
    form = draw(st.sampled_from(FORMS))
    if draw(st.booleans()):
        role = draw(st.sampled_from(["user", "user", "user", "system", "developer"]))
        name = draw(st.sampled_from([{}, {"name": "Anna B."}])) if form == "chat" else {}
        return [(form, [{"role": role, "content": draw(CONTENTS[form]), **name}])]
    ids = draw(st.lists(IDS, max_size=3))
    calls = [identified(draw(KNOWN[form, "call"]), ID_FIELDS[form], call_id) for call_id in ids]
    answered = draw(st.just(ids) | st.lists(st.sampled_from(ids), max_size=4)) if ids else []
    together: bool = draw(st.booleans())
    batches = [answered] if together and answered else [[call_id] for call_id in answered]
    said = reply(form, draw(st.none() | CONTENTS[form]), calls, draw(KNOWN[form, "more"]))
    return [(form, said), *(draw(results(batch)) for batch in batches)]


# How a session changes otherwise, each with the number of messages after the one that is redacted or stays the last.
EDITS = st.tuples(st.sampled_from(["fold", "redact", "truncate"]), st.integers(0, 4))
CHANGES = st.one_of(turns(), turns(), turns(), st.lists(EDITS, min_size=1, max_size=1))
CONVERSATIONS = st.lists(CHANGES, min_size=1, max_size=10)
# Which memory, and its options.
OPTIONS = st.fixed_dictionaries(
    {
        "roles": st.sampled_from(ROLES),
        "summary_role": st.sampled_from(SUMMARY_ROLES),
        "recall": st.booleans(),
        "clear_tool_results": st.sampled_from((None, 1, 2)),
    }
)
any_conversation = given(CONVERSATIONS, st.integers(0, 6), OPTIONS, st.booleans())


def stored_form(form: str, wire: Wire, as_value: bool) -> Any:
    """Return a message as ``append`` gets it: as it is, or a chat message as a value and an item from an adapter."""
    if not as_value or form == "anthropic":
        return wire
    if form == "responses":
        return responses_items.message(wire)
    fields: Wire = {field: wire.pop(field, None) for field in ("content", "name", "tool_calls", "tool_call_id")}
    return ChatMessage(wire.pop("role"), **fields, extra=wire)  # type: ignore[arg-type]


def append(session: SessionHandle, form: str, wires: list[Wire], as_values: bool) -> None:
    """Append messages. If they are refused, the error says what to do, and nothing has changed."""
    before, refusal = (session.load(), session.history()), ""
    try:
        session.append(*(stored_form(form, wire, as_values) for wire in wires))
    except InvalidMessage as error:
        refusal = str(error)
    if refusal:
        assert (session.load(), session.history()) == before
        assert ADVICE.search(refusal), f"does not say what to do: {refusal}"


def edit(session: SessionHandle, what: str, later: int) -> None:
    newest = session.history(limit=1)
    position = max(0, newest[0].position - later) if newest else 0
    if what == "truncate":
        session.truncate(position)
    elif what == "redact" and position:
        session.redact(position)
    elif what == "fold" and session.memory.summarizes:
        session.compact()


def problems(session: SessionHandle, thoughts: Mapping[Any, str]) -> Iterator[str]:
    """Yield what providers would say. ``thoughts`` has the id of the thought that an item needs, by the item's id."""
    for budget in (None, 60, 150, 500):
        context = session.load(system=validity.SYSTEM, max_tokens=budget)
        for name, form in validity.FORMS.items():
            yield from (f"{name}: {problem}" for problem in form(context))
        if "audio_expired" in str(context.to_openai()):
            yield "chat: a sound that has expired"
        items: list[Any] = list(context.to_responses())
        ids = [item.get("id") for item in items]
        yield from (f"responses: {each} without its thought" for each in ids if thoughts.get(each, each) not in ids)


def check(memory: ConversationMemory, conversation: list[list[Any]], as_values: bool) -> None:
    session = memory.session("s")
    session.clear()
    thoughts: dict[Any, str] = {}
    numbers = itertools.count()
    for changes in conversation:
        for what, detail in changes:
            if what not in FORMS:
                edit(session, what, detail)
                continue
            text = json.dumps(detail).replace("#", str(next(numbers)))
            wires = json.loads(re.sub("~", lambda _: str(next(numbers)), text))
            pairs = itertools.pairwise(wires)
            thoughts |= {after.get("id", ""): wire["id"] for wire, after in pairs if wire.get("type") == "reasoning"}
            append(session, what, wires, as_values)
        assert list(problems(session, thoughts)) == []


@settings(max_examples=100)
@any_conversation
def test_each_provider_accepts_what_is_sent_on(conversation: Any, number: int, options: Wire, as_values: bool) -> None:
    check(validity.memories(**options)[number], conversation, as_values)


@pytest.mark.release
@settings(max_examples=20_000)
@any_conversation
def test_each_provider_accepts_it_always(conversation: Any, number: int, options: Wire, as_values: bool) -> None:
    check(validity.memories(**options)[number], conversation, as_values)


@pytest.mark.django_db
@settings(max_examples=min(30, settings().max_examples))
@any_conversation
def test_each_provider_accepts_what_a_database_held(
    conversation: Any, number: int, options: Wire, as_values: bool
) -> None:
    check(validity.memories(ORMStore, **options)[number], conversation, as_values)


# What a client may send, and a server that lies: JSON of any form in the place of something that is right.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(("", "x", "text", "assistant", "tool_use")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(("type", "id", "text")), inner),
    max_leaves=4,
)
CHUNKS = """
{"choices": [{"delta": {"role": "assistant", "content": "Hi"}, "finish_reason": null}], "usage": null}
{"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]}}]}
{"choices": [{"delta": {"audio": {"id": "a", "data": "AA"}, "refusal": "No."}, "finish_reason": "stop"}]}
{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
{"type": "message_start", "message": {"role": "assistant", "model": "m", "usage": {"input_tokens": 3}}}
{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c", "name": "f", "input": {}}}
{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
{"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "{}"}}
{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
{"type": "response.output_text.delta", "delta": "Hi"}
{"type": "response.completed", "response": {"output": [{"type": "message", "content": [{"type": "output_text"}]}]}}
"""


@st.composite
def damaged(draw: st.DrawFn, intact: st.SearchStrategy[Any]) -> Any:
    """JSON in which one value is another one."""
    value = json.loads(json.dumps(draw(intact)))
    inside = value
    while inside:
        place = draw(st.sampled_from(list(inside) if isinstance(inside, dict) else range(len(inside))))
        if not isinstance(inside[place], (dict, list)) or draw(st.booleans()):
            inside[place] = draw(JSON)
            break
        inside = inside[place]
    return value


@given(st.lists(damaged(turns().map(lambda appends: [wire for _, wires in appends for wire in wires])), max_size=4))
def test_any_message_is_refused_or_sent_on(conversation: list[list[Any]]) -> None:
    session = validity.memories()[0].session("s")
    for message in itertools.chain.from_iterable(conversation):
        with contextlib.suppress(InvalidMessage):
            session.append(message)
    context = session.load(system=validity.SYSTEM)
    json.dumps([context.to_openai(), context.to_anthropic(), context.to_responses(), context.to_text()])


OWN = [{"type": "reasoning", "id": "rs_1", "summary": []}]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "Hi", "name": []},
        {"role": "user", "content": [{"type": "document", "source": {"type": "content", "content": True}}]},
        {"role": "user", "content": [{"type": "search_result", "content": 1}]},
        *(
            {
                "role": "assistant",
                "content": "Hi",
                "responses": {"content": [*OWN, {"type": "message", "content": said}]},
            }
            for said in (5, True, ["Hi"], [{"text": "Hi"}])
        ),
        {
            "role": "assistant",
            "content": "Hi",
            "anthropic": {"content": [{"type": "server_tool_use"}, {"type": "text"}]},
        },
    ],
)
def test_a_message_that_is_stored_is_sent_whatever_its_form(message: Wire) -> None:
    session = validity.memories()[0].session("s")
    session.append({"role": "user", "content": "?"}, message, {"role": "user", "content": "!"})
    assert list(problems(session, {})) == []


def test_thousands_of_calls_with_one_id_take_no_longer_than_others() -> None:
    session = validity.memories()[0].session("s")
    call = {"id": "look up", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    start = time.process_time()
    session.append(
        {"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": 2000 * [call]}
    )
    session.append(*(ChatMessage.tool(str(number), "look up") for number in range(2000)))
    wire = session.load().to_openai()
    # With a look at each earlier call, each result takes a thousand times as long.
    assert time.process_time() - start < 20
    assert [message.get("content") for message in wire[2:]] == [str(number) for number in range(2000)]


@given(st.lists(damaged(st.sampled_from([json.loads(line) for line in CHUNKS.strip().splitlines()])), max_size=4))
@example([{"choices": [{"delta": {"content": "Hi"}}]}, {"type": "response.completed", "response": "x"}])
def test_any_chunk_is_refused_or_part_of_a_reply(chunks: list[Any]) -> None:
    session = validity.memories()[0].session("s")
    with contextlib.suppress(InvalidMessage, EmptyReply):
        text = "".join(session.stream_answer("Who?", lambda turn: iter(chunks)))
        assert text.strip() in session.load()[-1].text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call_id", ["c1", "", None])
def test_the_nth_result_with_an_id_answers_the_nth_call_with_it(form: str, call_id: str | None) -> None:
    calls: Wire = {
        "chat": {"type": "function", "function": {"name": "look_up", "arguments": "{}"}},
        "anthropic": {"type": "tool_use", "name": "look_up", "input": {}},
        "responses": {"type": "function_call", "name": "look_up", "arguments": "{}"},
    }
    call = identified(calls[form], ID_FIELDS[form], call_id)
    answers = [result(form, text, call_id) for text in ("first", "second")]
    if form == "anthropic":
        answers = [{"role": "user", "content": answers}]
    wires = [*reply(form, None, [call, call], {} if form == "chat" else []), *answers]
    session = validity.memories()[0].session("s")
    session.append({"role": "user", "content": "?"}, *(stored_form(form, wire, form == "responses") for wire in wires))
    assert list(problems(session, {})) == []
    context: Any = session.load()
    sent = context.to_openai()
    made = [call["id"] for message in sent for call in message.get("tool_calls", ())]
    assert made == [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    for wire in (context.to_openai(), context.to_anthropic(), context.to_responses()):
        assert re.findall("first|second", str(wire)) == ["first", "second"]
