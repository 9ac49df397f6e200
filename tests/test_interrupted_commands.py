"""A command that somebody interrupts says how to go on, and the next run does so."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.maintenance.transfer.importing import Importer
from django_convmemory.management import choices
from django_convmemory.memory import memories
from django_convmemory.search import indexing

if TYPE_CHECKING:
    import pathlib

pytestmark = pytest.mark.django_db


def interrupt(*args: Any, **kwargs: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"key": "chat", "messages": [{"role": "user", "content": "Hello"}]}))
    return path


AGAIN = "To continue, run the command again."


@pytest.mark.parametrize(
    ("owner", "function", "command", "how"),
    [
        (integrity, "recount", "convmemory_check --recount", "To continue, run the command with --after 0."),
        (indexing, "catch_up", "convmemory_check --reindex", "To continue, run the command with --after 0."),
        (choices, "delete", "convmemory_prune --inactive-for 1d", AGAIN),
        (choices, "delete", "convmemory_erase --key chat --no-input", AGAIN),
        (choices, "delete", "convmemory_erase --visitor somebody --no-input", AGAIN),
    ],
)
def test_an_interrupted_command_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, owner: object, function: str, command: str, how: str
) -> None:
    whose: dict[str, Any] = {"visitor": "somebody"} if "--visitor" in command else {}
    memories["default"].session("chat", **whose).append({"role": "user", "content": "Hello"})
    models.Session.objects.update(updated_at="2020-01-01T00:00:00Z", counter="another")
    with monkeypatch.context() as patch:
        patch.setattr(owner, function, interrupt)
        with pytest.raises(CommandError) as caught:
            call_command(*command.split(), stdout=StringIO())
    assert str(caught.value).startswith("Interrupted")
    assert str(caught.value).endswith(how)
    output = StringIO()
    call_command(*command.split(), stdout=output)
    assert "1 session" in output.getvalue()


def test_a_check_that_is_interrupted_in_its_last_phase_continues_there(monkeypatch: pytest.MonkeyPatch) -> None:
    memories["default"].append("chat", {"role": "user", "content": "Hello"})
    session = models.Session.objects.get()
    with monkeypatch.context() as patch:
        patch.setattr(integrity, "orphans", interrupt)
        with pytest.raises(CommandError, match=rf"^Interrupted, with 0 findings so far\. .* --after {session.pk}\.$"):
            call_command("convmemory_check", stdout=StringIO())
    output = StringIO()
    call_command("convmemory_check", "--after", str(session.pk), stdout=output)
    assert output.getvalue() == "Checked 0 sessions. Nothing is wrong.\n"


@pytest.mark.parametrize(("step", "arguments"), [("expect", ["--dry-run"]), ("add", [])])
def test_an_interrupted_import_says_how_to_continue(
    step: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, file: pathlib.Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Importer, step, interrupt)
        with pytest.raises(CommandError, match=r"^Interrupted\. To continue, run the command again\.$"):
            call_command("convmemory_import", str(file), *arguments, stdout=StringIO())
    call_command("convmemory_import", str(file), stdout=StringIO())
    assert models.Session.objects.get().key == "chat"
