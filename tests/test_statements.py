"""The SQL statements of the stores on each database, as ``tests/golden`` shows them.

``make golden`` writes those files again: run it after a change of the statements, and read the difference.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from django_convmemory.messages import ChatMessage
from django_convmemory.rules.counters import Batch, Entry
from django_convmemory.rules.strategies import Threshold, View
from django_convmemory.rules.values import AttemptOutcome, AttemptRecord, Claim, NewVersion, SessionName
from django_convmemory.search import indexing
from django_convmemory.store import sql
from django_convmemory.store.orm import ORMStore
from tests.indexes import searchable, searchable_of
from tests.settings import DATABASE, PARTITIONS

pytestmark = pytest.mark.vendors

GOLDEN = Path(__file__).parent / "golden"
# The name of each database's file, and what Django calls the database.
VENDORS = {"postgresql": "postgresql", "sqlite": "sqlite", "mariadb": "mysql"}

NAME = SessionName("default", "key")
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
USER, ASSISTANT, CALLS = ChatMessage.human("Hi."), ChatMessage.ai("Hello."), ChatMessage.ai(tool_calls=[CALL])
SYSTEM = ChatMessage.system("Be brief.")
RESULT, OTHER_RESULT = ChatMessage.tool("1", "call_1"), ChatMessage.tool("2", "call_2")
FULL = Entry(
    ChatMessage.ai("Hello.", kind="plan", name="anna", metadata={"a": 1}),
    tokens=10,
    usage={"total_tokens": 7},
    created_at=dt.datetime(2025, 1, 1, tzinfo=dt.UTC),
)
TOKENS, MESSAGES, BOTH, NEVER = Threshold(tokens=2000), Threshold(messages=8), Threshold(2000, 8), Threshold()
UNINDEXED, ALL = Threshold(unindexed=256), Threshold(2000, 8, 256)


def batch(*messages: ChatMessage | Entry, key: str | None = None) -> Batch:
    entries = [message if isinstance(message, Entry) else Entry(message, 10) for message in messages]
    return Batch(entries, idempotency_key=key)


# By what is special about the append: the session, the batch, and the threshold.
APPENDS: dict[str, tuple[SessionName, Batch, Threshold]] = {
    "a message of the user": (NAME, batch(USER), TOKENS),
    "a message of the assistant": (NAME, batch(ASSISTANT), TOKENS),
    "several messages": (NAME, batch(USER, ASSISTANT, USER), TOKENS),
    "a limit of messages": (NAME, batch(USER), MESSAGES),
    "limits of tokens and of messages": (NAME, batch(USER), BOTH),
    "no limit": (NAME, batch(USER), NEVER),
    "a limit of messages that are not indexed": (NAME, batch(USER), UNINDEXED),
    "a reply, and a limit of messages that are not indexed": (NAME, batch(ASSISTANT), UNINDEXED),
    "all limits": (NAME, batch(USER), ALL),
    "a session that is given as a row": (SessionName("default", "key", row_id=1), batch(USER), NEVER),
    "every column, and an idempotency key": (NAME, batch(FULL, key="k"), NEVER),
    "several messages, an idempotency key": (NAME, batch(FULL, USER, key="k"), NEVER),
    "tool calls": (NAME, batch(CALLS), NEVER),
    "tool calls with their result": (NAME, batch(CALLS, RESULT), NEVER),
    "a tool result": (NAME, batch(RESULT), NEVER),
    "two tool results": (NAME, batch(RESULT, OTHER_RESULT), NEVER),
    "a tool result, and a message of the user": (NAME, batch(RESULT, USER), NEVER),
    "a pinned message": (NAME, batch(SYSTEM), NEVER),
    "two pinned messages": (NAME, batch(SYSTEM, USER, SYSTEM), NEVER),
}
VIEWS = {
    "everything": View(),
    "the last messages": View(messages=8),
    "the last tokens": View(tokens=2000),
    "the summary, and what it does not cover": View(summary=True),
    "the summary, and the last messages": View(messages=8, summary=True),
    "the summary, and the last tokens": View(tokens=2000, summary=True),
}


def statements(vendor: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each statement."""
    advanced = sql.Advanced(1, 9, 90, 0, due=False, turned_due=False)
    appends = {}
    for what, (name, batch, threshold) in APPENDS.items():
        content = None if batch.key_hash is None else "HMAC"
        append = appends[what] = sql.Append(vendor, name, batch, threshold, "c", content)
        if vendor == "postgresql":
            yield f"append: {what}", append.in_one()[0]
        elif vendor == "sqlite":
            yield f"append, counters: {what}", append.advance()[0]
    for what, append in appends.items():
        [(insert, _)] = append.inserts(advanced)
        yield f"append, rows: {what}", insert
    if vendor != "postgresql":
        yield "append, an idempotency key", append.use_key(advanced)[0]
    if vendor == "sqlite":
        yield "append, due mark", sql.mark_due(1)[0]
    for what, view in VIEWS.items():
        yield f"load: {what}", sql.load(vendor, NAME, view)[0]
        if vendor == "postgresql":
            yield f"load, partitioned: {what}", sql.load(vendor, NAME, view, 1)[0]
    yield "load, pinned messages", sql.placed(1, [1, 5])[0]
    yield "fork, messages", sql.copy_messages(vendor, 1, 2, 9)[0]
    yield "fork, summaries", sql.copy_summaries(1, 2, 9)[0]


# Before each clause, each condition and each assignment.
BREAK = re.compile(
    r"(?=\b(?:WITH|UPDATE|SET|WHERE|RETURNING|INSERT INTO|VALUES|SELECT|FROM|LEFT JOIN|UNION ALL|ORDER BY|AND|OR) )"
    r"|(?<=, )(?=\w+ = )"
)


def pretty(statement: str) -> str:
    """Return a statement with a line for each clause, each condition and each assignment."""
    lines, depth = [], 0
    for line in BREAK.split(statement):
        indent = "    " * depth
        lines += textwrap.wrap(
            line,
            110,
            initial_indent=indent,
            subsequent_indent=indent + "    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        depth += line.count("(") - line.count(")")
    text = "\n".join(lines)
    assert "".join(text.split()) == "".join(statement.split())
    return text


def rendered(statements: Iterator[tuple[str, str]]) -> str:
    """Return the statements as a golden file has them: each once, under all of its names."""
    names: dict[str, list[str]] = {}
    for name, text in statements:
        names.setdefault(text, []).append(f"-- {name}\n")
    return "\n".join(f"{''.join(lines)}{pretty(text)};\n" for text, lines in names.items())


def compare(file: str, text: str) -> None:
    path = GOLDEN / file
    if os.environ.get("CONVMEMORY_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "If you meant to change the statements: make golden"


@pytest.mark.parametrize("database", VENDORS)
def test_the_statements_are_those_that_the_golden_files_show(database: str) -> None:
    compare(f"{database}.sql", rendered(statements(VENDORS[database])))


def orm_statements() -> Iterator[tuple[str, str]]:
    """Carry out the operations that use the ORM, and yield the statements of each."""
    store, rule = ORMStore(), Threshold(tokens=5)
    user = get_user_model().objects.create(username="ann")
    visitor, copy = SessionName("default", "key", visitor="v"), SessionName("default", "copy")
    created = SessionName("default", "created")
    attempt = AttemptRecord(
        first_position=1, last_position=2, due_seconds=1.0, duration_seconds=1.0, outcome=AttemptOutcome.PUBLISHED
    )
    version = NewVersion(
        first_position=1,
        last_position=2,
        covered_count=2,
        covered_tokens=20,
        text="Said.",
        tokens=3,
        model="m",
        shortened=False,
        fallback=False,
        prompt_hash="h",
    )
    for name in (NAME, visitor):
        store.append(name, batch(USER, ASSISTANT, USER), rule, counter="c")
    session_id = store.find(NAME)
    assert session_id is not None
    claims: list[Claim] = []

    def claim(taken: Claim | str | None) -> None:
        assert isinstance(taken, Claim)
        claims.append(taken)

    steps: dict[str, Callable[[], Any]] = {
        "find": lambda: store.find(NAME),
        "create": lambda: store.create(created, title="", metadata={}),
        "update": lambda: store.update(created, {"title": "New"}, revision=0),
        "delete": lambda: store.delete(created, revision=0),
        "history, the last messages": lambda: store.history(NAME, before=None, after=None, limit=50),
        "history, before a position": lambda: store.history(NAME, before=3, after=None, limit=50),
        "history, after a position": lambda: store.history(NAME, before=None, after=1, limit=50),
        "index, its first segment": lambda: indexing.index(store, session_id),
        "index, a longer segment": lambda: (
            store.append(NAME, batch(ASSISTANT), rule, counter="c") and indexing.index(store, session_id)
        ),
        "index, nothing to do": lambda: indexing.index(store, session_id),
        "searchable": lambda: searchable(store, NAME),
        "searchable, before a position": lambda: searchable(store, NAME, before=3, epoch=0),
        "searchable_of": lambda: searchable_of(store, visitor="v"),
        "messages_at": lambda: store.messages_at([(session_id, 0, 1), (session_id, 0, 2)]),
        "pause_of": lambda: store.pause_of("default"),
        "change_pause": lambda: store.change_pause("default", lambda state: state._replace(failures=1)),
        "change_pause, nothing to change": lambda: store.change_pause("default", lambda state: state),
        "has_folded_another": lambda: store.has_folded_another("default", session_id, 60.0),
        "mark_unmarked": lambda: store.mark_unmarked("default", rule, limit=10),
        "mark_unmarked, when all are marked": lambda: store.mark_unmarked("default", rule, limit=10),
        "waiting": lambda: store.waiting("default", after=1.0, within=60.0, limit=10),
        "sweep": lambda: store.sweep("default", limit=10, queued_for=0.0),
        "sweep, chained": lambda: store.sweep("default", limit=1, queued_for=0.0, most_leases=2),
        "scopes": lambda: store.scopes(session_id),
        "leases": lambda: store.leases(store.scopes(session_id)[0]),
        "others_wait": lambda: store.others_wait(store.scopes(session_id)[0], ("default",)),
        "unqueue": lambda: store.unqueue(session_id),
        "sweep_rebuilds": lambda: store.sweep_rebuilds("default", limit=10, wait=60.0),
        "is_due": lambda: store.is_due(session_id),
        "claim": lambda: claim(store.claim(session_id, rule, lease=60.0, prompt_hash="", force=False)),
        "turns": lambda: store.turns(claims[-1]),
        "messages": lambda: store.messages(claims[-1], 1, 2),
        "following": lambda: store.following(claims[-1]),
        "extend": lambda: store.extend(claims[-1], lease=60.0),
        "record": lambda: store.record(claims[-1], attempt),
        "publish": lambda: claim(store.publish(claims[-1], version, attempt, rule, lease=60.0)),
        "release": lambda: store.release(claims[-1], rule),
        "claim_rebuild": lambda: claim(
            store.claim_rebuild(session_id, lease=60.0, prompt_hash="h", whole=True, wait=60.0)
        ),
        "fork": lambda: store.fork(NAME, copy, 2, rule),
        "redact": lambda: store.redact(NAME, 1, rule, forks=True),
        "truncate": lambda: store.truncate(NAME, 2, rule, revision=None),
        "clear": lambda: store.clear(NAME),
        "adopt": lambda: store.adopt("default", "v", user.pk),
        "erase": lambda: store.erase("default", owner_id=user.pk, visitor=""),
    }
    for operation, step in steps.items():
        sent: list[str] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any, sent: list[str] = sent) -> Any:
            # Patch releases of Django number the columns of a union in different ways.
            sent.append(re.sub(r"(cast|left|value)\d+", r"\1", sql))
            return execute(sql, params, many, context)

        with connection.execute_wrapper(note):
            step()
        sent = [
            text
            for text in sent
            if not text.startswith(("BEGIN", "SAVEPOINT", "RELEASE", "SET ", "SELECT set_config", "SELECT @@"))
        ]
        for number, text in enumerate(sent, 1):
            yield f"{operation}{f' ({number} of {len(sent)})' if len(sent) > 1 else ''}", text


@pytest.mark.skipif(bool(PARTITIONS), reason="the files show the statements of a table without partitions")
@pytest.mark.django_db(transaction=True)
def test_the_statements_of_the_orm_are_those_that_the_golden_files_show() -> None:
    """The text is compared for one version of Django, because each may write it in its own way.

    For other versions, the number of statements of each operation is compared.
    """
    head = f"-- Django {django.VERSION[0]}.{django.VERSION[1]}"
    text = f"{head}\n\n{rendered(orm_statements())}"
    file = GOLDEN / f"{DATABASE}_orm.sql"
    if os.environ.get("CONVMEMORY_WRITE_GOLDEN") or file.read_text().startswith(head):
        compare(file.name, text)
    else:
        assert re.findall(r"^-- (?!Django).*", text, re.MULTILINE) == re.findall(
            r"^-- (?!Django).*", file.read_text(), re.MULTILINE
        )
