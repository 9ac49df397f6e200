"""``manage.py convmemory_erase`` and ``convmemory_prune``: what they delete, and what they keep."""

from __future__ import annotations

import builtins
import io
import json
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction

from django_convmemory import clock, models
from django_convmemory.core.values import AttemptOutcome
from django_convmemory.maintenance import integrity
from django_convmemory.management import deletion
from django_convmemory.memory import memories
from django_convmemory.testing import ScriptedMemories

if TYPE_CHECKING:
    from pytest_django import Settings

HELLO = {"role": "user", "content": "Hello"}
DAY = 86400


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def two(settings: Settings) -> None:
    """A second memory, ``other``."""
    settings.CONVMEMORY = dict.fromkeys(("default", "other"), settings.CONVMEMORY["default"])


def call(command: str, *arguments: str, **options: Any) -> str:
    out = options.pop("stream", None) or io.StringIO()
    call_command(command, *arguments, stdout=out, **options)
    return str(out.getvalue())


def left() -> list[str]:
    """Return the first message of each session."""
    rows = models.Message.objects.filter(position=1).order_by("session_id")
    return [str(content) for content in rows.values_list("content", flat=True)]


# Erasing.


@pytest.fixture
def sessions(db: None) -> None:
    """Sessions of two users, two visitors and nobody, in two aliases. The message of each says whose it is."""
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
    """The answer to each question of a command, followed by the questions."""
    answers = ["yes"]

    def answer(question: str) -> str:
        answers.append(question)
        return answers[0]

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(builtins, "input", answer)
    return answers


@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    ("arguments", "gone"),
    [
        (["--owner", "anna"], ["default anna main", "default anna Main", "other anna main", "other anna Main"]),
        (["--visitor", "v1"], ["default v1 main", "default v1 Main", "other v1 main", "other v1 Main"]),
        (["--key", "main"], ["default nobody main", "other nobody main"]),
        (["--owner", "bert", "--key", "Main"], ["default bert Main", "other bert Main"]),
        (["--visitor", "V1", "--key", "main", "--alias", "other"], ["other V1 main"]),
        (["--owner", "anna", "--alias", "default"], ["default anna main", "default anna Main"]),
    ],
)
def test_it_erases_what_was_chosen_and_nothing_else(arguments: list[str], gone: list[str]) -> None:
    before = left()
    assert set(gone) < set(before)

    said = call("convmemory_erase", "--no-input", *arguments)

    assert left() == [content for content in before if content not in gone]
    assert models.Message.objects.count() == 2 * len(left())
    assert said.startswith(f"{len(gone)} session")


@pytest.mark.usefixtures("sessions")
def test_sessions_of_aliases_that_have_gone_are_erased_too(settings: Settings) -> None:
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"]}

    assert call("convmemory_erase", "--owner", "anna", "--no-input") == "4 sessions deleted.\n"
    assert call("convmemory_erase", "--visitor", "v1", "--alias", "other", "--no-input") == "2 sessions deleted.\n"

    assert not any("anna" in content for content in left())
    assert [content for content in left() if "v1" in content] == ["default v1 main", "default v1 Main"]


@pytest.mark.usefixtures("sessions")
def test_it_asks_first_and_says_how_much_it_is(answers: list[str]) -> None:
    said = call("convmemory_erase", "--owner", "anna")

    assert said == (
        "This deletes 4 sessions with 8 messages of the user 'anna'. It cannot be undone.\n4 sessions deleted.\n"
    )
    assert answers[1:] == ["Type 'yes' to go on: "]


@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize("answer", ["", "no", "y", "YES"])
def test_any_other_answer_deletes_nothing(answer: str, answers: list[str]) -> None:
    answers[0] = answer

    with pytest.raises(CommandError, match="Nothing was deleted") as raised:
        call("convmemory_erase", "--visitor", "v1")

    assert raised.value.returncode == 1
    assert len(left()) == 20


@pytest.mark.usefixtures("sessions")
def test_without_a_terminal_it_has_to_be_told_not_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))

    with pytest.raises(
        CommandError, match=r"1 session with 2 messages of .* 'v1' with the key 'main'.*--no-input"
    ) as raised:
        call("convmemory_erase", "--visitor", "v1", "--key", "main", "--alias", "default")

    assert raised.value.returncode == 2
    assert len(left()) == 20


@pytest.mark.usefixtures("sessions")
def test_where_there_is_nothing_it_asks_nothing(answers: list[str]) -> None:
    assert call("convmemory_erase", "--visitor", "v2") == "There are no sessions of the visitor 'v2'.\n"
    assert call("convmemory_erase", "--key", "absent", verbosity=0) == ""
    assert answers == ["yes"]


@pytest.mark.usefixtures("sessions")
@pytest.mark.parametrize(
    ("arguments", "why"),
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
def test_a_wrong_command_line_deletes_nothing(arguments: list[str], why: str) -> None:
    with pytest.raises(CommandError, match=why) as raised:
        call("convmemory_erase", "--no-input", *arguments)

    assert raised.value.returncode == 2
    assert len(left()) == 20


@pytest.mark.usefixtures("sessions")
def test_a_user_and_a_visitor_are_not_erased_together() -> None:
    with pytest.raises(CommandError):
        call("convmemory_erase", "--no-input", "--owner", "anna", "--visitor", "v1")
    with pytest.raises(CommandError, match="give one of them"):
        call_command("convmemory_erase", interactive=False, owner="anna", visitor="v1")
    assert len(left()) == 20


# Pruning: sessions.


def aged(*keys: str, days: float, alias: str = "default") -> None:
    """Make sessions that were last changed so many days ago."""
    for key in keys:
        memories[alias].append(key, {"role": "user", "content": key}, HELLO)
    models.Session.objects.filter(alias=alias, key__in=keys).update(updated_at=clock.Clock(-days * DAY))


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [1, 2, 500])
def test_sessions_that_nobody_uses_are_deleted(batch: int) -> None:
    aged("a", "b", "c", days=91)
    aged("d", days=89)
    aged("e", days=91)

    assert (
        call("convmemory_prune", "--inactive-for", "90d", f"--batch={batch}") == "4 sessions with 8 messages deleted.\n"
    )
    assert left() == ["d"]
    assert models.Message.objects.count() == 2


@pytest.mark.django_db
def test_other_aliases_are_left_alone(settings: Settings) -> None:
    aged("a", days=91)
    aged("b", days=91, alias="other")

    call("convmemory_prune", "--inactive-for", "90d", "--alias", "other")
    assert left() == ["a"]

    aged("c", days=91, alias="other")
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"]}
    call("convmemory_prune", "--inactive-for", "90d")
    assert left() == ["c"]
    call("convmemory_prune", "--inactive-for", "90d", "--alias", "other")
    assert left() == []


@pytest.mark.django_db
def test_a_dry_run_deletes_nothing() -> None:
    aged("a", "b", days=91)
    attempted(91)
    versions(memories["default"].append("c", HELLO), (1, None, 91))
    arguments = [f"--{name}=90d" for name in ("inactive-for", "attempts-older-than", "versions-older-than")]

    said = call("convmemory_prune", "--dry-run", *arguments)

    assert said == "2 sessions with 4 messages, 1 attempts, 1 versions would be deleted.\n"
    assert left() == ["a", "b", "Hello"]
    assert call("convmemory_prune", *arguments) == said.replace("would be deleted", "deleted")


@pytest.mark.django_db
def test_a_session_that_is_used_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    aged("a", "b", "c", days=91)
    delete = deletion.delete

    def late(sessions: models.SessionQuerySet) -> deletion.Holding:
        memories["default"].append("b", HELLO)
        return delete(sessions)

    monkeypatch.setattr(deletion, "delete", late)

    assert call("convmemory_prune", "--inactive-for", "90d") == "2 sessions with 4 messages deleted.\n"
    assert left() == ["b"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.only_on("postgresql", "mariadb")
def test_an_append_that_is_not_committed_yet_is_waited_for() -> None:
    aged("a", "b", days=91)
    appended, said = threading.Event(), []

    def prune() -> None:
        try:
            appended.wait(60)
            said.append(call("convmemory_prune", "--inactive-for", "90d"))
        finally:
            connection.close()

    thread = threading.Thread(target=prune)
    thread.start()
    with transaction.atomic():
        memories["default"].append("b", HELLO)
        appended.set()
        thread.join(0.5)
        assert not said
    thread.join()

    assert said == ["1 session with 2 messages deleted.\n"]
    assert left() == ["b"]
    assert models.Message.objects.filter(session__key="b").count() == 3


# Pruning: attempts.


def attempted(days: float, alias: str = "default") -> None:
    models.Attempt.objects.create(
        alias=alias,
        first_position=1,
        last_position=2,
        outcome=AttemptOutcome.PUBLISHED,
        started_at=clock.Clock(-days * DAY),
    )


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [1, 2, 500])
def test_old_attempts_are_deleted(batch: int) -> None:
    for days in (31, 29, 32, 33, 1):
        attempted(days)
    attempted(31, alias="third")

    said = call("convmemory_prune", "--attempts-older-than=30d", f"--batch={batch}")

    assert said == "3 attempts deleted.\n"
    assert models.Attempt.objects.count() == 3


# Pruning: versions.


def versions(
    receipt: object, *rows: tuple[int, int | None, float], current: int = 0, given_up: tuple[int, ...] = ()
) -> models.Session:
    """Give the newest session these versions: number, parent, and age in days."""
    session = models.Session.objects.latest("pk")
    for version, parent, days in rows:
        session.convmemory_summaries.create(
            version=version,
            parent_version=parent,
            first_position=1,
            last_position=1,
            covered_count=1,
            covered_tokens=1,
            text="They spoke.",
            tokens=4,
            created_at=clock.Clock(-days * DAY),
            invalidated_at=clock.Clock() if version in given_up else None,
        )
    models.Session.objects.filter(pk=session.pk).update(current_version=current, last_version=len(rows))
    return session


def numbers(session: models.Session) -> list[int]:
    return list(session.convmemory_summaries.order_by("version").values_list("version", flat=True))


# Version 5 is current and descends from 3 and 1. The others were abandoned, and 6 is newer than the limit.
LINE: list[tuple[int, int | None, float]] = [(1, None, 99), (2, 1, 98), (3, 1, 97), (4, 3, 96), (5, 3, 95), (6, 2, 1)]


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [1, 500])
def test_old_versions_are_deleted_that_the_current_one_was_not_made_from(batch: int) -> None:
    memory = memories["default"]
    first = versions(memory.append("a", HELLO), *LINE, current=5, given_up=(2, 4, 6))
    second = versions(memory.append("b", HELLO), *LINE, current=5, given_up=(2, 4, 6))
    none_current = versions(memory.append("c", HELLO), *LINE, given_up=(1, 2, 3, 4, 5, 6))
    other = versions(memories["other"].append("a", HELLO), *LINE, current=5)

    said = call("convmemory_prune", "--versions-older-than=90d", "--alias=default", f"--batch={batch}")

    assert said == "9 versions deleted.\n"
    assert numbers(first) == numbers(second) == [1, 3, 5, 6]
    assert numbers(none_current) == [6]
    assert numbers(other) == [1, 2, 3, 4, 5, 6]


@pytest.mark.django_db
def test_a_valid_version_keeps_those_that_it_was_made_from() -> None:
    session = versions(memories["default"].append("a", HELLO), (1, None, 99), (2, 1, 89), (3, None, 95), current=3)

    assert call("convmemory_prune", "--versions-older-than=90d") == "0 versions deleted.\n"
    assert numbers(session) == [1, 2, 3]


@pytest.mark.django_db
def test_a_line_whose_beginning_is_not_there_ends_there() -> None:
    session = versions(memories["default"].append("a", HELLO), (2, 1, 99), (3, None, 99), (4, 2, 99), current=4)

    call("convmemory_prune", "--versions-older-than=90d")

    assert numbers(session) == [2, 4]


@pytest.mark.django_db
def test_what_is_being_worked_at_is_left_alone() -> None:
    session = versions(memories["default"].append("a", HELLO), *LINE, current=5)
    models.Session.objects.update(lease_expires_at=clock.Clock(60))

    assert call("convmemory_prune", "--versions-older-than=90d") == "0 versions deleted.\n"
    assert len(numbers(session)) == 6


@pytest.mark.django_db
def test_a_pruned_session_still_folds_and_falls_back(convmemory: ScriptedMemories) -> None:
    memory = memories["default"]
    convmemory.reply(*["It is about a cat."] * 100)
    convmemory.allow_unused_replies = True
    text = {"role": "user", "content": "The cat sat on the mat and thought about the sea. " * 4}
    for _ in range(30):
        memory.append("a", text)
        convmemory.run()
    session = models.Session.objects.get()
    made = numbers(session)
    models.Summary.objects.update(created_at=clock.Clock(-91 * DAY))

    call("convmemory_prune", "--versions-older-than=90d")
    assert numbers(session) == made
    memory.rebuild("a")
    models.Summary.objects.update(created_at=clock.Clock(-91 * DAY))
    call("convmemory_prune", "--versions-older-than=90d")

    rebuilt = numbers(session)
    assert set(rebuilt).isdisjoint(made)
    assert memory.load("a").summary is not None
    assert list(integrity.check(models.Session.objects.all())) == []
    memory.truncate("a", after=1)
    assert memory.load("a").to_openai() == [text]


# Both kinds of pruning.


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "What is too old"),
        (["--dry-run"], "What is too old"),
        (["--inactive-for", "soon"], "--inactive-for is 'soon'"),
        (["--attempts-older-than", "0d"], "--attempts-older-than is '0d'"),
        (["--versions-older-than", "90"], "--versions-older-than is '90'"),
        (["--inactive-for", "90d", "--batch", "0"], "--batch is 0"),
        (["--inactive-for", "90d", "--alias", "absent"], "no alias 'absent'"),
        (["--inactive-for", "90d", "--database", "absent"], "There is no database 'absent'"),
    ],
)
def test_a_wrong_command_line_prunes_nothing(arguments: list[str], why: str) -> None:
    aged("a", days=9999)

    with pytest.raises(CommandError, match=why) as raised:
        call("convmemory_prune", *arguments)

    assert raised.value.returncode == 2
    assert left() == ["a"]


@pytest.mark.django_db
def test_where_there_is_nothing_there_is_nothing_to_prune() -> None:
    arguments = [f"--{name}=45s" for name in ("inactive-for", "attempts-older-than", "versions-older-than")]

    assert call("convmemory_prune", *arguments) == "0 sessions with 0 messages, 0 attempts, 0 versions deleted.\n"


@pytest.mark.django_db
def test_a_prune_shows_a_bar_on_a_terminal() -> None:
    pytest.importorskip("tqdm")
    aged("a", "b", "c", days=91)

    assert "\rdeleted: 3 sessions" in call("convmemory_prune", "--inactive-for=90d", stream=Terminal())


@pytest.mark.django_db
def test_a_prune_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    aged("a", "b", "c", days=91)
    monkeypatch.setattr("django_convmemory.management.progress._EACH", 2)
    said = call("convmemory_prune", "--inactive-for=90d", "--batch=1")
    assert said == "2 sessions deleted so far\n3 sessions with 6 messages deleted.\n"

    aged("a", days=91)
    assert call("convmemory_prune", "--inactive-for=90d", verbosity=0) == ""


# Another database.


@pytest.fixture
def second(tmp_path: pathlib.Path, db: None) -> Iterator[str]:
    """A second database, with the user ``anna``."""
    connections.settings["second"] = {**connection.settings_dict, "NAME": str(tmp_path / "second.sqlite3")}
    connections["second"].connect()  # Tests may open none by themselves but those of the settings.
    call_command("migrate", database="second", verbosity=0)
    User.objects.db_manager("second").create_user("anna")
    yield "second"
    connections["second"].close()
    del connections["second"], connections.settings["second"]


@pytest.mark.only_on("sqlite")
def test_every_command_can_be_told_the_database(second: str, tmp_path: pathlib.Path) -> None:
    path, there = tmp_path / "given", f"--database={second}"
    path.write_text(json.dumps({"key": "main", "owner": "anna", "messages": [HELLO]}))

    assert "1 session imported" in call("convmemory_import", str(path), there)
    assert "1 session imported" not in call("convmemory_import", str(path), there)
    exported = json.loads(call("convmemory_export", "--owner=anna", there, stderr=io.StringIO()))
    assert exported["messages"] == [HELLO]
    assert json.loads(call("convmemory_stats", "--json", there))["default"]["sessions"] == 1
    models.Session.objects.using(second).update(updated_at=clock.Clock(-91 * DAY))
    assert call("convmemory_prune", "--inactive-for=90d", there).startswith("1 session ")
    call("convmemory_import", str(path), there)
    assert call("convmemory_erase", "--owner=anna", "--no-input", there) == "1 session deleted.\n"
    assert not models.Session.objects.using(second).exists()
    assert not models.Session.objects.exists()
