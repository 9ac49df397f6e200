"""Measures indexing and search with a database, for :mod:`benchmarks.recall_speed`.

The database is a new one of the test server that ``CONVMEMORY_TEST_DATABASE`` chooses. It is dropped at the end.
"""
# ruff: noqa: S608  The statements are made of the models' names and of numbers.

from __future__ import annotations

import argparse
import datetime as dt
import functools
import json
import pathlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, models as orm
from django.test.utils import setup_databases, teardown_databases

from benchmarks import recall_quality
from django_convmemory import models
from django_convmemory.memory import ConversationWindowMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.scheduling import NullScheduler
from django_convmemory.search import indexing, tokenizer
from django_convmemory.store.orm import ORMStore

SIZES = (1_000, 10_000, 100_000)
OWN_SESSIONS, OTHERS_LENGTH = 500, 200
FOLDS = (40, 100)
FOLDED, WARM_UP = 60, 5
# Each query is sent so often, and so many queries of each kind are sent.
TRIES, MOST_QUERIES = 7, 20
# A statement that fills the tables writes the messages of so many sessions.
BATCH = 1_000
# The ids of the other people's sessions begin after this one.
OTHERS = 1_000_000


def main(data: Any, texts: Sequence[str], kinds: Mapping[str, Sequence[str]], arguments: argparse.Namespace) -> None:
    """Print the tables. ``texts`` are those of the messages, and ``kinds`` has the queries by their label."""
    state = setup_databases(verbosity=0, interactive=False)
    try:
        memory = ConversationWindowMemory(ORMStore(), 40, scheduler=NullScheduler(), index=False)
        turns = [turn.text for conversation in recall_quality.locomo(data) for turn in conversation.turns]
        print(
            f"\n| {connection.vendor}: indexing adds to a fold of | processor, ms | wall, ms |\n| --- | ---: | ---: |"
        )
        for count in FOLDS:
            print(f"| {count} messages | {median(folds(memory, turns, count))} |", flush=True)
        searches = filled(memory, texts)
        rows = models.Message.objects.count()
        print(f"Index: {size(rows)}")
        measure(searches, kinds, rows)
        if arguments.rows > rows:
            start = time.monotonic()
            rows += multiply(memory, texts, arguments.rows - rows, until=start + arguments.seconds)
            print(f"Filled in {time.monotonic() - start:.0f} s")
            measure(searches, kinds, rows)
        for label, search in searches.items():
            scans = scanned(functools.partial(search, "Where did they go?"))
            print(f"Tables that are scanned, {label}: {', '.join(scans) or 'none'}")
    finally:
        teardown_databases(state, verbosity=0)


class Clock:
    """Measures the milliseconds of the processor, in this process and in the database's thread, and those of the wall.

    If the machine has other work, those of the processor are closer to what an idle one needs.
    """

    def __init__(self) -> None:
        # The nanoseconds that the thread has run.
        self.path: pathlib.Path | None = None
        queries = {
            "postgresql": "SELECT pg_backend_pid()",
            "mysql": "SELECT tid FROM information_schema.processlist WHERE id = CONNECTION_ID()",
        }
        if query := queries.get(connection.vendor):
            with connection.cursor() as cursor:
                cursor.execute(query)
                self.path = pathlib.Path(f"/proc/{cursor.fetchone()[0]}/schedstat")

    def processor(self) -> float:
        server = int(self.path.read_text().split()[0]) if self.path else 0
        return time.process_time() * 1e3 + server / 1e6

    def measure(self, work: Callable[[], object], times: int = 1) -> tuple[float, float]:
        """Return the mean time of the processor, and the shortest time of the wall."""
        processor, wall = self.processor(), []
        for _ in range(times):
            start = time.perf_counter()
            work()
            wall.append(1e3 * (time.perf_counter() - start))
        time.sleep(0.001)  # The database may have something left to do.
        return (self.processor() - processor) / times, min(wall)


def median(times: Sequence[tuple[float, float]]) -> str:
    return " | ".join(f"{statistics.median(kind):.1f}" for kind in zip(*times, strict=True))


def folds(memory: ConversationWindowMemory, turns: Sequence[str], count: int) -> list[tuple[float, float]]:
    """Return how long each of many folds takes to index ``count`` messages."""
    for turn in turns:  # A worker that has run for a while knows the stems of most words.
        tokenizer.tokenize(turn)
    chat = memory.session(f"folds of {count}")
    append(chat, turns[:100], 0)
    session_id = index(memory, chat)
    times, clock = [], Clock()
    for number in range(FOLDED):
        first = 100 + number * count
        append(chat, [turns[(first + place) % len(turns)] for place in range(count)], first)
        times.append(clock.measure(functools.partial(indexing.catch_up, memory.store, session_id)))
    return times[WARM_UP:]


def append(chat: SessionHandle, texts: Sequence[str], first: int) -> None:
    """Append turns of two people. A sitting has twenty."""
    begins = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for start in range(0, len(texts), 1_000):
        numbers = range(first + start, first + min(start + 1_000, len(texts)))
        chat.append(
            *[(ChatMessage.ai if number % 2 else ChatMessage.human)(texts[number - first]) for number in numbers],
            created_at=[begins + dt.timedelta(hours=2 * (number // 20), minutes=number % 20) for number in numbers],
        )


def index(memory: ConversationWindowMemory, chat: SessionHandle) -> int:
    session_id = memory.store.find(chat.session_name)
    assert session_id is not None
    while indexing.catch_up(memory.store, session_id):
        pass
    return session_id


def filled(memory: ConversationWindowMemory, texts: Sequence[str]) -> dict[str, Callable[[str], Any]]:
    """Make the sessions that are searched, and return the search in each by its label."""
    searches: dict[str, Callable[[str], Any]] = {}
    chance = random.Random(2)
    for length in SIZES:
        chat = memory.session(f"session of {length}")
        append(chat, chance.choices(texts, k=length), 0)
        index(memory, chat)
        searches[f"{length:,}".replace(",", " ")] = chat.search
    behind = memory.session("session with 512 messages that are not indexed")
    append(behind, chance.choices(texts, k=488), 0)
    index(memory, behind)
    append(behind, chance.choices(texts, k=512), 488)
    searches["1 000, 512 of them not indexed"] = behind.search
    owner = get_user_model().objects.create(username="owner")
    for number in range(OWN_SESSIONS):
        chat = memory.session(f"session {number}", owner=owner)
        append(chat, chance.choices(texts, k=OTHERS_LENGTH), 0)
        index(memory, chat)
    searches[f"{OWN_SESSIONS} sessions of {OTHERS_LENGTH}"] = functools.partial(memory.search, owner=owner)
    settle()
    return searches


def measure(searches: Mapping[str, Callable[[str], Any]], kinds: Mapping[str, Sequence[str]], rows: int) -> None:
    """Print the median of the queries of each kind."""
    print(
        f"\n| {rows:,} messages in the table | "
        + " | ".join(f"{kind}, processor, ms | wall, ms" for kind in kinds)
        + " |"
    )
    print("| --- |" + " ---: | ---: |" * len(kinds))
    clock = Clock()
    for label, search in searches.items():
        medians = []
        for queries in kinds.values():
            some = queries[:MOST_QUERIES]
            assert all(map(search, some[:WARM_UP]))
            medians.append(median([clock.measure(functools.partial(search, query), TRIES) for query in some]))
        print(f"| {label} | {' | '.join(medians)} |", flush=True)


def size(messages: int) -> str:
    """Return the size of the index: of its texts, and of its table."""
    table = models.Segment._meta.db_table
    with connection.cursor() as cursor:
        length = "LENGTH(CAST(data AS BLOB))" if connection.vendor == "sqlite" else "OCTET_LENGTH(data)"
        cursor.execute(f"SELECT SUM({length}) FROM {table}")
        [text] = cursor.fetchone()
        cursor.execute(
            {
                "sqlite": f"SELECT SUM(pgsize) FROM dbstat WHERE name LIKE '%{table}%'",
                "postgresql": f"SELECT pg_total_relation_size('{table}')",
                "mysql": "SELECT data_length + index_length FROM information_schema.tables"
                f" WHERE table_schema = DATABASE() AND table_name = '{table}'",
            }[connection.vendor]
        )
        [stored] = cursor.fetchone()
    return f"{int(text) / messages:.0f} bytes a message, its table {int(stored) / messages:.0f}"


def multiply(memory: ConversationWindowMemory, texts: Sequence[str], rows: int, *, until: float) -> int:
    """Let the database copy a session until there are ``rows`` more messages. Return how many there are more."""
    chat = memory.session("template")
    append(chat, random.Random(3).choices(texts, k=OTHERS_LENGTH), 0)
    template = index(memory, chat)
    quick = {
        "sqlite": ("PRAGMA synchronous = OFF", "PRAGMA cache_size = -500000"),
        # The second one turns off the checks of foreign keys, one by one.
        "postgresql": ("SET synchronous_commit = off", "SET session_replication_role = replica"),
        "mysql": ("SET unique_checks = 0", "SET foreign_key_checks = 0"),
    }[connection.vendor]
    added = 0
    with connection.cursor() as cursor:
        for statement in quick:
            cursor.execute(statement)
        while added < rows and time.monotonic() < until:
            first = OTHERS + added // OTHERS_LENGTH
            count = min(BATCH, -(-(rows - added) // OTHERS_LENGTH))
            for model in (models.Session, models.Message, models.Segment):
                cursor.execute(copies(model, template, first, first + count - 1))
            added += count * OTHERS_LENGTH
    connection.close()  # The settings above end with it.
    settle()
    return added


def copies(model: type[orm.Model], template: int, first: int, last: int) -> str:
    """Return the statement that copies the session ``template`` under the ids from ``first`` to ``last``."""
    numbers = {
        "sqlite": f"WITH RECURSIVE c(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM c WHERE n < {last})"
        " SELECT n FROM c",
        "postgresql": f"SELECT n FROM generate_series({first}, {last}) n",
        "mysql": f"SELECT seq AS n FROM seq_{first}_to_{last}",
    }[connection.vendor]
    new = {"id": "n", "session_id": "n"}
    if model is models.Session:
        new["name_hash"] = (
            "printf('%064d', n)" if connection.vendor == "sqlite" else "LPAD(CAST(n AS CHAR(9)), 64, '0')"
        )
        new["public_id"] = {"sqlite": "printf('%032x', n)", "postgresql": "gen_random_uuid()", "mysql": "UUID()"}[
            connection.vendor
        ]
    names = [str(field.column) for field in model._meta.concrete_fields if getattr(field, "column", None)]
    quoted = [connection.ops.quote_name(name) for name in names]
    values = [new.get(name, f"t.{column}") for name, column in zip(names, quoted, strict=True)]
    join = "STRAIGHT_JOIN" if connection.vendor == "mysql" else "CROSS JOIN"
    own = "id" if model is models.Session else "session_id"
    table = model._meta.db_table
    return (
        f"INSERT INTO {table} ({', '.join(quoted)}) SELECT {', '.join(values)}"
        f" FROM ({numbers}) numbers {join} {table} t WHERE t.{own} = {template}"
    ).replace("%", "%" if connection.vendor == "sqlite" else "%%")


def settle() -> None:
    """Let the database count its rows, as it does by itself after a while. SQLite never does."""
    tables = ", ".join(model._meta.db_table for model in (models.Session, models.Message, models.Segment))
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"VACUUM ANALYZE {tables}")
        elif connection.vendor == "mysql":
            cursor.execute(f"ANALYZE TABLE {tables}")
            cursor.fetchall()


def scanned(search: Callable[[], Any]) -> list[str]:
    """Return the plans of the statements of ``search`` that read a whole table of the app."""
    statements: list[tuple[str, Any]] = []

    def record(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(record):
        search()
    return [line for sql, params in statements for line in _scans(sql, params)]


def _scans(sql: str, params: Any) -> Iterator[str]:
    explain = {"sqlite": "EXPLAIN QUERY PLAN", "postgresql": "EXPLAIN (FORMAT JSON)", "mysql": "EXPLAIN"}
    with connection.cursor() as cursor:
        cursor.execute(f"{explain[connection.vendor]} {sql}", params)
        rows = cursor.fetchall()
        if connection.vendor == "sqlite":
            yield from (row[-1] for row in rows if row[-1].startswith("SCAN convmemory"))
        elif connection.vendor == "postgresql":
            [document] = json.loads(rows[0][0]) if isinstance(rows[0][0], str) else rows[0][0]
            yield from _sequential(document["Plan"])
        else:
            names = [column[0] for column in cursor.description]
            for row in (dict(zip(names, values, strict=True)) for values in rows):
                if row["type"] in ("ALL", "index") and str(row["table"]).startswith("convmemory"):
                    yield f"{row['table']} by {row['type']}"


def _sequential(node: Mapping[str, Any]) -> Iterator[str]:
    if node["Node Type"] == "Seq Scan":
        yield str(node["Relation Name"])
    for child in node.get("Plans", ()):
        yield from _sequential(child)
