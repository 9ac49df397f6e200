"""What the tests of conversions share: a small site, a conversion of it, and what must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_convmemory import models
from django_convmemory.contrib.partitions import conversion
from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.maintenance import integrity
from django_convmemory.memory import ConversationBufferMemory, ConversationMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.orm import ORMStore

PARTITIONS = 16


class Interrupted(Exception):
    pass


def memory() -> ConversationMemory:
    return ConversationBufferMemory(ORMStore(), scheduler=NullScheduler())


def rows(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def convert(report: Callable[[str], None] = lambda sentence: None) -> None:
    conversion.convert(PatientDatabase("default", 300), PARTITIONS, report)


def talk(count: int = 40) -> None:
    for number in range(count):
        texts = [ChatMessage.human(f"question {number}.{place}") for place in range(number % 7)]
        memory().append(f"chat {number}", ChatMessage.system("Be kind."), *texts, idempotency_key=f"k{number}")


def everything() -> list[Any]:
    return list(models.Message.objects.order_by("session_id", "position").values_list())


def is_kept(before: list[Any]) -> None:
    """The messages that there were before are as they were."""
    kept = {row[:2]: row for row in everything()}
    assert all(kept[row[:2]] == row for row in before)


def check() -> None:
    """The messages are partitioned and whole, nothing of the conversion is left, and an append works."""
    assert list(integrity.check(models.Session.objects.all())) == []
    assert list(integrity.orphans("default")) == []
    kinds = dict(
        rows("SELECT relname, relkind FROM pg_class WHERE relname LIKE 'convmemory_message%' AND relkind IN ('r', 'p')")
    )
    assert kinds.pop("convmemory_message") == "p"
    assert sorted(kinds) == [f"convmemory_message_p{number:02}" for number in range(PARTITIONS)]
    assert rows("SELECT count(*) FROM pg_proc WHERE proname LIKE 'convmemory%'") == [(0,)]
    receipt = memory().append("chat 1", ChatMessage.human("And now?"), idempotency_key="now")
    assert memory().append("chat 1", ChatMessage.human("And now?"), idempotency_key="now").replayed
    assert memory().load("chat 1")[-1].text == "And now?"
    assert receipt.first_position == models.Session.objects.get(key="chat 1").last_position


def names() -> list[Any]:
    return [
        rows("SELECT relname, relkind FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"),
        rows("SELECT conname FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1"),
        rows("SELECT count(*) FROM pg_trigger"),
        rows("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"),
    ]


def after(step: str, work: Callable[[], Any]) -> Callable[[str], None]:
    """Return a report for :func:`convert` that does the work after the step whose sentence begins with this word."""

    def report(sentence: str) -> None:
        if sentence.startswith(step):
            work()

    return report


def interrupt() -> None:
    raise Interrupted


def interrupt_after(step: str) -> None:
    with pytest.raises(Interrupted):
        convert(after(step, interrupt))
