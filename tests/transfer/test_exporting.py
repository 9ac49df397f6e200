"""``manage.py convmemory_export`` writes the chosen sessions, each of them whole."""

from __future__ import annotations

import json
import pathlib
import stat
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from django_convmemory import models
from django_convmemory.maintenance.transfer import exporting
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.store import columns
from tests.transfer.records import call, exported, human, record

pytestmark = pytest.mark.django_db


@pytest.fixture
def sessions(two: None) -> None:
    """The session ``main`` of two users, a visitor and nobody, and others."""
    anna, bert = (User.objects.create_user(name) for name in ("anna", "bert"))
    scopes: list[dict[str, Any]] = [{"owner": anna}, {"owner": bert}, {"visitor": "v1"}, {}]
    for alias in ("default", "other"):
        memory = memories[alias]
        for number, scope in enumerate(scopes):
            for key in ("main", "Main"):
                memory.append(memory.session(key, **scope), human(f"{alias} {key} {number}"))


@pytest.mark.usefixtures("sessions")
def test_the_selected_sessions_are_exported_in_order() -> None:
    output = call("convmemory_export")
    assert len(output.splitlines()) == 16
    assert output == call("convmemory_export", "--alias", "other", "--alias", "default")
    of_v1 = [record["messages"][0]["content"] for record in exported("--visitor", "v1", "--alias", "other")]
    assert of_v1 == ["other main 2", "other Main 2"]


def test_an_alias_that_is_not_in_the_settings_can_be_exported(settings: Any, two: None) -> None:
    memories["other"].append("a", human())
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"]}

    assert [record["key"] for record in exported()] == ["a"]
    assert [record["key"] for record in exported("--alias", "other")] == ["a"]
    assert exported("--alias", "default") == []


def test_a_session_without_messages_is_left_out() -> None:
    memories["default"].append("a", human())
    memories["default"].clear("a")

    assert exported() == []


def test_a_file_is_written_whole_and_readable_for_its_owner_alone(tmp_path: pathlib.Path) -> None:
    memories["default"].append("a", human())
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_text("before")
    link.symlink_to(path)

    call("convmemory_export", "--output", link)

    assert json.loads(path.read_text())["key"] == "a"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError("the disk is full"), r"out cannot be written: the disk is full\. The file is unchanged\."),
        (KeyboardInterrupt(), r"^Interrupted\. To continue, run the command again\."),
    ],
)
def test_a_failed_export_leaves_the_file_as_it_was(
    error: BaseException, says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> int:
        raise error

    path = tmp_path / "out"
    path.write_text("before")
    memories["default"].append("a", human())
    monkeypatch.setattr(exporting, "records", fail)

    with pytest.raises(CommandError, match=says):
        call("convmemory_export", "--output", path)

    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_message_cannot_command_the_terminal_that_shows_an_export() -> None:
    text = "".join(map(chr, range(1, 0xA0))) + "\u2028\u2029"
    memories["default"].append("a", human(text))

    output = call("convmemory_export")

    controls = {character for character in output if not character.isprintable()}
    assert controls <= {"\n", "\x7f"}
    assert json.loads(output)["messages"] == [human(text)]


def test_a_session_that_is_truncated_during_the_export_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memories["default"]
    memory.append("a", *[human(str(number)) for number in range(5)])
    read = columns.message_of
    messages: list[str | None] = []

    def reading(*values: Any) -> ChatMessage:
        messages.append(values[2])
        if len(messages) == 2:
            memory.truncate("a", after=1)
            memory.append("a", human("anew"), human("and more"), human("and more"))
        return read(*values)

    monkeypatch.setattr(exporting, "_BATCH", 2)
    monkeypatch.setattr(columns, "message_of", reading)

    [record] = exported()

    assert [message["content"] for message in record["messages"]] == ["0", "anew", "and more", "and more"]
    assert messages[:2] == ["0", "1"]


def test_a_session_that_is_deleted_during_the_export_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memories["default"]
    memory.append("a", *[human()] * 6)
    read = columns.message_of

    def reading(*values: Any) -> ChatMessage:
        models.Session.objects.all().delete()
        return read(*values)

    monkeypatch.setattr(exporting, "_BATCH", 2)
    monkeypatch.setattr(columns, "message_of", reading)

    assert exported() == []


@pytest.mark.parametrize("options", [["--key", "mian"], ["--visitor", "v2"], ["--owner", "anna", "--key", "other"]])
def test_options_that_select_nothing_leave_the_last_export_alone(
    options: list[str], sessions: None, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("the last export")
    with pytest.raises(CommandError, match=r"^There are no messages to export\. .*was not written"):
        call("convmemory_export", "--output", path, *options)
    assert path.read_text() == "the last export"


def test_an_export_warns_of_a_line_that_an_import_refuses(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("django_convmemory.management.commands.convmemory_export.MAX_LINE", 1)
    memories["default"].append("a", human())
    memories["default"].append("b", *[human("x" * 1000)] * 2000)
    call_command("convmemory_export")
    warning, report = capsys.readouterr().err.splitlines()
    assert warning == "Line 2 has 3 MB. convmemory_import reads it only with --max-line-size=3 or more."
    assert report == "2 sessions exported with 2001 messages."


def test_standard_output_has_nothing_but_the_export(capsys: Any) -> None:
    memories["default"].append("a", human())
    call_command("convmemory_export")
    output = capsys.readouterr()
    assert [json.loads(line)["key"] for line in output.out.splitlines()] == ["a"]
    assert output.err == "1 session exported with 1 message.\n"


def test_verbosity_0_prints_nothing(write: Any, tmp_path: pathlib.Path, capsys: Any) -> None:
    call_command("convmemory_import", write(record("a")), verbosity=0)
    call_command("convmemory_export", "--output", tmp_path / "out", verbosity=0)
    assert capsys.readouterr() == ("", "")
