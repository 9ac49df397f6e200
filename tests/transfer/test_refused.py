"""The records that ``convmemory_import`` refuses, and its error messages."""

from __future__ import annotations

import io
import json
import pathlib
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import OperationalError

from django_convmemory import models
from django_convmemory.maintenance.transfer import importing
from django_convmemory.maintenance.transfer.records import BadRecord, read
from django_convmemory.memory import memories
from tests import processes
from tests.transfer.records import TIME, call, human, record

pytestmark = pytest.mark.django_db

_ID = "018f3c1e-7a00-7000-8000-000000000000"
_KEY = {"key_hash": "0" * 64, "first_position": 1, "size": 1}
_LATE = {"role": "tool", "tool_call_id": "call_9", "content": "late"}
BAD = {
    "no JSON": ('{"key": "b", nonsense}', "this is not JSON"),
    "cut off": ('{"key": "b", "messages": [', "this is not JSON"),
    "nested too deep": ('{"key":' + "[" * 200_000, "nested too deeply"),
    "a number too long": ('{"key": ' + "9" * 5000 + "}", "this is not JSON"),
    "a list": ([record("b")], "a record is an object .* not a list. Write one record a line"),
    "no object": ('"b"', "a record is an object .* not a string"),
    "no key": ({"messages": [human()]}, "no 'key'"),
    "no messages": ({"key": "b"}, "no 'messages'"),
    "an unknown field": (record("b", user="anna"), "unknown field 'user'"),
    "metadata with a sequence for terminals": (
        '{"key": "b", "messages": [], "metadata": {"\\u001b[31m": NaN}}',
        r"\?\[31m",
    ),
    "a role of great length": (record("b", {"role": "r" * 5000, "content": ""}), "r…|…"),
    "a key of another type": ({"key": 7, "messages": [human()]}, "key must be a string, not a number"),
    "an empty key": (record(""), "1 to 255 characters"),
    "a key too long": (record("k" * 256), "1 to 255 characters"),
    "a key with NUL": (record("a\0b"), "key contains a NUL"),
    "messages of another type": ({"key": "b", "messages": {}}, "messages must be a list, not an object"),
    "an owner of null": (record("b", owner=None), "owner must be a string, not null"),
    "an unknown owner": (record("b", owner="nobody"), "no user 'nobody'"),
    "an owner with NUL": (record("b", owner="an\0na"), "owner contains a NUL"),
    "an owner and a visitor": (record("b", owner="anna", visitor="v1"), "to an owner or to a visitor"),
    "an empty visitor": (record("b", visitor=""), "1 to 64 characters"),
    "a title too long": (record("b", title="t" * 256), "more than 255 characters"),
    "metadata of another type": (record("b", metadata=[]), "metadata must be an object, not a list"),
    "metadata that is no JSON": ('{"key": "b", "messages": [], "metadata": {"n": NaN}}', "metadata.n holds nan"),
    "a time without zone": (record("b", created_at="2024-05-01T10:00:00"), "created_at is .* with its zone"),
    "a time that is none": (record("b", created_at="yesterday"), "created_at is 'yesterday'"),
    "a time before all zones": (record("b", created_at="0001-01-01T00:00:00+14:00"), "created_at is"),
    "a note nowhere": (record("b", notes={"2": {}}), "position '2', but positions are 1 to 1"),
    "a note on no position": (record("b", notes={"first": {}}), "position 'first'"),
    "a note of another type": (record("b", notes={"1": None}), "note on position 1 must be an object, not null"),
    "an unknown note": (record("b", notes={"1": {"tokens": 3}}), "note on position 1 has the unknown field 'tokens'"),
    "a kind of another type": (record("b", notes={"1": {"kind": 7}}), "message 1: kind must be a string"),
    "a time of the archive": (record("b", archived_at=True), "archived_at is True"),
    "a time of a note": (record("b", notes={"1": {"created_at": 7}}), "created_at of the note on position 1 is 7"),
    "a message of another type": (record("b", human(), 7), "message 2: Cannot read a message from a int"),  # type: ignore[arg-type]
    "an unknown role": (record("b", human(), {"role": "robot"}), "message 2: Unknown role 'robot'"),
    "a message with NUL": (record("b", human("a\0b")), "message 1: content contains a NUL"),
    "half a character": (
        '{"key": "b", "messages": [{"role": "user", "content": "\\ud83d"}]}',
        "message 1: .*surrogate",
    ),
    "a result of no call": (record("b", human(), human(), _LATE), "message 3: No open exchange has a call"),
    "too many pinned": (record("b", *[{"role": "system", "content": "x"}] * 65), "message 65: The session holds 64"),
    "an id that is none": (record("b", ids=["7"]), "ids has a text that is no UUID"),
    "an id for two messages": (record("b", human(), human(), ids=[_ID, _ID]), "1 different ids for 2 messages"),
    "a used key without a size": (record("b", used_keys=[_KEY | {"size": 0}]), "used key 1 is not of messages"),
    "a used key of later messages": (record("b", used_keys=[_KEY | {"size": 2}]), "used key 1 is not of messages"),
    "a used key without a hash": (record("b", used_keys=[_KEY | {"key_hash": "k"}]), "must have 64 hex digits"),
    "a used key without a position": (record("b", used_keys=[{"key_hash": "0" * 64}]), "used key 1 is not of messages"),
    "a used key twice": (record("b", used_keys=[_KEY, _KEY | {"gone_at": TIME}]), "used_keys has a key_hash twice"),
    "a used key at true": (record("b", used_keys=[_KEY | {"first_position": True}]), "used key 1 is not of messages"),
    "two used keys of one message": (
        record("b", human(), human(), used_keys=[_KEY | {"size": 2}, _KEY | {"key_hash": "1" * 64}]),
        "used_keys has two keys for one message",
    ),
    "a message too large": (record("b", human(), human("x" * 5_000_000)), "message 2: .*max_message_bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_named_and_the_records_before_it_stay(name: str, write: Any) -> None:
    bad_record, why = BAD[name]
    path = write("", record("a"), bad_record, record("c"))

    with pytest.raises(CommandError, match=rf"^{path}, line 3: (?s:.*){why}") as raised:
        call("convmemory_import", path)

    assert raised.value.returncode == 1
    assert "The sessions before it are imported (1 session imported with 1 message" in str(raised.value)
    assert list(models.Session.objects.values_list("key", flat=True)) == ["a"]


def test_the_place_of_bytes_that_are_not_utf_8_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(json.dumps(record("a")).encode() + b"\n" + '{"key": "Zoë"}\n'.encode("latin-1"))

    with pytest.raises(CommandError, match=r"line 2: this is not UTF-8\. Convert"):
        call("convmemory_import", path)
    assert models.Session.objects.count() == 1


@pytest.mark.parametrize("batch", [2, 1000])
def test_a_session_with_one_bad_message_is_not_stored_at_all(
    batch: int, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "_BATCH", batch)

    with pytest.raises(CommandError, match=r"message 6: .*Nothing was imported\."):
        call("convmemory_import", write(record("a", *[human()] * 5, _LATE)))

    assert not models.Session.objects.exists()
    assert not models.Message.objects.exists()


def test_an_error_of_the_database_names_the_record(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    update = models.SessionQuerySet.update

    def refuse(self: models.SessionQuerySet, **columns: Any) -> int:
        if "title" in columns:
            raise OperationalError("out of space")
        return update(self, **columns)

    monkeypatch.setattr(models.SessionQuerySet, "update", refuse)

    with pytest.raises(CommandError, match=r"line 2: the database refused it .*1 session imported"):
        call("convmemory_import", write(record("a"), record("b", title="Rust")))
    assert list(models.Session.objects.values_list("key", flat=True)) == ["a"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("import absent.jsonl", "absent.jsonl is not a file"),
        (f"import {pathlib.Path(__file__).parent}", "is not a file"),
        ("import - --alias absent", "no alias 'absent'. Choose one of: default"),
        ("import - --database absent", "There is no database 'absent'. Choose one of: default"),
        ("export --alias absent", "no alias 'absent'"),
        ("export --output /dev/null", "is not a file"),
        ("export --output /absent/file", "is not a file, or its folder does not exist"),
        ("export --database absent", "There is no database 'absent'"),
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: str, why: str) -> None:
    with pytest.raises(CommandError, match=why) as raised:
        call(*f"convmemory_{arguments}".split())

    assert raised.value.returncode == 2


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_an_export_is_utf_8_whatever_the_locale(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    memories["default"].append("a", human("一种语言"))

    assert processes.start(tmp_path, "django", "convmemory_export", "--verbosity=0").wait(processes.PATIENCE) == 0

    assert json.loads((tmp_path / "output").read_text("utf-8"))["messages"] == [human("一种语言")]


def test_a_record_that_is_too_long_is_refused_and_the_import_continues_with_a_greater_limit(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "records"
    texts = [json.dumps(each) for each in (record("a"), record("b", *[human("x" * 1000)] * 3000), record("c"))]
    path.write_text("\n".join(texts))

    with pytest.raises(CommandError, match=r"line 2: this is longer than 1 MB.*--max-line-size.*1 session imported"):
        call("convmemory_import", path, "--max-line-size=1")
    assert set(models.Session.objects.values_list("key", flat=True)) == {"a"}
    assert "2 sessions imported with 3001 messages, 1 already" in call("convmemory_import", path, "--max-line-size=4")


def test_a_record_that_is_too_long_is_not_read_to_its_end() -> None:
    text = json.dumps(record("b", human("x" * 1_000_000)))
    file = io.StringIO(text)
    with pytest.raises(BadRecord, match="longer than"):
        list(read(file, 100_000))
    assert file.tell() < 300_000
    [whole] = read(io.StringIO(text), len(text))
    assert whole.key == "b"
