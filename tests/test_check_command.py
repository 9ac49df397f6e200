"""``manage.py convmemory_check`` finds every kind of damage, and none in intact sessions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F, Value
from django.db.models.functions import Replace

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.maintenance import integrity
from django_convmemory.memory import ConversationBufferMemory, ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.search import indexing
from django_convmemory.store.orm import ORMStore
from tests.conversations import call
from tests.folding import MarkerModel, build

pytestmark = pytest.mark.django_db


@pytest.fixture
def memory() -> ConversationSummaryBufferMemory:
    """A memory with a session ``s``: three versions, a pinned message, tool exchanges, the last one open."""
    memory = build(MarkerModel(), 40)
    memory.append("s", ChatMessage.system("Be kind."))
    for number in range(3):
        for turn in range(8):
            memory.append("s", ChatMessage.human(f"question {number} {turn} " + "word " * 5), ChatMessage.ai("answer"))
        memory.append("s", ChatMessage.ai(tool_calls=[call("c1"), call("c2")]))
        memory.append("s", ChatMessage.tool("done " * 20, "c1"), ChatMessage.tool("done " * 20, "c2"))
        memory.append("s", ChatMessage.human("and " * 40), idempotency_key=f"key-{number}")
        assert memory.compact("s") == "published"
    memory.append("s", ChatMessage.ai(tool_calls=[call("c3")]))
    memory.fork("s", 20, key="copy")
    return memory


def check(*arguments: str) -> tuple[int, str]:
    output = StringIO()
    try:
        call_command("convmemory_check", *arguments, stdout=output)
    except CommandError as error:
        return error.returncode, output.getvalue() + str(error)
    return 0, output.getvalue()


def test_sessions_without_damage_pass(memory: ConversationSummaryBufferMemory) -> None:
    assert check() == (0, "Checked 2 sessions. Nothing is wrong.\n")


def test_sessions_that_fail_are_counted_beside_sound_rows(memory: ConversationSummaryBufferMemory) -> None:
    models.Session.objects.filter(key="s").update(due_since=Clock(), attempts=3, last_error="ModelUnavailable: down")
    status, output = check()
    assert status == 0
    assert output == "Checked 2 sessions. Nothing is wrong.\n1 failing session: the overview in the admin says why.\n"


def test_a_question_that_was_answered_with_keys_passes() -> None:
    """The key of an answer has the place of its question."""
    memory = build(MarkerModel(), 40)
    memory.append("s", ChatMessage.ai("Hello."), ChatMessage.human("Hi"), idempotency_key="k")
    turn = memory.answer("s", None, lambda turn: "How are you?", key="l")
    memory.answer("s", again=turn.question, ask=lambda turn: "What can I do?", key="m")
    assert check() == (0, "Checked 1 session. Nothing is wrong.\n")


def messages(position: int, **changes: Any) -> Callable[[models.Session], Any]:
    return lambda session: session.convmemory_messages.filter(position=position).update(**changes)


def used_keys(**changes: Any) -> Callable[[models.Session], Any]:
    return lambda session: models.UsedKey.objects.update(**changes)


def summaries(version: int, **changes: Any) -> Callable[[models.Session], Any]:
    return lambda session: session.convmemory_summaries.filter(version=version).update(**changes)


def segment(**changes: Any) -> Callable[[models.Session], Any]:
    return lambda session: session.convmemory_segments.update(**changes)


def row(**changes: Any) -> Callable[[models.Session], Any]:
    return lambda session: models.Session.objects.filter(pk=session.pk).update(**changes)


def two_owners(session: models.Session) -> None:
    ann = get_user_model().objects.create(username="ann")
    models.Session.objects.filter(pk=session.pk).update(owner=ann, visitor="vera")


def second_line(session: models.Session) -> None:
    summary = session.convmemory_summaries.get(version=2)
    summary.pk, summary.version = None, session.last_version + 1
    summary.save()
    models.Session.objects.filter(pk=session.pk).update(last_version=F("last_version") + 1)


def cut_an_exchange(session: models.Session) -> None:
    asked = session.convmemory_messages.filter(answers__isnull=False).order_by("position").first()
    assert asked is not None
    assert asked.answers is not None
    through = session.convmemory_messages.get(position=asked.answers)
    session.convmemory_summaries.filter(version=1).update(last_position=through.position)
    session.convmemory_summaries.filter(version=2).update(first_position=through.position + 1)


DAMAGE: dict[str, tuple[str, Callable[[models.Session], Any]]] = {
    "a gap": ("gap", lambda session: session.convmemory_messages.filter(position=7).delete()),
    "a missing end": (
        "counter_last_position",
        lambda session: session.convmemory_messages.filter(position=session.last_position).delete(),
    ),
    "a wrong total": ("total", messages(9, tokens_through=F("tokens_through") + 1)),
    "a message without tokens": ("tokens", messages(9, tokens=0)),
    "an unknown role": ("message", messages(9, role="robot")),
    "metadata of the wrong type": ("message", messages(9, metadata=["no", "object"])),
    "a result without a call": ("stray_result", messages(9, role="tool", wire={"tool_call_id": "zzz"})),
    "a result of another call": (
        "answers",
        lambda session: session.convmemory_messages.filter(answers__isnull=False).update(answers=1),
    ),
    "a key of messages after the end": ("key", used_keys(size=1000)),
    "a key of no message": ("key", used_keys(size=0)),
    "keys of the same messages": ("key", used_keys(first_position=9)),
    "a redacted message with content": ("redacted", messages(9, redacted_at=Clock())),
    "a wrong count": ("counter_unpinned_count", row(unpinned_count=F("unpinned_count") - 1)),
    "a wrong sum": ("counter_unpinned_tokens", row(unpinned_tokens=F("unpinned_tokens") + 5)),
    "a wrong newest exchange": ("counter_newest_position", row(newest_position=1)),
    "a wrong settled sum": ("counter_settled_tokens", row(settled_tokens=0)),
    "a missing pinned message": ("counter_pinned", row(pinned="")),
    "a wrong number of pins": ("counter_pinned_total", row(pinned_count=5)),
    "a missing open call": ("counter_open_calls", row(open_calls="")),
    "a hash of another name": ("name_hash", row(name_hash="0" * 64)),
    "a session of an owner and a visitor": ("scope", two_owners),
    "a summary over a hole": ("hole", summaries(2, first_position=F("first_position") + 1)),
    "a line that begins late": ("hole", summaries(1, first_position=2)),
    "a line without its beginning": (
        "parent",
        lambda session: session.convmemory_summaries.filter(version=1).delete(),
    ),
    "a line that forks": ("fork_of_line", second_line),
    "a parent that is not valid": ("parent", summaries(2, invalidated_at=Clock())),
    "a range that ends before it begins": ("range", summaries(1, last_position=0)),
    "a version after the last one": ("version", row(last_version=1)),
    "a blank summary": ("blank", summaries(3, text=" ")),
    "a summary beyond the end": ("beyond", summaries(3, last_position=999)),
    "wrong totals of a summary": ("covered", summaries(2, covered_tokens=F("covered_tokens") + 3)),
    "an exchange cut by a summary": ("cut", cut_an_exchange),
    "a pointer to an invalid version": ("pointer", summaries(3, invalidated_at=Clock())),
    "a pointer to an old version": ("pointer", row(current_version=2)),
    "a wrong covered position": ("covered_by_session", row(covered_position=F("covered_position") - 1)),
    "a lease without an end": ("lease", row(lease_token="f" * 32, lease_expires_at=None)),
    "an end without a lease": ("lease", row(lease_token="", lease_expires_at=Clock(60))),
    "a due mark without anything to fold or to index": (
        "due",
        row(due_since=Clock(), settled_tokens=0, indexed_position=F("newest_position") - 1),
    ),
    "a segment that lacks a word": ("index", segment(data=Replace("data", Value("question"), Value("answer")))),
    "a segment that lacks its end": ("index_range", segment(last=F("last") - 1)),
    "a segment that begins late": ("index_range", segment(first=2)),
    "a missing segment": ("index_range", lambda session: session.convmemory_segments.all().delete()),
    "a segment after the end of the index": (
        "index_range",
        lambda session: session.convmemory_segments.create(first=900, last=900, data="0\t0\t"),
    ),
    "an index beyond the end of the session": ("index_range", row(indexed_position=999)),
    "a fork of itself": ("copy", row(forked_from=F("pk"), fork_position=1)),
    "pinned positions that cannot be read": ("unreadable", row(pinned="garbage")),
    "a wire form with an unknown field": ("wire", messages(9, wire={"secret": "text"})),
    "a wire form with a second content": ("wire", messages(9, wire={"content": [{"type": "text", "text": "x"}]})),
    "usage of the wrong type": ("usage", messages(9, usage=[1])),
    "a summary without tokens": ("tokens", summaries(3, tokens=0)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named(memory: ConversationSummaryBufferMemory, name: str) -> None:
    code, damage = DAMAGE[name]
    session = models.Session.objects.get(key="s")
    damage(session)

    findings = list(integrity.check(models.Session.objects.all()))

    assert code in {finding.code for finding in findings}
    assert {finding.session_id for finding in findings} == {session.pk}
    status, output = check()
    assert status == 1
    assert re.search(rf"^session {session.pk} \(default: s.*\): {code}: ", output, re.MULTILINE)


@pytest.mark.only_on("sqlite")  # Other databases refuse invalid JSON.
def test_invalid_json_is_found_and_other_sessions_are_checked(memory: ConversationSummaryBufferMemory) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE convmemory_message SET metadata = 'x' WHERE position = 9")
    models.Session.objects.filter(key="copy").update(fork_position=None)

    assert [finding.code for finding in integrity.check(models.Session.objects.all())] == ["unreadable"] * 2

    models.Message.objects.filter(position=9).update(metadata=None)
    assert [finding.code for finding in integrity.check(models.Session.objects.all())] == ["copy"]


def repairable(codes: frozenset[str]) -> list[str]:
    return [name for name, (code, _) in DAMAGE.items() if code in codes]


@pytest.mark.parametrize("name", repairable(integrity.OF_INDEX))
def test_a_damaged_index_is_made_again(memory: ConversationSummaryBufferMemory, name: str) -> None:
    session = models.Session.objects.get(key="s")
    indexing.index(memory.store, session.pk)
    before = list(session.convmemory_segments.values_list("first", "last", "data"))
    DAMAGE[name][1](session)
    assert "(--reindex repairs it)" in check()[1]
    assert check("--recount")[0] == 1

    assert check("--reindex") == (0, "Checked 2 sessions. 1 session reindexed. Nothing is wrong.\n")

    assert list(session.convmemory_segments.values_list("first", "last", "data")) == before
    assert check() == (0, "Checked 2 sessions. Nothing is wrong.\n")


@pytest.mark.parametrize("name", repairable(integrity.OF_COUNTS))
def test_wrong_counts_are_counted_again_unless_there_is_other_damage(
    memory: ConversationSummaryBufferMemory, settings: Any, name: str
) -> None:
    options = {"max_token_limit": 40}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    assert check("--recount") == (0, "Checked 2 sessions. 2 sessions recounted. Nothing is wrong.\n")
    session = models.Session.objects.get(key="s")
    columns = ("unpinned_count", "unpinned_tokens", "pinned", "pinned_count", "pinned_tokens", "open_calls", "counter")
    before = models.Session.objects.values(*columns).get(key="s")
    DAMAGE[name][1](session)
    findings = {finding.code for finding in integrity.check(models.Session.objects.all())}
    assert check("--reindex")[0] == 1

    status, output = check("--recount")

    if findings <= integrity.OF_COUNTS | integrity.OF_INDEX:
        assert (status, output) == (0, "Checked 2 sessions. 1 session recounted. Nothing is wrong.\n")
        assert models.Session.objects.values(*columns).get(key="s") == before
    else:
        assert (status, "recounted" in output) == (1, False)


def test_beside_damage_that_stays_nothing_is_repaired_or_promised(memory: ConversationSummaryBufferMemory) -> None:
    session = models.Session.objects.get(key="s")
    indexing.index(memory.store, session.pk)
    before = list(session.convmemory_segments.values_list("first", "last", "data"))
    session.convmemory_messages.filter(position=9).update(wire=[1], content=None)
    DAMAGE["a segment that lacks a word"][1](session)

    status, output = check("--recount", "--reindex")

    assert (status, "repairs it" in output, "Restore damaged rows" in output) == (1, False, True)
    assert len(list(session.convmemory_segments.values_list("first", "last"))) == len(before)


def test_what_no_memory_can_repair_is_not_promised(memory: ConversationSummaryBufferMemory, settings: Any) -> None:
    DAMAGE["a segment that lacks a word"][1](models.Session.objects.get(key="s"))
    assert "Run the command with the options that it names" in check()[1]
    settings.CONVMEMORY = {"other": settings.CONVMEMORY["default"]}
    assert "repairs it" not in check("--reindex")[1]


def test_a_session_that_lacks_messages_is_not_recounted(memory: ConversationSummaryBufferMemory) -> None:
    check("--recount")
    for name in ("a gap", "a missing end"):
        session = models.Session.objects.get(key="s")
        DAMAGE[name][1](session)
        status, output = check("--recount", "--reindex")
        assert status == 1
        assert "recounted" not in output
        assert models.Session.objects.get(key="s").unpinned_count == session.unpinned_count


def test_a_damaged_index_of_a_memory_without_an_index_is_removed(
    memory: ConversationSummaryBufferMemory, settings: Any
) -> None:
    session = models.Session.objects.get(key="s")
    options = {"max_token_limit": 40, "index": False}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    DAMAGE["a segment that lacks a word"][1](session)

    assert check("--reindex") == (0, "Checked 2 sessions. 1 session reindexed. Nothing is wrong.\n")

    assert list(session.convmemory_segments.all()) == []
    session.refresh_from_db()
    assert session.indexed_position == 0


@pytest.mark.only_on("sqlite")
def test_rows_without_a_session_are_found(memory: ConversationSummaryBufferMemory) -> None:
    session = models.Session.objects.get(key="copy")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE convmemory_message SET session_id = 999 WHERE session_id = %s", [session.pk])
        status, output = check()
        cursor.execute("UPDATE convmemory_message SET session_id = %s WHERE session_id = 999", [session.pk])
    assert status == 1
    assert "session 999: orphan: " in output


def test_findings_can_be_read_by_a_program(memory: ConversationSummaryBufferMemory) -> None:
    models.Session.objects.filter(key="s").update(unpinned_count=1)
    status, output = check("--json")
    finding = json.loads(output.splitlines()[0])
    assert (status, finding["code"], finding["repair"]) == (1, "counter_unpinned_count", "--recount")


def test_the_options_choose_an_alias_and_an_existing_database(memory: ConversationSummaryBufferMemory) -> None:
    models.Session.objects.filter(key="s").update(unpinned_count=1)
    ConversationBufferMemory(ORMStore(), alias="other").append("s", ChatMessage.human("hello"))
    assert check("--alias", "other")[0] == 0
    assert check("--alias", "default")[0] == 1
    assert check("--alias", "a name with a slip")[0] == 2
    assert check("--database", "nowhere")[0] == 2


def test_a_session_that_changes_during_the_check_is_read_again(
    memory: ConversationSummaryBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [ChatMessage.human("one more")]

    class Slow(integrity._Examination):
        def __init__(self, session: models.Session) -> None:
            super().__init__(session)
            while turns:
                memory.append("copy", turns.pop())

    monkeypatch.setattr(integrity, "_Examination", Slow)

    assert list(integrity.check(models.Session.objects.filter(key="copy"))) == []
    assert turns == []


@pytest.mark.django_db(transaction=True)
def test_pages_of_messages_and_of_sessions_are_put_together(
    memory: ConversationSummaryBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "_CHUNK", 7)
    monkeypatch.setattr(integrity, "_SEGMENTS", 1)
    monkeypatch.setattr(models, "_PAGE", 1)
    assert check()[0] == 0
    session = models.Session.objects.get(key="s")
    session.convmemory_messages.filter(position=15).update(tokens_through=1)
    status, output = check()
    assert status == 1
    assert "tokens_through of the message at 15 is 1" in output
