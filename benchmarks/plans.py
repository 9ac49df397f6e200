"""Prints the query plans of the frequent statements on PostgreSQL: ``python -m benchmarks.plans DATABASE``.

The database is one that ``python -m benchmarks.growth --keep`` has filled. This performs the operations of a site in
transactions that are rolled back. For each statement of the memory it prints the plan, and the tables that are read
without an index.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import django


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__.split("\n")[0])
    parser.add_argument("database", help="a database of benchmarks.growth --keep, such as bench_growth_100000")
    name = parser.parse_args().database
    os.environ |= {"DJANGO_SETTINGS_MODULE": "benchmarks.admin_pages.settings", "BENCH_DATABASE": name}
    django.setup()
    from django.contrib.auth.models import User
    from django.db import OperationalError, connection, transaction

    from django_convmemory.chat_models.scripted import ScriptedChatModel
    from django_convmemory.memory import memories
    from django_convmemory.messages import ChatMessage
    from django_convmemory.models import Session

    try:
        connection.ensure_connection()
    except OperationalError as error:
        sys.exit(f"{str(error).strip()}\nFill a database with: python -m benchmarks.growth --keep")
    memory = memories["default"]
    memory.model = ScriptedChatModel(["They eat in Lisbon."] * 9)
    count = Session.objects.filter(key__startswith="chat ").count()
    key = random.Random(0).randint(1, count)
    session = memory.session(f"chat {key}", owner=User.objects.get(username=f"user{key % 1000}"))
    row = Session.objects.get(name_hash=session.session_name.name_hash)
    operations: dict[str, Callable[[], Any]] = {
        "append": lambda: session.append(ChatMessage.human("Where do we eat? " * 20)),
        "append of three, with a key": lambda: session.append(
            *[ChatMessage.human("Where do we eat? " * 20)] * 3, idempotency_key="once"
        ),
        "load": session.load,
        "history, the newest page": lambda: session.history(limit=50),
        "history, further back": lambda: session.history(before=50, limit=20),
        "a user's conversations": lambda: list(Session.objects.filter(owner=row.owner_id).order_by("-updated_at")[:50]),
        "an append of forty messages, and the compaction that it makes due": lambda: (
            session.append(*[ChatMessage.human("Where do we eat? " * 20)] * 40),
            memory.compact_id(row.pk, force=True),
        ),
        "the sweep": lambda: memory.store.sweep(memory.alias, limit=100, queued_for=600),
    }
    print(f"{Session.objects.count():,} sessions, {estimate(connection, 'convmemory_message'):,} messages")
    for name, operation in operations.items():
        statements: list[tuple[str, Any]] = []

        def record(execute: Any, sql: str, params: Any, many: bool, context: Any, statements: Any = statements) -> Any:
            statements.append((sql, params))
            return execute(sql, params, many, context)

        with transaction.atomic():
            with connection.execute_wrapper(record):
                operation()
            transaction.set_rollback(True)
        print(f"\n== {name}")
        for sql, params in statements:
            if sql.lstrip("(").split()[0] in ("SELECT", "UPDATE", "INSERT", "WITH", "DELETE") and "convmemory" in sql:
                print(plan(connection, transaction, sql, params))


def estimate(connection: Any, table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT reltuples::bigint FROM pg_class WHERE relname = %s", [table])
        return int(cursor.fetchone()[0])


def plan(connection: Any, transaction: Any, sql: str, params: Any) -> str:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
            document = cursor.fetchone()[0]
        transaction.set_rollback(True)
    [root] = json.loads(document) if isinstance(document, str) else document
    lines = [f"-- {' '.join(sql.split())[:100]}…", *_lines(root["Plan"], 1)]
    return "\n".join(
        [*lines, f"  planned in {root['Planning Time']:.2f} ms, executed in {root['Execution Time']:.2f} ms"]
    )


def _lines(node: dict[str, Any], depth: int) -> list[str]:
    fields = ("Node Type", "Operation", "Relation Name", "Index Name")
    description = " ".join(str(node[field]) for field in fields if field in node)
    pages = node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)
    scans = node["Node Type"] == "Seq Scan" and node["Relation Name"].startswith("convmemory")
    mark = "   WITHOUT AN INDEX" if scans else ""
    lines = [f"{'  ' * depth}{description}: {node['Actual Rows']} rows, {pages} pages{mark}"]
    for child in node.get("Plans", ()):
        lines += _lines(child, depth + 1)
    return lines


if __name__ == "__main__":
    main()
