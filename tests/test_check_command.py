"""``manage.py convmemory_check`` finds every kind of damage, and reports nothing for an intact session."""

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
from django.db.models import F

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.maintenance import integrity
from django_convmemory.memory import ConversationBufferMemory, ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.schedulers import NullScheduler
from django_convmemory.stores.orm import ORMStore
from tests.conversations import call
from tests.folding import MarkerModel

pytestmark = pytest.mark.django_db


@pytest.fixture
def memory() -> ConversationSummaryBufferMemory:
    """A memory with a session ``s``: three versions, a pinned message, a tool exchange, and an open exchange."""
    memory = ConversationSummaryBufferMemory(ORMStore(), MarkerModel(), 40, scheduler=NullScheduler())
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


def test_what_is_whole_passes(memory: ConversationSummaryBufferMemory) -> None:
    assert check() == (0, "2 sessions, nothing wrong.\n")


def messages(position: int, **changes: Any) -> Callable[[models.Session], Any]:
    return lambda session: session.convmemory_messages.filter(position=position).update(**changes)


def summaries(version: int, **changes: Any) -> Callable[[models.Session], Any]:
    return lambda session: session.convmemory_summaries.filter(version=version).update(**changes)


def row(**changes: Any) -> Callable[[models.Session], Any]:
    return lambda session: models.Session.objects.filter(pk=session.pk).update(**changes)


def two_people(session: models.Session) -> None:
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
    "tokens of nothing": ("tokens", messages(9, tokens=0)),
    "an unknown role": ("message", messages(9, role="robot")),
    "JSON that is none": ("message", messages(9, metadata=["no", "object"])),
    "a result of nothing": ("stray_result", messages(9, role="tool", wire={"tool_call_id": "zzz"})),
    "a result of another call": (
        "answers",
        lambda session: session.convmemory_messages.filter(answers__isnull=False).update(answers=1),
    ),
    "a payload without a key": ("key", messages(9, payload_hash="f" * 64)),
    "a redacted message that speaks": ("redacted", messages(9, redacted_at=Clock())),
    "a wrong count": ("counter_unpinned_count", row(unpinned_count=F("unpinned_count") - 1)),
    "a wrong sum": ("counter_unpinned_tokens", row(unpinned_tokens=F("unpinned_tokens") + 5)),
    "a wrong newest exchange": ("counter_newest_position", row(newest_position=1)),
    "a wrong settled sum": ("counter_settled_tokens", row(settled_tokens=0)),
    "a forgotten pin": ("counter_pinned", row(pinned="")),
    "a wrong number of pins": ("counter_pinned_total", row(pinned_count=5)),
    "a forgotten open call": ("counter_open_calls", row(open_calls="")),
    "a hash of another name": ("name_hash", row(name_hash="0" * 64)),
    "a session of two people": ("scope", two_people),
    "a summary over a hole": ("hole", summaries(2, first_position=F("first_position") + 1)),
    "a line that begins late": ("hole", summaries(1, first_position=2)),
    "a line without its beginning": (
        "parent",
        lambda session: session.convmemory_summaries.filter(version=1).delete(),
    ),
    "a line that forks": ("fork_of_line", second_line),
    "a parent that is not valid": ("parent", summaries(2, invalidated_at=Clock())),
    "a range backwards": ("range", summaries(1, last_position=0)),
    "a version of the future": ("version", row(last_version=1)),
    "a blank summary": ("blank", summaries(3, text=" ")),
    "a summary beyond the end": ("beyond", summaries(3, last_position=999)),
    "wrong totals of a summary": ("covered", summaries(2, covered_tokens=F("covered_tokens") + 3)),
    "an exchange cut by a summary": ("cut", cut_an_exchange),
    "a pointer to an invalid version": ("pointer", summaries(3, invalidated_at=Clock())),
    "a pointer to an old version": ("pointer", row(current_version=2)),
    "a wrong covered position": ("covered_by_session", row(covered_position=F("covered_position") - 1)),
    "a lease without an end": ("lease", row(lease_token="f" * 32, lease_expires_at=None)),
    "an end without a lease": ("lease", row(lease_token="", lease_expires_at=Clock(60))),
    "a mark for nothing": ("due", row(due_since=Clock(), settled_tokens=0)),
    "a copy of its own": ("copy", row(forked_from=F("pk"), fork_position=1)),
    "pinned positions that cannot be read": ("unreadable", row(pinned="garbage")),
    "a wire form with more in it": ("wire", messages(9, wire={"secret": "text"})),
    "a wire form that says another thing": ("wire", messages(9, wire={"content": [{"type": "text", "text": "x"}]})),
    "a usage that is none": ("usage", messages(9, usage=[1])),
    "a summary that counts nothing": ("tokens", summaries(3, tokens=0)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_named(memory: ConversationSummaryBufferMemory, what: str) -> None:
    code, plant = DAMAGE[what]
    session = models.Session.objects.get(key="s")
    plant(session)

    found = list(integrity.check(models.Session.objects.all()))

    assert code in {finding.code for finding in found}
    assert {finding.session_id for finding in found} == {session.pk}
    status, said = check()
    assert status == 1
    assert re.search(rf"^session {session.pk} \(default: s.*\): {code}: ", said, re.MULTILINE)


@pytest.mark.only_on("sqlite")  # The others do not take it.
def test_what_is_no_json_is_found_and_the_rest_is_checked(memory: ConversationSummaryBufferMemory) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE convmemory_message SET metadata = 'x' WHERE position = 9")
    models.Session.objects.filter(key="copy").update(fork_position=None)

    assert [finding.code for finding in integrity.check(models.Session.objects.all())] == ["unreadable"] * 2

    models.Message.objects.filter(position=9).update(metadata=None)
    assert [finding.code for finding in integrity.check(models.Session.objects.all())] == ["copy"]


def test_the_kinds_of_damage_are_many() -> None:
    assert len({code for code, _ in DAMAGE.values()}) >= 15


@pytest.mark.only_on("sqlite")
def test_rows_of_no_session_are_found(memory: ConversationSummaryBufferMemory) -> None:
    session = models.Session.objects.get(key="copy")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE convmemory_message SET session_id = 999 WHERE session_id = %s", [session.pk])
        status, said = check()
        cursor.execute("UPDATE convmemory_message SET session_id = %s WHERE session_id = 999", [session.pk])
    assert status == 1
    assert "session 999: orphan: " in said


def test_findings_can_be_read_by_a_program(memory: ConversationSummaryBufferMemory) -> None:
    models.Session.objects.filter(key="s").update(unpinned_count=1)
    status, said = check("--json")
    finding = json.loads(said.splitlines()[0])
    assert (status, finding["code"]) == (1, "counter_unpinned_count")


def test_one_memory_can_be_chosen_and_a_database_must_be_there(memory: ConversationSummaryBufferMemory) -> None:
    models.Session.objects.filter(key="s").update(unpinned_count=1)
    ConversationBufferMemory(ORMStore(), alias="other").append("s", ChatMessage.human("hello"))
    assert check("--alias", "other")[0] == 0
    assert check("--alias", "default")[0] == 1
    assert check("--alias", "a name with a slip")[0] == 2
    assert check("--database", "nowhere")[0] == 2
