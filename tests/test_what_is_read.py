"""The statements of ``append``, ``load`` and ``history`` read no more of a long conversation than of a short one."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_convmemory import models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import (
    ConversationSummaryBufferMemory,
    ConversationTokenBufferMemory,
    ConversationWindowMemory,
)
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.segments import MOST_UNINDEXED
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.orm import ORMStore
from tests.indexes import searchable
from tests.long_sessions import fill
from tests.settings import DATABASE, LOOKUPS

pytestmark = pytest.mark.django_db

CONTROL = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK", "SET ", "SELECT SET_CONFIG", "SELECT @@")


def memory(limit: int = 200, **options: Any) -> ConversationSummaryBufferMemory:
    options.setdefault("scheduler", NullScheduler())
    return ConversationSummaryBufferMemory(ORMStore(), ScriptedChatModel([]), limit, **options)


def statements(work: Callable[[], Any]) -> list[str]:
    """Return the statements that ``work`` sends, without those that begin and end transactions."""
    with CaptureQueriesContext(connection) as captured:
        work()
    return [query["sql"] for query in captured if not query["sql"].upper().startswith(CONTROL)]


@pytest.mark.django_db(transaction=True)
def test_statements_of_append_and_load_do_not_depend_on_the_history() -> None:
    chat = memory()
    limit = 3 if connection.vendor == "mysql" else 2
    counts = []
    for size in (10, 10_000):
        key = f"session of {size}"
        fill(chat, key, size)
        loaded = statements(functools.partial(chat.load, key, system="Be kind."))
        pinned = statements(functools.partial(chat.append, key, ChatMessage.system("Answer in French.")))
        appended = statements(functools.partial(chat.append, key, ChatMessage.human("question")))
        many = statements(functools.partial(chat.append, key, *[ChatMessage.ai("answer")] * 50))
        keyed = statements(functools.partial(chat.append, key, ChatMessage.human("once"), idempotency_key="k"))
        with_pinned = statements(functools.partial(chat.load, key, system="Be kind."))
        context = chat.load(key)
        assert context.summary == "what was said"
        assert context.omitted == 0
        assert context[0].text == "Answer in French."
        counts.append([len(sent) for sent in (pinned, appended, many, keyed, loaded, with_pinned)])
    assert counts[0] == counts[1]
    assert counts[0][:3] == [1 if connection.vendor == "postgresql" else limit] * 3
    assert counts[0][3] <= limit + 1
    assert counts[0][4:] == [1 + LOOKUPS, 2 + LOOKUPS]


def positional(sql: str, params: Any) -> tuple[str, list[Any]]:
    """Return the statement with ``%s`` for each parameter, and the parameters in their order."""
    if not isinstance(params, dict):
        return sql, list(params)
    return re.sub(r"%\(\w+\)s", "%s", sql), [params[name] for name in re.findall(r"%\((\w+)\)s", sql)]


def reads(key: str) -> dict[str, tuple[int, tuple[str, list[Any]]]]:
    """Return, for each way to read a session of :func:`fill`, the most rows that it may read, and its statement."""
    chat, store = memory(), ORMStore()
    statements = {}
    for name, most, read in (
        ("the newest page", 50, lambda: chat.history(key, limit=50)),
        ("a page before", 50, lambda: chat.history(key, limit=50, before=9_000)),
        ("a page after", 50, lambda: chat.history(key, limit=50, after=9_000)),
        ("load", 6 + 1, lambda: chat.load(key)),
        ("load by tokens", 6 + 1, lambda: chat.load(key, max_tokens=10_000)),
        ("a window", 3 + 1, lambda: ConversationWindowMemory(store, 3).load(key)),
        ("a window by tokens", 3 + 1, lambda: ConversationWindowMemory(store, 3).load(key, max_tokens=10_000)),
        ("a buffer of tokens", 30 + 1, lambda: ConversationTokenBufferMemory(store, 30).load(key)),
        # The message before them is read for its time.
        ("a search", MOST_UNINDEXED + 2, lambda: searchable(store, chat.resolve(key))),
        ("a search before", MOST_UNINDEXED + 2, lambda: searchable(store, chat.resolve(key), before=9_000)),
    ):
        asked: list[tuple[str, list[Any]]] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any, asked: Any = asked) -> Any:
            asked.append(positional(sql, params))
            return execute(sql, params, many, context)

        with connection.execute_wrapper(note):
            read()
        *lookups, statement = asked
        assert len(lookups) == LOOKUPS
        statements[name] = most, statement
    return statements


def rows_read(name: str, params: list[Any]) -> int:
    """Execute a prepared statement, and return the largest number of rows that a part of its plan has read."""
    values = ", ".join(["%s"] * len(params))
    with connection.cursor() as cursor:
        cursor.execute(f'EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE "{name}"({values})', params)
        plan = json.dumps(cursor.fetchone()[0])
    return max(int(rows) for rows in re.findall(r"(?:Actual Rows|Rows Removed by Filter)\W+(\d+)", plan))


def prepare(name: str, sql: str) -> None:
    numbers = itertools.count(1)
    with connection.cursor() as cursor:
        cursor.execute(f'PREPARE "{name}" AS {re.sub("%s", lambda _: f"${next(numbers)}", sql)}')


@pytest.fixture
def plans() -> Iterator[None]:
    yield
    with connection.cursor() as cursor:
        # The app prepares statements of its own.
        cursor.execute("SELECT name FROM pg_prepared_statements WHERE NOT starts_with(name, 'convmemory_')")
        for (name,) in cursor.fetchall():
            cursor.execute(f'DEALLOCATE "{name}"')


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
def test_of_a_long_conversation_among_short_ones_no_more_is_read_than_is_shown(plan: str, plans: None) -> None:
    """The planner expects a session of the usual length."""
    chat = memory()
    for number in range(300):
        chat.append(f"short {number}", *[ChatMessage.human("hello")] * 10)
    fill(chat, "long", 20_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE convmemory_message")
        cursor.execute("ANALYZE convmemory_session")
        cursor.execute("SELECT set_config('plan_cache_mode', %s, true)", [plan])
    for name, (most, (sql, params)) in reads("long").items():
        prepare(name, sql)
        assert rows_read(name, params) <= most, name


@pytest.mark.only_on("postgresql")
def test_a_plan_that_was_made_when_there_was_little_serves_a_long_conversation(plans: None) -> None:
    """For an empty table all indexes cost the same, and a prepared statement keeps its plan."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)")
        # Otherwise it would scan a table of one page.
        cursor.execute("SELECT set_config('enable_seqscan', 'off', true)")
    chat = memory()
    asked = reads("long")
    for name, (_, (sql, params)) in asked.items():
        prepare(name, sql)
        rows_read(name, params)
    fill(chat, "long", 20_000)
    session = models.Session.objects.get()
    models.Summary.objects.bulk_create(
        models.Summary(
            session=session,
            version=version,
            first_position=1,
            last_position=1,
            covered_count=1,
            covered_tokens=1,
            text="b",
            tokens=1,
        )
        for version in range(2, 500)
    )
    for name, (most, (_, params)) in asked.items():
        assert rows_read(name, params) <= most, name


def test_load_reads_no_row_that_it_does_not_show() -> None:
    """While compaction lags behind, no more is read than fits in the budget."""
    chat = memory(limit=50, max_summary_tokens=50, max_context_tokens=150)
    for number in range(500):
        chat.append("s", ChatMessage.human(f"message {number}"))
    rows: list[int] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if "convmemory_message" in sql:
            rows.append(len(context["cursor"].fetchall()))
            return execute(sql, params, many, context)
        return result

    with connection.execute_wrapper(count):
        context = chat.load("s")
    assert {type(part.tokens) for part in context.parts} == {type(part.position) for part in context.parts} == {int}
    assert context.tokens <= 150
    assert context.omitted == 500 - len(context)
    assert rows == [pytest.approx(len(context), abs=1)]


@pytest.mark.parametrize("binding", ["client", "server"] if DATABASE == "postgresql" else ["client"])
@pytest.mark.parametrize("most", [32_767, 2**31 - 1, 2**31, 2**32 + 5, 2**53 - 1])
def test_a_number_larger_than_any_conversation_shows_all_of_it(
    most: int, binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if binding == "server":
        from django.db.backends.postgresql.base import ServerBindingCursor

        connection.ensure_connection()
        monkeypatch.setattr(connection.connection, "cursor_factory", ServerBindingCursor)
        monkeypatch.setattr(connection.features, "uses_server_side_binding", True)
    chat = ConversationWindowMemory(ORMStore(), most)
    chat.append("s", *[ChatMessage.system("Be kind.")] * 2, *[ChatMessage.human("hello")] * 3)
    assert len(chat.load("s")) == len(chat.load("s", max_tokens=most)) == 5
    assert len(ConversationTokenBufferMemory(ORMStore(), most).load("s")) == 5
    assert len(chat.history("s", limit=most)) == len(chat.history("s", limit=most, after=0)) == 5
    assert [message.position for message in chat.history("s", limit=most, before=4)] == [1, 2, 3]
    assert len(chat.history("s", limit=2, before=most)) == 2
