"""Transactions that the app begins: how long they may be idle, and what happens if their connection is lost."""

from __future__ import annotations

import functools
import multiprocessing
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.utils import DatabaseError

from django_convmemory import exceptions, models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.values import Receipt
from django_convmemory.store import transactions
from tests import processes
from tests.stopping import CALL, OPERATIONS, Case, result_of
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendors]

# On SQLite no transaction is ended, and no connection is lost.
on_servers = pytest.mark.only_on("postgresql", "mariadb")


def value(statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def limit() -> str:
    """How long a transaction of this connection may be idle now, as the database says it."""
    if connection.vendor == "mysql":
        return str(value("SELECT @@SESSION.idle_transaction_timeout"))
    return str(value("SHOW idle_in_transaction_session_timeout"))


def set_limit(seconds: int) -> None:
    name = "idle_transaction_timeout" if connection.vendor == "mysql" else "idle_in_transaction_session_timeout"
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {name} = {seconds * (1 if connection.vendor == 'mysql' else 1000)}")


def end_connection() -> None:
    """Have the database end this connection, from another one."""
    if connection.vendor == "mysql":
        kill = f"KILL CONNECTION {value('SELECT CONNECTION_ID()')}"
    else:
        kill = f"SELECT pg_terminate_backend({value('SELECT pg_backend_pid()')})"

    def work() -> None:
        with connection.cursor() as cursor:
            cursor.execute(kill)

    InThread(work).result()


@on_servers
def test_only_a_transaction_of_the_app_has_the_limit() -> None:
    connection.close()
    set_limit(77)
    own = limit()
    assert own in ("77", "77s")
    assert transactions.run("default", limit) in ("2", "2s")
    assert limit() == own
    with transaction.atomic():
        assert transactions.run("default", limit, savepoint=True) == own
    with pytest.raises(ValueError, match="of the work"):
        transactions.run("default", lambda: _raise(ValueError("of the work")))
    assert limit() == own
    connection.close()


@on_servers
def test_what_runs_after_the_commit_has_no_limit() -> None:
    connection.close()
    seen: list[str] = []

    def work() -> None:
        transaction.on_commit(lambda: seen.append(transactions.run("default", limit)))
        transaction.on_commit(lambda: seen.append(limit()))

    transactions.run("default", work)
    assert seen in (["2", "0"], ["2s", "0"])


@pytest.mark.only_on("mariadb")
def test_a_shorter_limit_of_the_site_stays() -> None:
    connection.close()
    set_limit(1)
    assert transactions.run("default", limit) == "1"
    connection.close()


def _raise(error: Exception) -> Any:
    raise error


def conflict() -> OperationalError:
    error = OperationalError()
    error.__cause__ = Exception(1213, "Deadlock found")
    return error


def test_what_fails_after_the_commit_does_not_run_the_work_again() -> None:
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        transaction.on_commit(lambda: _raise(conflict()))

    with pytest.raises(OperationalError):
        transactions.run("default", work)
    assert runs == [1]


@on_servers
@pytest.mark.parametrize("times", [2, 3])
def test_a_transaction_is_begun_three_times_if_its_connection_is_lost(times: int) -> None:
    runs: list[int] = []

    def work() -> str:
        runs.append(1)
        if len(runs) <= times:
            end_connection()
        return limit()

    if times == transactions.LOST_TRIES:
        with pytest.raises(exceptions.ConnectionLost, match="in 3 transactions"):
            transactions.run("default", work)
    else:
        assert transactions.run("default", work) in ("2", "2s")
    assert len(runs) == 3
    assert limit() == "0"


def lose_commit(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Lose the connection before or after the next COMMIT reaches the database. The error does not tell which."""
    commit = connection.commit

    def lost_commit() -> None:
        monkeypatch.undo()
        if when == "after":
            commit()
        connection.connection.close()
        error = DatabaseError()
        error.__cause__ = Exception(2013, "Lost connection to server during query")
        raise error

    monkeypatch.setattr(connection, "commit", lost_commit)


@on_servers
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", sorted(OPERATIONS.keys() - {"append", "compact"}))
def test_a_connection_that_is_lost_during_the_commit_stores_nothing_twice(
    operation: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, case = Case(operation, "expected"), Case(operation, "lost")
    for each in (expected, case):
        each.prepare()
    right = (result_of(expected), expected.state())
    without = case.state()

    lose_commit(monkeypatch, when)
    result = result_of(case)

    # Without a key, nobody can tell whether the messages are there. On MariaDB the lost COMMIT of an append to a new
    # session is that of a transaction which looked for the session in vain.
    if operation == "append_many" or (operation == "append_to_a_new_session" and connection.vendor == "mysql"):
        assert "OutcomeUnknown" in result["error"]
        assert case.state() == (right[1] if when == "after" and operation == "append_many" else without)
    else:
        assert without_replay(result) == without_replay(right[0])
        assert forgiving(operation)(case.state()) == forgiving(operation)(right[1])
    assert list(integrity.check(models.Session.objects.all())) == []


def without_replay(result: dict[str, Any]) -> Any:
    """A receipt may say that the message was there already."""
    found = result.get("value", result)
    return found[:4] if isinstance(found, list) and len(found) == len(Receipt._fields) else found


def forgiving(operation: str) -> Callable[[Any], Any]:
    """Return what makes states comparable: a second redaction raises the epoch and the revision once more."""

    def without_numbers(state: Any) -> Any:
        return [{**session, "epoch": 0, "revision": 0} for session in state]

    return without_numbers if operation == "redact" else lambda state: state


@on_servers
def test_a_message_with_a_key_is_looked_for_after_a_lost_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("append_with_a_key", "lost")
    case.prepare()
    ids = [f"call_{number}" for number in range(9)]  # So many that each database needs a transaction.
    results = [ChatMessage.tool("found", call_id) for call_id in ids]
    case.memory.append("s", ChatMessage.ai(tool_calls=[{**CALL, "id": call_id} for call_id in ids]))
    lose_commit(monkeypatch, "after")
    receipt = case.memory.append("s", *results, idempotency_key="results")
    assert receipt.replayed
    assert receipt.last_position == 10
    assert case.memory.append("s", *results, idempotency_key="results") == receipt


@on_servers
def test_a_process_that_is_stopped_while_it_receives_a_long_message_holds_no_lock_for_long(
    tmp_path: pathlib.Path,
) -> None:
    case = Case("append", "long")
    case.append_meanwhile()
    models.Message.objects.update(content="x" * 12_000_000)
    (tmp_path / "output").touch()
    process = processes.start(
        tmp_path,
        *("django", "shell", "--verbosity", "0", "--command"),
        f"from tests import stopping; stopping.read_long_message({case.visitor!r})",
    )
    try:
        processes.wait_until(lambda: "reading" in (tmp_path / "output").read_text(), "the process reads the message")
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        appending = InThread(case.append_meanwhile)
        appending.join(3 * transactions.IDLE_SECONDS)
        waited = time.monotonic() - began
    finally:
        os.kill(process.pid, signal.SIGCONT)
        assert process.wait(processes.PATIENCE) == 0, (tmp_path / "output").read_text()
    appending.result()
    assert waited < 3 * transactions.IDLE_SECONDS
    assert (tmp_path / "output").read_text().splitlines() == ["reading", "reading", "12000000"]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("key", [None, "one"])
def test_an_append_of_one_statement_that_loses_its_connection_says_so_or_looks(key: str | None, when: str) -> None:
    memory = memories["default"]
    memory.append("a", ChatMessage.human("first"))
    lost: list[str] = []

    def lose(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if lost or "convmemory_message" not in sql or "UPDATE" not in sql:
            return execute(sql, params, many, context)
        lost.append(sql)
        if when == "after":
            execute(sql, params, many, context)
        connection.connection.close()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(lose):
        if key is None:
            with pytest.raises(exceptions.OutcomeUnknown, match="may have been stored or not"):
                memory.append("a", ChatMessage.human("second"))
        else:
            assert memory.append("a", ChatMessage.human("second"), idempotency_key=key).first_position == 2
    assert len(lost) == 1
    there = ["first", "second"] if key or when == "after" else ["first"]
    assert [stored.message.text for stored in memory.history("a")] == there


@pytest.mark.only_on("postgresql")
def test_a_look_for_a_key_that_loses_its_connection_is_repeated() -> None:
    memory = memories["default"]
    memory.append("a", ChatMessage.human("first"), idempotency_key="one")
    lost: list[str] = []

    def lose(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if not lost and sql.startswith("SELECT"):
            lost.append(sql)
            connection.connection.close()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(lose):
        receipt = memory.append("a", ChatMessage.human("first"), idempotency_key="one")
    assert receipt.replayed
    assert len(lost) == 1


@pytest.mark.only_on("sqlite")
def test_threads_take_turns_on_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memories["default"]
    memory.append("a", ChatMessage.human("first"))
    # A thread that found another one writing would fail at once.
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0)
    monkeypatch.setattr(transactions, "_LONGEST_TURN", processes.PATIENCE)

    def work() -> None:
        for _ in range(20):
            memory.append("a", ChatMessage.human("next"))

    threads = [InThread(work) for _ in range(8)]
    for thread in threads:
        thread.result()
    assert len(memory.history("a", limit=1000)) == 1 + 8 * 20


@pytest.mark.only_on("sqlite")
def test_what_a_site_does_after_a_commit_may_wait_for_another_thread() -> None:
    memory = memories["default"]

    def append() -> Receipt:
        return memory.append("a", ChatMessage.human("of another thread"))

    receipts: list[Receipt] = []
    work = functools.partial(transaction.on_commit, lambda: receipts.append(InThread(append).result()))
    transactions.run("default", work)
    assert [receipt.last_position for receipt in receipts] == [1]


@pytest.mark.slow
@pytest.mark.only_on("sqlite")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_the_turn_of_a_thread_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_LONGEST_TURN", 2 * processes.PATIENCE)
    has_turn, ended = threading.Event(), threading.Event()

    def wait() -> None:
        has_turn.set()
        ended.wait(processes.PATIENCE)

    thread = InThread(lambda: transactions.run("default", lambda: transaction.on_commit(wait)))
    assert has_turn.wait(processes.PATIENCE)
    connection.close()
    append = functools.partial(memories["default"].append, "a", ChatMessage.human("of a child"))
    child = multiprocessing.get_context("fork").Process(target=append, daemon=True)
    child.start()
    child.join(processes.PATIENCE)
    ended.set()
    thread.result()
    assert child.exitcode == 0
    assert [row.message.content for row in memories["default"].history("a")] == ["of a child"]
