"""The process of one contender: ``python -m benchmarks.growth.contender ours|driver DATABASE``.

Reads orders from standard input, a line of JSON each. An order names an operation, append or load, its sessions, and
the number of threads. The answer has the nanoseconds of each operation.
"""

from __future__ import annotations

import concurrent.futures
import functools
import gc
import hashlib
import json
import os
import resource
import sys
import threading
import time
from typing import Any

TEXT = "We talked about this and that, and then about the weather in Lisbon, which was fine. " * 2


class Ours:
    """``memories["default"]``, with sessions of a user or of nobody."""

    def __init__(self, database: str) -> None:
        os.environ |= {"DJANGO_SETTINGS_MODULE": "benchmarks.admin_pages.settings", "BENCH_DATABASE": database}
        import django

        django.setup()
        from django.contrib.auth.models import User

        from django_convmemory.memory import memories
        from django_convmemory.messages import ChatMessage

        self.memory, self.message = memories["default"], ChatMessage.human
        self.users = {user.username: user for user in User.objects.all()}

    def session(self, owner: str | None, key: str) -> Any:
        return self.memory.session(key, **({"owner": self.users[owner]} if owner else {}))

    def append(self, session: Any) -> None:
        session.append(self.message(TEXT))

    def load(self, session: Any) -> None:
        session.load().to_openai()


class Driver:
    """psycopg on the same tables.

    An append updates the counters and inserts the message in a transaction. A load reads the summary and the messages
    after it.
    """

    def __init__(self, database: str) -> None:
        import psycopg

        self.local = threading.local()
        self.connect = lambda: psycopg.connect(f"postgresql://postgres@127.0.0.1:5432/{database}", autocommit=True)

    @property
    def connection(self) -> Any:
        if not hasattr(self.local, "connection"):
            self.local.connection = self.connect()
        return self.local.connection

    def session(self, owner: str | None, key: str) -> Any:
        """Return the name hash, which identifies the session's row."""
        scope = f"u:{self._user(owner)}" if owner else ""
        return hashlib.sha256(f"default\0{scope}\0{key}".encode()).hexdigest()

    def _user(self, owner: str) -> int:
        if not hasattr(self, "users"):
            self.users = dict(self.connection.execute("SELECT username, id FROM auth_user").fetchall())
        return int(self.users[owner])

    def append(self, name_hash: str) -> None:
        connection = self.connection
        with connection.transaction():
            row = connection.execute(
                "UPDATE convmemory_session SET last_position = last_position + 1, unpinned_count = unpinned_count + 1,"
                " unpinned_tokens = unpinned_tokens + %s, settled_tokens = unpinned_tokens, newest_position ="
                " last_position + 1, updated_at = now(), revision = revision + 1 WHERE name_hash = %s"
                " RETURNING id, last_position, unpinned_tokens",
                (60, name_hash),
            ).fetchone()
            connection.execute(
                "INSERT INTO convmemory_message (session_id, position, role, kind, content, tokens, tokens_through,"
                " public_id, created_at) VALUES (%s, %s, 'user', 'chat', %s, 60, %s, gen_random_uuid(), now())",
                (row[0], row[1], TEXT, row[2]),
            )

    def load(self, name_hash: str) -> list[dict[str, str]]:
        connection = self.connection
        number, covered, text = connection.execute(
            "SELECT s.id, s.covered_position, v.text FROM convmemory_session s LEFT JOIN convmemory_summary v"
            " ON v.session_id = s.id AND v.version = s.current_version WHERE s.name_hash = %s",
            (name_hash,),
        ).fetchone()
        messages = connection.execute(
            "SELECT role, content FROM convmemory_message WHERE session_id = %s AND position > %s ORDER BY position",
            (number, covered),
        ).fetchall()
        return [
            {"role": "system", "content": text or ""},
            *({"role": role, "content": content} for role, content in messages),
        ]


def measure(contender: Any, order: dict[str, Any]) -> list[int]:
    operation = getattr(contender, order["do"])
    sessions = [contender.session(*named) for named in order["sessions"]]

    def timed(session: Any) -> int:
        began = time.perf_counter_ns()
        operation(session)
        return time.perf_counter_ns() - began

    gc.collect()
    if order.get("threads", 1) == 1:
        return [timed(session) for session in sessions]
    return list(_pool(order["threads"]).map(timed, sessions))


@functools.cache
def _pool(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Return a pool that lives as long as the process, so that its threads keep their connections."""
    return concurrent.futures.ThreadPoolExecutor(threads)


def main() -> None:
    kind, database = sys.argv[1:]
    contender = {"ours": Ours, "driver": Driver}[kind](database)
    for line in sys.stdin:
        order = json.loads(line)
        durations = measure(contender, order)
        # The peak memory of this process, in kilobytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"ns": durations, "peak": peak}), flush=True)


if __name__ == "__main__":
    main()
