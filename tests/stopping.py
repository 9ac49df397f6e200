"""Operations on a conversation whose process is stopped after one of its statements.

:func:`main` carries out the operation beside an append, once before it and once after it, and writes the two results
that are right to the folder. Then it starts a process for each statement of the operation. Each stops itself after its
statement, and writes its own result when it has been continued. ``main`` prints what the processes do.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import signal
import traceback
from collections.abc import Callable
from typing import Any

from django.contrib.auth import get_user_model
from django.db import connection, connections
from django.db.models import Q

from django_convmemory import models
from django_convmemory.fold.run import Outcome
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage, FrozenDict
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules.values import Receipt
from django_convmemory.search import indexing
from django_convmemory.store import transactions
from tests.folding import MarkerModel, build

CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
WORDS = "word " * 8

say: Callable[..., None] = functools.partial(print, flush=True)


class Case:
    """A conversation of its own, with a summary, a tool call and a fork. Its id is the visitor's."""

    def __init__(self, operation: str, number: object) -> None:
        self.visitor = visitor = f"{operation}-{number}"
        self.operation = operation
        self.beside = "new" if operation == "append_to_a_new_session" else "main"
        self.memory: ConversationSummaryBufferMemory = build(MarkerModel(), 40)
        self.chat: SessionHandle = self.memory.session("main", visitor=visitor)

    def prepare(self) -> None:
        get_user_model().objects.create(username=self.visitor)
        numbered = [ChatMessage.human(f"[[{number}]] {WORDS}") for number in range(12)]
        self.chat.append(*numbered[1:5], ChatMessage.ai(tool_calls=[CALL]), ChatMessage.tool("found", "call_1"))
        outcome = self.chat.compact()
        assert outcome == Outcome.PUBLISHED, outcome
        self.chat.fork(6, key="copy", visitor=self.visitor)
        self.chat.append(*numbered[7:], idempotency_key="seven")
        self.index(limit=3)

    def index(self, limit: int = 1000) -> int:
        session_id = self.memory.store.find(self.chat.session_name)
        assert session_id is not None
        return indexing.index(self.memory.store, session_id, limit=limit)[0]

    def append_meanwhile(self) -> None:
        self.memory.session(self.beside, visitor=self.visitor).append(ChatMessage.human("meanwhile"))

    def state(self) -> Any:
        """Everything that is stored for the case, without ids and times, in the form of JSON."""
        sessions = models.Session.objects.filter(Q(visitor=self.visitor) | Q(owner__username=self.visitor))
        return json.loads(json.dumps([_state(session) for session in sessions.order_by("key", "visitor")]))


def _state(session: models.Session) -> dict[str, Any]:
    names = "key title last_position unpinned_count unpinned_tokens settled_tokens newest_position pinned last_version"
    names += " current_version covered_position covered_count covered_tokens open_calls attempts lease_token epoch"
    names += " revision details fork_position last_error indexed_position"
    messages = session.convmemory_messages.order_by("session_id", "position")
    summaries = session.convmemory_summaries.order_by("version")
    segments = session.convmemory_segments.order_by("session_id", "first")
    keys = session.convmemory_used_keys.all()
    attempts = models.Attempt.objects.filter(session_id=session.pk).order_by("pk")
    return {
        **{name: getattr(session, name) for name in names.split()},
        "adopted": session.owner_id is not None,
        "due": session.due_since is not None,
        "messages": [
            *messages.values_list("position", "role", "content", "tokens", "tokens_through", "answers"),
            messages.filter(redacted_at__isnull=False).count(),
        ],
        "summaries": [
            *summaries.values_list("version", "parent_version", "last_position", "covered_tokens", "text", "building"),
            list(summaries.valid().values_list("version", flat=True)),
        ],
        "used_keys": sorted((key.first_position, key.size, key.gone_at is None) for key in keys),
        "segments": list(segments.values_list("first", "last", "data")),
        "attempts_made": list(attempts.values_list("outcome", "version", "last_position")),
    }


def _adopt(case: Case) -> list[str]:
    owner = get_user_model().objects.get(username=case.visitor)
    return [session.session_name.key for session in case.memory.adopt(case.visitor, owner)]


TWO = ChatMessage.human("a"), ChatMessage.ai("b")
# Items, because PostgreSQL would append plain messages in one statement.
MANY = [ChatMessage("user", "one of many", format="responses", item=FrozenDict(type="message"))] * 1100

OPERATIONS: dict[str, Callable[[Case], Any]] = {
    "append": lambda case: case.chat.append(*TWO),
    "append_many": lambda case: case.chat.append(*MANY),
    "append_with_a_key": lambda case: case.chat.append(ChatMessage.human("a"), idempotency_key="once"),
    "create": lambda case: case.memory.session("new", visitor=case.visitor).create().key,
    "append_to_a_new_session": lambda case: case.memory.session("new", visitor=case.visitor).append(*TWO),
    "update": lambda case: case.chat.update(title="New"),
    "clear": lambda case: case.chat.clear(),
    "truncate": lambda case: case.chat.truncate(7),
    "fork": lambda case: case.chat.fork(8, key="second").key,
    "redact": lambda case: case.chat.redact(2),
    "erase": lambda case: case.memory.erase(visitor=case.visitor),
    "adopt": _adopt,
    "delete": lambda case: case.chat.delete(),
    "index": lambda case: case.index(),
    "compact": lambda case: case.chat.compact(),
}


def result_of(case: Case) -> dict[str, Any]:
    """Carry out the operation, and return what came of it in the form of JSON."""
    try:
        value = OPERATIONS[case.operation](case)
    except Exception:  # noqa: BLE001  the test shows it
        return {"error": traceback.format_exc()}
    if isinstance(value, Receipt):
        value = value._replace(ids=())  # They are new each time.
    return {"value": json.loads(json.dumps(value))}


class Counting:
    """Counts the statements of this process, and stops the process after one of them."""

    def __init__(self, stop_after: int = 0) -> None:
        self.stop_after = stop_after
        self.count = 0

    def __call__(self, execute: Any, *arguments: Any) -> Any:
        try:
            return execute(*arguments)
        finally:
            self.count += 1
            if self.count == self.stop_after:
                os.kill(os.getpid(), signal.SIGSTOP)


def right_results(operation: str) -> tuple[list[Any], int]:
    """Return the results of the operation after the append and before it, and how many statements it sends."""
    after, before = Case(operation, "after"), Case(operation, "before")
    after.prepare()
    after.append_meanwhile()
    results = [(result_of(after), after.state())]
    before.prepare()
    # A new connection sends a few statements of its own.
    connections.close_all()
    connection.ensure_connection()
    counting = Counting()
    with connection.execute_wrapper(counting):
        result = result_of(before)
    before.append_meanwhile()
    return [*results, (result, before.state())], counting.count


def run_and_stop(operation: str, number: int, folder: pathlib.Path) -> None:
    case = Case(operation, number)
    case.prepare()
    connections.close_all()
    connection.ensure_connection()
    with connection.execute_wrapper(Counting(number)):
        result = result_of(case)
    (folder / f"{number}.json").write_text(json.dumps(result))


def main(operation: str, folder: pathlib.Path) -> None:
    os.setpgrp()  # So that the caller can end all of the processes.
    results, count = right_results(operation)
    (folder / "right.json").write_text(json.dumps(results))
    connections.close_all()
    say("statements", count)
    numbers = {}
    for number in range(1, count + 1):
        pid = os.fork()
        if not pid:
            try:
                run_and_stop(operation, number, folder)
            finally:
                os._exit(0)  # Not through the exit of the process that it is a copy of.
        numbers[pid] = number
    while numbers:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            say("stopped", numbers[pid], pid)
        else:
            say("ended", numbers.pop(pid), pid)


def read_long_message(visitor: str) -> None:
    """Lock the visitor's session and read its first message, which the database sends after a second."""
    sleep = "SLEEP(1)" if connection.vendor == "mysql" else "pg_sleep(1)"

    def work() -> int:
        models.Session.objects.filter(visitor=visitor).lock()
        say("reading")
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT content, {sleep} FROM convmemory_message WHERE position = 1")  # noqa: S608
            return len(cursor.fetchone()[0])

    say(transactions.run("default", work))
