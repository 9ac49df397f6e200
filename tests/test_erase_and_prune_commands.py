"""``manage.py convmemory_erase`` and ``convmemory_prune`` delete the chosen rows, and nothing else."""

from __future__ import annotations

import builtins
import io
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction

from django_convmemory import clock, models
from django_convmemory.management import choices
from django_convmemory.management.commands import convmemory_prune
from django_convmemory.memory import memories
from tests.folding import attempt
from tests.test_changes_at_once import InThread
from tests.transfer.records import Terminal, call

pytestmark = pytest.mark.django_db

HELLO = {"role": "user", "content": "Hello"}
DAY = 86400


@pytest.fixture(autouse=True)
def two_memories(settings: Any) -> None:
    """The memories ``default`` and ``other``."""
    settings.CONVMEMORY = dict.fromkeys(("default", "other"), settings.CONVMEMORY["default"])


def first_messages() -> list[str]:
    """Return the text of the first message of each session in the database."""
    rows = models.Message.objects.filter(position=1).order_by("session_id")
    return [str(content) for content in rows.values_list("content", flat=True)]


# Erasing.


@pytest.fixture
def sessions(db: None) -> None:
    """Sessions of two users, two visitors and nobody, in two aliases. The first message of each says whose it is."""
    scopes: dict[str, dict[str, Any]] = {name: {"owner": User.objects.create_user(name)} for name in ("anna", "bert")}
    scopes |= {"v1": {"visitor": "v1"}, "V1": {"visitor": "V1"}, "nobody": {}}
    for alias in ("default", "other"):
        memory = memories[alias]
        for name, scope in scopes.items():
            for key in ("main", "Main"):
                text = f"{alias} {name} {key}"
                memory.append(memory.session(key, **scope), {"role": "user", "content": text}, HELLO)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list with the answer that a person at the terminal gives. The questions are appended to it."""
    answers = ["yes"]

    def answer(question: str) -> str:
        answers.append(question)
        return answers[0]

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(builtins, "input", answer)
    return answers


@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    ("arguments", "deleted"),
    [
        (["--owner", "anna"], ["default anna main", "default anna Main", "other anna main", "other anna Main"]),
        (["--visitor", "v1"], ["default v1 main", "default v1 Main", "other v1 main", "other v1 Main"]),
        (["--key", "main"], ["default nobody main", "other nobody main"]),
        (["--owner", "bert", "--key", "Main"], ["default bert Main", "other bert Main"]),
        (["--visitor", "V1", "--key", "main", "--alias", "other"], ["other V1 main"]),
        (["--owner", "anna", "--alias", "default"], ["default anna main", "default anna Main"]),
    ],
)
def test_erase_deletes_the_chosen_sessions_and_no_others(arguments: list[str], deleted: list[str]) -> None:
    before = first_messages()
    assert set(deleted) < set(before)

    output = call("convmemory_erase", "--no-input", *arguments)

    assert first_messages() == [text for text in before if text not in deleted]
    assert models.Message.objects.count() == 2 * len(first_messages())
    assert output.startswith(f"{len(deleted)} session")


@pytest.mark.usefixtures("sessions")
def test_erase_deletes_sessions_of_aliases_that_the_settings_no_longer_have(settings: Any) -> None:
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"]}

    assert call("convmemory_erase", "--owner", "anna", "--no-input") == "4 sessions with 8 messages deleted.\n"
    assert "2 sessions with 4" in call("convmemory_erase", "--visitor", "v1", "--alias", "other", "--no-input")

    assert not any("anna" in text for text in first_messages())
    assert [text for text in first_messages() if "v1" in text] == ["default v1 main", "default v1 Main"]


@pytest.mark.usefixtures("sessions")
def test_erase_asks_first_and_says_how_much_it_will_delete(answers: list[str]) -> None:
    output = call("convmemory_erase", "--owner", "anna")

    assert output == (
        "This deletes 4 sessions with 8 messages of the user 'anna'. The deletion cannot be undone.\n"
        "4 sessions with 8 messages deleted.\n"
    )
    assert answers[1:] == ["Type 'yes' to continue: "]


@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize("answer", ["", "no", "y", "YES"])
def test_any_other_answer_deletes_nothing(answer: str, answers: list[str]) -> None:
    answers[0] = answer

    with pytest.raises(CommandError, match="Nothing was deleted") as raised:
        call("convmemory_erase", "--visitor", "v1")

    assert raised.value.returncode == 1
    assert len(first_messages()) == 20


@pytest.mark.usefixtures("sessions")
def test_without_a_terminal_erase_requires_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))

    with pytest.raises(
        CommandError, match=r"1 session with 2 messages of .* 'v1' with the key 'main'.*--no-input"
    ) as raised:
        call("convmemory_erase", "--visitor", "v1", "--key", "main", "--alias", "default")

    assert raised.value.returncode == 2
    assert len(first_messages()) == 20


@pytest.mark.usefixtures("sessions")
def test_erase_does_not_ask_if_there_are_no_sessions(answers: list[str]) -> None:
    assert call("convmemory_erase", "--visitor", "v2") == "There are no sessions of the visitor 'v2'.\n"
    assert call("convmemory_erase", "--key", "absent", verbosity=0) == ""
    assert answers == ["yes"]


@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "Give --owner, --visitor or --key"),
        (["--alias", "default"], "Give --owner, --visitor or --key"),
        (["--owner", "absent"], "no user 'absent'"),
        (["--owner", ""], "--owner is empty"),
        (["--visitor", ""], "--visitor is empty"),
        (["--key", ""], "--key is empty"),
        (["--owner", "anna", "--alias", "absent"], "no alias 'absent'"),
        (["--owner", "anna", "--database", "absent"], "There is no database 'absent'"),
    ],
)
def test_a_wrong_command_line_deletes_nothing(arguments: list[str], error: str) -> None:
    with pytest.raises(CommandError, match=error) as raised:
        call("convmemory_erase", "--no-input", *arguments)

    assert raised.value.returncode == 2
    assert len(first_messages()) == 20


@pytest.mark.usefixtures("sessions")
def test_a_user_and_a_visitor_are_not_erased_together() -> None:
    with pytest.raises(CommandError):
        call("convmemory_erase", "--no-input", "--owner", "anna", "--visitor", "v1")
    with pytest.raises(CommandError, match="Give --owner or --visitor, not both"):
        call_command("convmemory_erase", interactive=False, owner="anna", visitor="v1")
    assert len(first_messages()) == 20


# Pruning: sessions.


def aged(*keys: str, days: float, alias: str = "default") -> None:
    """Make sessions that last changed this many days ago."""
    for key in keys:
        memories[alias].append(key, {"role": "user", "content": key}, HELLO)
    models.Session.objects.filter(alias=alias, key__in=keys).update(updated_at=clock.Clock(-days * DAY))


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_prune_deletes_inactive_sessions(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convmemory_prune, "_BATCH", batch)
    aged("a", "b", "c", days=91)
    aged("d", days=89)
    aged("e", days=91)

    assert call("convmemory_prune", "--inactive-for", "90d") == "4 sessions with 8 messages deleted.\n"
    assert first_messages() == ["d"]
    assert models.Message.objects.count() == 2


def test_prune_leaves_other_aliases_alone(settings: Any) -> None:
    aged("a", days=91)
    aged("b", days=91, alias="other")

    call("convmemory_prune", "--inactive-for", "90d", "--alias", "other")
    assert first_messages() == ["a"]

    aged("c", days=91, alias="other")
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"]}
    call("convmemory_prune", "--inactive-for", "90d")
    assert first_messages() == ["c"]
    call("convmemory_prune", "--inactive-for", "90d", "--alias", "other")
    assert first_messages() == []


def test_a_dry_run_deletes_nothing() -> None:
    aged("a", "b", days=91)
    attempted(91)
    memories["default"].append("c", HELLO)
    arguments = [f"--{name}=90d" for name in ("inactive-for", "attempts-older-than")]

    output = call("convmemory_prune", "--dry-run", *arguments)

    assert output == "2 sessions with 4 messages, 1 attempt would be deleted.\n"
    assert first_messages() == ["a", "b", "Hello"]
    assert call("convmemory_prune", *arguments) == output.replace("would be deleted", "deleted")


def test_a_session_that_is_used_during_a_prune_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    aged("a", "b", "c", days=91)
    delete = choices.delete

    def append_then_delete(sessions: models.SessionQuerySet) -> Counter[str]:
        memories["default"].append("b", HELLO)
        return delete(sessions)

    monkeypatch.setattr(choices, "delete", append_then_delete)

    assert call("convmemory_prune", "--inactive-for", "90d") == "2 sessions with 4 messages deleted.\n"
    assert first_messages() == ["b"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_on("postgresql", "mariadb")
def test_prune_waits_for_an_append_that_is_not_committed() -> None:
    aged("a", "b", days=91)
    with transaction.atomic():
        memories["default"].append("b", HELLO)
        pruning = InThread(lambda: call("convmemory_prune", "--inactive-for", "90d"))
        assert pruning.is_waiting()

    assert pruning.result() == "1 session with 2 messages deleted.\n"
    assert first_messages() == ["b"]
    assert models.Message.objects.filter(session__key="b").count() == 3


# Pruning: attempts.


def attempted(days: float, alias: str = "default") -> None:
    attempt(alias=alias, started_at=clock.Clock(-days * DAY))


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_old_attempts_are_deleted(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convmemory_prune, "_BATCH", batch)
    for days in (31, 29, 32, 33, 1):
        attempted(days)
    attempted(31, alias="third")

    output = call("convmemory_prune", "--attempts-older-than=30d")

    assert output == "3 attempts deleted.\n"
    assert models.Attempt.objects.count() == 3


# All kinds of pruning.

DURATIONS = ["soon", "0d", "-1d", "90", "d", "1.5h", "1w", "99999d", "٣d"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "What should be deleted"),
        (["--dry-run"], "What should be deleted"),
        (["--inactive-for", "soon"], "--inactive-for is 'soon'"),
        (["--attempts-older-than", "0d"], "--attempts-older-than is '0d'"),
        *(([f"--inactive-for={wrong}"], "Write a whole number above 0, followed by") for wrong in DURATIONS),
        (["--inactive-for", "90d", "--alias", "absent"], "no alias 'absent'"),
        (["--inactive-for", "90d", "--database", "absent"], "There is no database 'absent'"),
    ],
)
def test_a_wrong_command_line_prunes_nothing(arguments: list[str], error: str) -> None:
    aged("a", days=9999)

    with pytest.raises(CommandError, match=error) as raised:
        call("convmemory_prune", *arguments)

    assert raised.value.returncode == 2
    assert first_messages() == ["a"]


def test_prune_reports_zeros_for_an_empty_database() -> None:
    arguments = [f"--{name}=45s" for name in ("inactive-for", "attempts-older-than")]

    assert call("convmemory_prune", *arguments) == "0 sessions with 0 messages, 0 attempts deleted.\n"
    assert call("convmemory_prune", *arguments, verbosity=0) == ""


# Another database.


@pytest.fixture
def second(tmp_path: pathlib.Path, db: None) -> Iterator[str]:
    """A second database, with the user ``anna``."""
    connections.settings["second"] = {**connection.settings_dict, "NAME": str(tmp_path / "second.sqlite3")}
    connections["second"].connect()  # Tests may not open databases that the settings do not have.
    call_command("migrate", database="second", verbosity=0)
    User.objects.db_manager("second").create_user("anna")
    yield "second"
    connections["second"].close()
    del connections["second"], connections.settings["second"]


@pytest.mark.only_on("sqlite")
def test_every_command_has_the_option_database(second: str, tmp_path: pathlib.Path) -> None:
    path, database = tmp_path / "import.jsonl", f"--database={second}"
    path.write_text(json.dumps({"key": "main", "owner": "anna", "messages": [HELLO]}))

    assert "1 session imported" in call("convmemory_import", str(path), database)
    assert "1 session imported" not in call("convmemory_import", str(path), database)
    exported = json.loads(call("convmemory_export", "--owner=anna", database))
    assert exported["messages"] == [HELLO]
    assert call("convmemory_check", database).startswith("Checked 1 session.")
    models.Session.objects.using(second).update(updated_at=clock.Clock(-91 * DAY))
    assert call("convmemory_prune", "--inactive-for=90d", database).startswith("1 session ")
    call("convmemory_import", str(path), database)
    assert call("convmemory_erase", "--owner=anna", "--no-input", database).startswith("1 session with ")
    assert not models.Session.objects.using(second).exists()
    assert not models.Session.objects.exists()
