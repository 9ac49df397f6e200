"""How PostgreSQL finds what the hot statements ask for: ``python -m benchmarks.plans DATABASE``.

Of a database that ``python -m benchmarks.growth --keep`` has filled. Does what a site does, in a transaction that is
rolled back, and prints for each statement that the memory sends how it is carried out, and which tables are read
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
    parser.add_argument("database", help="bench_growth_100000, say, which benchmarks.growth --keep leaves")
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
        sys.exit(f"{str(error).strip()}\nFill one with: python -m benchmarks.growth --keep")
    memory = memories["default"]
    memory.model = ScriptedChatModel(["They spoke of Lisbon."] * 9)
    count = Session.objects.filter(key__startswith="chat ").count()
    key = random.Random(0).randint(1, count)
    session = memory.session(f"chat {key}", owner=User.objects.get(username=f"user{key % 1000}"))
    row = Session.objects.get(name_hash=session.session_name.name_hash)
    visits: dict[str, Callable[[], Any]] = {
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
        "the sweep": lambda: memory.store.sweep(memory.alias, limit=100, hint_age=600),
    }
    print(f"{Session.objects.count():,} sessions, {estimate(connection, 'convmemory_message'):,} messages")
    for name, visit in visits.items():
        found: list[tuple[str, Any]] = []

        def note(execute: Any, sql: str, params: Any, many: bool, context: Any, found: Any = found) -> Any:
            found.append((sql, params))
            return execute(sql, params, many, context)

        with transaction.atomic():
            with connection.execute_wrapper(note):
                visit()
            transaction.set_rollback(True)
        print(f"\n== {name}")
        for sql, params in found:
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
            found = cursor.fetchone()[0]
        transaction.set_rollback(True)
    [root] = json.loads(found) if isinstance(found, str) else found
    lines = [f"-- {' '.join(sql.split())[:100]}…", *_lines(root["Plan"], 1)]
    return "\n".join([*lines, f"  planned in {root['Planning Time']:.2f} ms, done in {root['Execution Time']:.2f} ms"])


def _lines(node: dict[str, Any], depth: int) -> list[str]:
    shown = ("Node Type", "Operation", "Relation Name", "Index Name")
    what = " ".join(str(node[name]) for name in shown if name in node)
    pages = node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)
    walks = node["Node Type"] == "Seq Scan" and node["Relation Name"].startswith("convmemory")
    lines = [f"{'  ' * depth}{what}: {node['Actual Rows']} rows, {pages} pages{'   WITHOUT AN INDEX' if walks else ''}"]
    for child in node.get("Plans", ()):
        lines += _lines(child, depth + 1)
    return lines


if __name__ == "__main__":
    main()
