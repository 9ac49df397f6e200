"""``manage.py convmemory_import`` stores sessions whole, once, and with their notes."""

from __future__ import annotations

import datetime as dt
import json
import os
import pathlib
import threading
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.maintenance.transfer import importing
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests import conversations
from tests.test_changes_at_once import InThread
from tests.transfer.records import TIME, TURN, call, exported, human, record, stored, without_ids

pytestmark = [pytest.mark.vendors, pytest.mark.django_db]


@pytest.mark.parametrize("name", ["ANNA", "änna", "anna "])
def test_an_owner_is_named_exactly_whatever_the_collation(name: str, write: Any) -> None:
    User.objects.create(username="anna")
    with pytest.raises(CommandError, match="There is no user"):
        call("convmemory_import", write(record("a", owner=name)))
    assert not models.Session.objects.exists()


def test_fields_and_notes_are_stored(write: Any) -> None:
    notes = {"2": {"kind": "plan", "metadata": {"by": [None]}, "created_at": "2024-05-02T12:00:00.000123+02:00"}}
    path = write(record("a", human(), human(), human(), title="Rust", metadata={"n": 1}, created_at=TIME, notes=notes))

    call("convmemory_import", path)

    session = models.Session.objects.get()
    assert (session.title, session.metadata) == ("Rust", {"n": 1})
    first, second = dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC), dt.datetime(2024, 5, 2, 10, 0, 0, 123, tzinfo=dt.UTC)
    rows = models.Message.objects.order_by("position")
    assert list(rows.values_list("kind", "metadata", "created_at")) == [
        ("chat", None, first),
        ("plan", {"by": [None]}, second),
        ("chat", None, first),
    ]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_times_come_back_as_they_were_if_use_tz_is_off(zone: str, settings: Any, write: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    notes = {"2": {"created_at": "2024-10-27T01:30:00+00:00"}}
    times = {"created_at": TIME, "archived_at": "2024-03-31T01:30:00+00:00", "starred_at": "2024-07-01T01:30:00+00:00"}
    before = record("a", human(), human(), **times, notes=notes)

    call("convmemory_import", write(before))

    assert without_ids(exported()) == [before]
    assert call("convmemory_prune", "--inactive-for", "30d") == "1 session with 2 messages deleted.\n"


def test_a_second_run_continues_where_the_first_one_ended(write: Any) -> None:
    good, bad = [record(key, human(), human()) for key in "abc"], record("d", {"role": "robot", "content": "x"})
    with pytest.raises(CommandError):
        call("convmemory_import", write(*good[:2], bad))
    memories["default"].append("b", human("And now?"))

    output = call("convmemory_import", write(*good))

    assert output.endswith("1 session imported with 2 messages, 2 already in the database.\n")
    assert [len(stored(key)) for key in "abc"] == [2, 3, 2]


def test_a_session_that_another_process_makes_is_left_alone(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memories["default"].append("a", human("theirs"))
    monkeypatch.setattr(importing.Importer, "_find", lambda self, session: None)

    output = call("convmemory_import", write(record("a")))
    assert "0 sessions imported with 0 messages, 1 already in the database" in output
    assert stored("a") == [ChatMessage.human("theirs")]


@pytest.mark.django_db(transaction=True)
def test_two_imports_at_once_make_each_session_once(write: Any) -> None:
    path = write(*[record(str(number), *[human()] * 5, title="Rust") for number in range(40)])
    together = threading.Barrier(2)

    def work() -> str:
        together.wait()
        return str(call("convmemory_import", path))

    outputs = [each.result() for each in [InThread(work) for _ in range(2)]]

    assert sum(int(output.splitlines()[-1].split()[0]) for output in outputs) == 40
    assert list(models.Session.objects.values_list("last_position", "title")) == [(5, "Rust")] * 40
    assert models.Message.objects.count() == 200


def test_a_record_without_messages_is_left_out(write: Any) -> None:
    output = call("convmemory_import", write({"key": "a", "messages": []}, record("b")))

    assert output.endswith(
        "1 session imported with 1 message, 0 already in the database, 1 without messages skipped.\n"
    )
    assert models.Session.objects.count() == 1


def test_more_messages_than_a_batch_keep_their_exchanges(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "_BATCH", 3)
    asked = {"role": "assistant", "content": None, "tool_calls": [conversations.call("call_1")]}
    messages = [human(), human(), asked, {"role": "tool", "tool_call_id": "call_1", "content": ""}, human()]

    call("convmemory_import", write(record("a", *messages)))

    assert [message.to_openai() for message in stored("a")] == messages
    assert models.Message.objects.get(position=4).answers == 3


def test_sessions_become_due_and_no_task_is_sent(write: Any, settings: Any) -> None:
    inline = {"BACKEND": "django_convmemory.scheduling.InlineScheduler"}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "SCHEDULER": inline}}

    call("convmemory_import", write(record("long", *[human(TURN)] * 30), record("short")))

    due = models.Session.objects.due()
    assert list(due.values_list("key", "queued_at")) == [("long", None)]
    assert not models.Attempt.objects.exists()


def test_without_compaction_sessions_are_indexed_and_become_due_with_their_next_message(write: Any) -> None:
    path = write(*[record(key, *[human(TURN)] * 600) for key in "ab"])
    assert "model" not in call("convmemory_import", path, "--no-compact", "--dry-run")

    call("convmemory_import", path, "--no-compact")

    assert not models.Session.objects.due().exists()
    assert set(models.Session.objects.values_list("indexed_position", "due_since")) == {(600, None)}
    assert memories["default"].append("a", human()).due
    assert memories["default"].compact("b") == "published"
    assert models.Session.objects.get(key="b").covered_position > 0


def test_a_dry_run_estimates_what_folding_will_take(write: Any, settings: Any) -> None:
    options = {"max_token_limit": 200, "max_chunk_tokens": 500}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    path = write(record("there", *[human(TURN)] * 30), name="there.jsonl")
    call("convmemory_import", path)
    each = memories["default"].counter.count(ChatMessage.human(TURN))
    kept = 100 // each

    new = write(record("long", *[human(TURN)] * 30), record("short", *[human()] * 2))
    output = call("convmemory_import", path, new, "--dry-run")

    tokens = (30 - kept) * each
    assert output == (
        "3 sessions to import, 1 of them already in the database. "
        f"Folding the new ones takes about {-(-tokens // 500)} model calls over {tokens} tokens. "
        "It begins with the next sweep after the import.\n"
    )


@pytest.mark.parametrize("memory", ["Summary", "SummaryBuffer", "TokenBuffer"])
def test_every_memory_can_be_imported_into(memory: str, write: Any, settings: Any) -> None:
    settings.CONVMEMORY = {
        "default": {
            **settings.CONVMEMORY["default"],
            "MEMORY": f"django_convmemory.memory.Conversation{memory}Memory",
            "OPTIONS": {},
        }
    }
    path = write(record("long", *[human(TURN)] * 60))
    assert ("about 1 model call" in call("convmemory_import", path, "--dry-run")) == (memory != "TokenBuffer")
    call("convmemory_import", path)
    assert models.Session.objects.due().exists() == (memory != "TokenBuffer")


def test_a_second_record_of_the_same_name_is_refused_in_each_run(write: Any) -> None:
    path = write(record("a"), record("b"), record("a", human("another")), record("c"))
    for _ in range(2):
        with pytest.raises(CommandError, match="line 3: an earlier record has the same key and owner"):
            call("convmemory_import", path)
    assert models.Session.objects.count() == 2
    assert [message.text for message in stored("a")] == ["What is Rust?"]


def test_a_dry_run_reads_everything_and_stores_nothing(write: Any) -> None:
    path = write(record("long", *[human(TURN)] * 30), record("b"))
    assert call("convmemory_import", path, "--dry-run").startswith(
        "2 sessions to import, 0 of them already in the database. Folding the new ones"
    )
    late = write(record("a"), record("b", human(), {"role": "tool", "tool_call_id": "call_9", "content": "late"}))
    with pytest.raises(CommandError, match="line 2: message 2: No open exchange"):
        call("convmemory_import", late, "--dry-run")
    assert not models.Session.objects.exists()


def test_an_imported_session_is_indexed_without_what_was_redacted(write: Any) -> None:
    messages = [human(f"heron {number}") for number in range(300)]
    path = write(record("a", *messages, human("quetzal"), human("stork"), notes={"301": {"redacted": True}}))

    call("convmemory_import", path)

    session = models.Session.objects.get()
    assert session.indexed_position == 302
    terms = "".join(session.convmemory_segments.values_list("data", flat=True))
    assert "heron" in terms
    assert "quetzal" not in terms
    assert list(integrity.check(models.Session.objects.all())) == []


@pytest.mark.parametrize("index", [True, False])
def test_an_import_does_not_mark_what_only_has_to_be_indexed(index: bool, settings: Any, write: Any) -> None:
    settings.CONVMEMORY = {
        "default": {
            "MEMORY": "django_convmemory.memory.ConversationWindowMemory",
            "OPTIONS": {"window_size": 4, "index": index},
        }
    }
    call("convmemory_import", write(record("a", *[human("heron")] * 600)))
    session = models.Session.objects.get()
    assert (session.indexed_position, session.due_since) == (600 if index else 0, None)


def test_a_pipe_is_read_to_its_end(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(json.dumps(record("a"))))
    writer.start()

    call("convmemory_import", str(pipe))

    writer.join()
    assert models.Session.objects.get().key == "a"
