"""An export after an import has the records that were imported."""

from __future__ import annotations

import io
import json
import pathlib
import sys
from typing import Any

import pytest
from django.contrib.auth.models import User
from hypothesis import given, strategies as st

from django_convmemory import models
from django_convmemory.contrib import responses_items
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests import conversations, response_items
from tests.transfer import records
from tests.transfer.records import TIME, call, record

pytestmark = pytest.mark.django_db

HARD: list[dict[str, Any]] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}], "name": "site"},
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}, {"type": "new", "a": None}],
    },
    {"role": "assistant", "content": None, "tool_calls": [conversations.call("c", '{"n":1e300}')], "refusal": None},
    {"role": "tool", "tool_call_id": "c", "content": ""},
    {
        "role": "assistant",
        "content": "a\nb\u2028c\u0085d\r\ne 🙂",
        "audio": {"x": [[None, {"y": None}], 1e300, -0.0, 2**70]},
    },
    {"role": "assistant", "content": "", "tool_calls": [], "annotations": [], "": {"": ""}},
    # What only one provider can read.
    {"role": "assistant", "content": "a", "anthropic": {"content": [{"type": "thinking", "thinking": "?"}]}},
]


def test_hard_messages_come_back_as_they_were(write: Any, two: None, tmp_path: pathlib.Path) -> None:
    User.objects.create_user("anna")
    notes = {
        "2": {"kind": "plan"},
        "5": {"metadata": {"n": [1e300, None, {"z": 1, "a": {}}]}, "created_at": "2024-05-01T10:00:00.000001+00:00"},
    }
    marks = {"archived_at": "2024-06-01T10:00:00.000001+00:00", "starred_at": TIME}
    fields = {"owner": "anna", "title": "Zoë 一", "metadata": {"n": None}, "created_at": TIME} | marks
    owned_record = record("a", *HARD, **fields, notes=notes)
    visitor_record = record("b", *HARD, visitor="v1", created_at="1970-01-01T00:00:00+00:00")
    call("convmemory_import", write(owned_record, visitor_record))
    first, second = tmp_path / "first", tmp_path / "second"

    call("convmemory_export", "--output", first)
    call("convmemory_import", first, "--alias", "other")
    call("convmemory_export", "--alias", "other", "--output", second)

    written = [json.loads(line) for line in first.read_text().splitlines()]
    assert records.without_ids(written) == [owned_record, visitor_record]
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.django_db(transaction=True)
@given(talks=st.lists(conversations.conversations(min_size=1), max_size=3), data=st.data())
def test_any_conversation_comes_back_as_it_was(talks: list[list[ChatMessage]], data: st.DataObject) -> None:
    memory = memories["default"]
    kinds, notes = st.sampled_from(["chat", "plan"]), st.dictionaries(records.TEXTS, records.JSON, max_size=2)
    models.Session.objects.all().delete()
    for number, talk in enumerate(talks):
        wires = [{**message.to_openai(), "x": data.draw(records.JSON)} for message in talk]
        values = [ChatMessage.from_openai(wire, kind=data.draw(kinds), metadata=data.draw(notes)) for wire in wires]
        memory.append(f"talk {number}", *values, idempotency_key="k" if data.draw(st.booleans()) else None)
        memory.append(f"talk {number}", ChatMessage.human("gone"), idempotency_key="gone")
        memory.pop(f"talk {number}")
    for number, sequence in enumerate(data.draw(st.lists(response_items.sequences(), max_size=2))):
        if sequence:
            memory.append(f"agent {number}", *map(responses_items.message, sequence))
            memory.redact(f"agent {number}", data.draw(st.integers(1, len(sequence))))
    columns = (
        *("session__key", "position", "role", "kind", "content", "wire", "metadata", "tokens", "created_at"),
        *("format", "item", "answers", "public_id"),
    )
    rows = models.Message.objects.order_by("session_id", "position").values_list(*columns)
    before, text = list(rows), call("convmemory_export")

    models.Session.objects.all().delete()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), "utf-8"))
        call("convmemory_import", "-")

    assert list(rows) == before
    assert call("convmemory_export") == text
    assert list(integrity.check(models.Session.objects.all())) == []


def test_a_session_that_was_cleared_is_imported_with_its_keys(tmp_path: pathlib.Path) -> None:
    chat = memories["default"].session("a")
    turns = [ChatMessage.ai("hello"), ChatMessage.human("hi")]
    receipt = chat.append(*turns, idempotency_key="k")
    turn = chat.answer(None, lambda turn: "how are you?", key="l")
    chat.answer(again=turn.question, ask=lambda turn: "what can I do?", key="m")
    call("convmemory_export", "--output", tmp_path / "file")
    chat.clear()

    call("convmemory_import", tmp_path / "file")

    assert chat.append(*turns, idempotency_key="k") == receipt._replace(replayed=True)
    assert chat.answer(again=turn.question, ask=lambda turn: "no", key="m").text == "what can I do?"
