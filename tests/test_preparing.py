"""The statements of append and load are prepared if the server is reached directly, and nowhere else."""

from __future__ import annotations

import logging
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext

from django_convmemory import models
from django_convmemory.memory import ConversationBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.store import preparing, sql
from django_convmemory.store.orm import ORMStore
from tests import servers
from tests.chaos.servers import Absent, PgBouncer
from tests.settings import LOOKUPS, PARTITIONS
from tests.test_changes_at_once import InThread
from tests.test_statements import statements

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only_on("postgresql")]

# So often an operation is repeated until its statement is prepared.
ENOUGH = preparing.SENT_FIRST + 1
# An append and a load. On a partitioned table a load looks up the session first, and is not prepared.
PREPARED = 1 if PARTITIONS else 2
SENT = 2 + LOOKUPS
FIRST_WORDS = {"WITH", "(SELECT"} | ({"SELECT"} if LOOKUPS else set())


@pytest.fixture(autouse=True)
def new_connection() -> Iterator[None]:
    """Begin with a session in which nothing is prepared."""
    # Other tests of this process may have removed what was prepared.
    preparing._given_up.clear()
    connection.close()
    yield
    connection.close()
    preparing._given_up.clear()


@pytest.fixture
def memory() -> ConversationBufferMemory:
    memory = ConversationBufferMemory(ORMStore())
    memory.append("s", ChatMessage.human("hello"))
    connection.close()
    return memory


def use(memory: ConversationBufferMemory, times: int = ENOUGH) -> None:
    for _ in range(times):
        memory.append("s", ChatMessage.human("hello"))
        memory.load("s")


def prepared() -> list[str]:
    """What is prepared in this session of the server."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements ORDER BY prepare_time")
        return [row[0] for row in cursor.fetchall()]


def removed() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")


def test_a_statement_is_prepared_when_it_repeats(memory: ConversationBufferMemory) -> None:
    use(memory, times=ENOUGH - 1)
    assert prepared() == []
    use(memory, times=1)
    append, *loads = prepared()
    assert "WITH advanced AS (UPDATE" in append
    assert ["UNION ALL" in load for load in loads] == [True] * (PREPARED - 1)
    use(memory)
    assert len(prepared()) == PREPARED
    assert len(memory.load("s")) == 1 + 2 * ENOUGH


def test_a_batch_of_any_size_has_the_same_text(memory: ConversationBufferMemory) -> None:
    for size in range(2, 2 + ENOUGH):
        memory.append("s", *[ChatMessage.human(f"it's {number} %s") for number in range(size)])
    memory.append("s", *[ChatMessage.human("\\ %(a)s")] * 2)
    assert len(prepared()) == 1
    assert [message.text for message in memory.load("s")][-4:] == ["it's 5 %s", "it's 6 %s", "\\ %(a)s", "\\ %(a)s"]


def test_every_statement_can_be_prepared() -> None:
    texts = [text for name, text in statements("postgresql") if name.startswith(("append: ", "load: "))]
    assert len(texts) > 20
    with connection.cursor() as cursor:
        for text in dict.fromkeys(texts):
            cursor.execute(preparing._statement(text)[0])


def test_a_wrapper_of_the_site_sees_the_text_and_one_statement(memory: ConversationBufferMemory) -> None:
    seen: list[str] = []

    def wrapper(execute: Callable[..., Any], statement: str, *rest: Any) -> Any:
        seen.append(statement)
        return execute(statement, *rest)

    with connection.execute_wrapper(wrapper):
        use(memory, times=ENOUGH + 1)
    assert len(prepared()) == PREPARED
    assert len(seen) == SENT * (ENOUGH + 1)
    assert {statement.split()[0] for statement in seen} == FIRST_WORDS


def test_a_log_of_statements_has_the_text_with_its_values(memory: ConversationBufferMemory) -> None:
    use(memory)
    with CaptureQueriesContext(connection) as captured:
        use(memory)
    assert len(captured) == SENT * ENOUGH
    assert {query["sql"].split()[0] for query in captured.captured_queries} == FIRST_WORDS
    assert "'hello'" in captured.captured_queries[0]["sql"]


def test_a_wrapper_may_change_the_text(memory: ConversationBufferMemory) -> None:
    def commented(execute: Callable[..., Any], statement: str, *rest: Any) -> Any:
        return execute(f"{statement} /* of the site */", *rest)

    with connection.execute_wrapper(commented):
        use(memory)
        assert prepared() == []
    assert len(memory.load("s")) == 1 + ENOUGH


def test_a_connection_prepares_so_many_statements_at_most(
    memory: ConversationBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "MOST", 1)
    use(memory)
    assert len(prepared()) == 1


def test_a_connection_counts_so_many_statements_at_most(
    memory: ConversationBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "COUNTED", 4)
    for number in range(1, 10):
        memory.append(f"{number} rules", *[ChatMessage.system("Be kind.")] * number)
    session = preparing._session(connection)
    assert session is not None
    assert len(session._sent) <= 4
    use(memory)
    assert len(prepared()) == PREPARED


def test_what_an_interrupt_has_left_prepared_is_not_prepared_again(
    memory: ConversationBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(memory, times=ENOUGH - 1)
    execute = CursorWrapper._execute  # type: ignore[attr-defined]

    def interrupted(self: CursorWrapper, statement: str, *rest: Any) -> Any:
        execute(self, statement, *rest)
        if statement.startswith("PREPARE"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CursorWrapper, "_execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            memory.append("s", ChatMessage.human("hello"))
    assert len(prepared()) == 1
    with transaction.atomic():
        use(memory)
    assert len(memory.load("s")) == 2 * ENOUGH
    assert not preparing._given_up


@pytest.mark.skipif(bool(PARTITIONS), reason="a load of a partitioned table is planned each time")
def test_a_plan_is_made_anew_after_a_table_has_grown(
    memory: ConversationBufferMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "EXECUTED_PER_PLAN", 50)

    def whole_tables() -> list[str]:
        """The tables that the load reads whole."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM pg_prepared_statements WHERE statement LIKE '%UNION ALL%'")
            [(name,)] = cursor.fetchall()
            cursor.execute(f"EXPLAIN EXECUTE {name} ('')")
            plan = " ".join(row[0] for row in cursor.fetchall())
        return re.findall(r"Seq Scan on (\w+)", plan)

    with connection.cursor() as cursor:
        for table in (sql.SESSION, sql.MESSAGE):
            cursor.execute(f"ANALYZE {table}")
    use(memory, times=20)
    assert sql.MESSAGE in whole_tables()
    for number in range(10):
        memory.append(f"another {number}", *[ChatMessage.human("hello")] * 100)
    use(memory, times=20)
    assert sql.MESSAGE not in whole_tables()


def test_what_is_removed_is_sent_as_text(memory: ConversationBufferMemory, caplog: pytest.LogCaptureFixture) -> None:
    use(memory)
    removed()
    use(memory)
    assert prepared() == []
    assert len(memory.load("s")) == 1 + 2 * ENOUGH
    [record] = caplog.records
    assert (record.levelno, record.name) == (logging.WARNING, "django_convmemory.store.preparing")
    assert "does not exist" in record.getMessage()


def test_what_is_removed_fails_a_transaction_of_the_caller_once(memory: ConversationBufferMemory) -> None:
    use(memory)
    removed()
    with pytest.raises(DatabaseError, match="does not exist"), transaction.atomic():
        memory.append("s", ChatMessage.human("hello"))
    with transaction.atomic():
        use(memory)
    assert len(memory.load("s")) == 1 + 2 * ENOUGH


def test_what_is_removed_fails_no_transaction_of_the_app(memory: ConversationBufferMemory) -> None:
    for _ in range(ENOUGH):
        memory.replace("s", 1, ChatMessage.human("hello"))
    assert len(prepared()) == 1
    removed()
    memory.replace("s", 1, ChatMessage.human("hello again"))
    assert [message.text for message in memory.load("s")] == ["hello", "hello again"]


@pytest.mark.parametrize(
    "change",
    [
        'ALTER TABLE convmemory_message ADD "more" integer',
        "ALTER TABLE convmemory_message ALTER kind TYPE varchar(99)",
        "ALTER TABLE convmemory_message ALTER kind TYPE text",
        "ALTER TABLE convmemory_message ALTER tokens TYPE bigint",
        "ALTER TABLE convmemory_session ALTER counter TYPE text",
    ],
)
def test_a_migration_meanwhile_does_no_harm(memory: ConversationBufferMemory, change: str) -> None:
    use(memory)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(change)
        use(memory)
        assert len(prepared()) == PREPARED
        assert len(memory.load("s")) == 1 + 2 * ENOUGH
        transaction.set_rollback(True)
    use(memory)
    assert len(memory.load("s")) == 1 + 2 * ENOUGH


@pytest.mark.parametrize(
    "options",
    [
        {"prepare_threshold": None},
        {"prepare_threshold": 5},
        {"server_side_binding": True},
        {"pool": {"min_size": 1, "max_size": 1, "reset": lambda driver: driver.execute("DISCARD ALL")}},
    ],
    ids=["prepares nothing", "psycopg prepares", "binds on the server", "resets its sessions"],
)
def test_a_site_can_decide_for_itself(
    memory: ConversationBufferMemory, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    try:
        use(memory)
        assert not [text for text in prepared() if text.startswith("PREPARE")]
        connection.close()
        use(memory)
    finally:
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]
    assert not preparing._given_up


def test_a_pool_keeps_what_is_prepared(memory: ConversationBufferMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"pool": {"min_size": 1, "max_size": 1}})
    try:
        for _ in range(ENOUGH + 1):
            use(memory, times=1)
            connection.close()  # As at the end of a request.
        assert len(prepared()) == PREPARED
    finally:
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]


class Behind(NamedTuple):
    """The tests' PostgreSQL, as the server behind PgBouncer."""

    port: int


@pytest.fixture(params=["session", "transaction", "statement"])
def bouncer(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PgBouncer]:
    """PgBouncer with two sessions of the server for all clients. Django connects through it."""
    port = urlsplit(servers.POSTGRESQL).port or 5432
    try:
        bouncer = PgBouncer(tmp_path, Behind(port), pool_mode=request.param, pool_size=2)  # type: ignore[arg-type]
    except Absent as error:
        (pytest.fail if servers.REQUIRED else pytest.skip)(str(error))
    with bouncer:
        monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        monkeypatch.setitem(connection.settings_dict, "PORT", str(bouncer.port))
        yield bouncer
        connection.close()


def test_behind_pgbouncer_nothing_is_prepared(memory: ConversationBufferMemory, bouncer: PgBouncer) -> None:
    def work() -> list[str]:
        use(memory, times=4 * ENOUGH)
        return prepared()

    at_once = 2 if bouncer.pool_mode == "session" else 4
    threads = [InThread(work) for _ in range(at_once)]
    assert [thread.result() for thread in threads] == [[]] * at_once
    assert models.Message.objects.count() == 1 + at_once * 4 * ENOUGH
    assert not preparing._given_up
    assert len(connections.all()) == 1
