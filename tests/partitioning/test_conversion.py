"""``manage.py convmemory_partition`` on filled tables, while others write, with interruptions, and back."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.memory import ConversationBufferMemory, ConversationMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.partitioning import conversion, copying, state
from django_convmemory.partitioning.conversion import Refused
from django_convmemory.partitioning.database import Database
from django_convmemory.partitioning.table import Table
from django_convmemory.schedulers import NullScheduler
from django_convmemory.stores.orm import ORMStore
from tests import processes, servers
from tests.long_sessions import fill
from tests.processes import wait_until

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("unpartitioned")]

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
    conversion.convert(Database("default", 300), PARTITIONS, report)


def talk(count: int = 40) -> None:
    for number in range(count):
        texts = [ChatMessage.human(f"question {number}.{place}") for place in range(number % 7)]
        memory().append(f"chat {number}", ChatMessage.system("Be kind."), *texts, idempotency_key=f"k{number}")


def everything() -> list[Any]:
    return list(models.Message.objects.order_by("session_id", "position").values_list())


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


# Others write meanwhile.


@dataclasses.dataclass
class Writer:
    """Changes its own sessions at random until it is stopped, and knows what must be stored in the end."""

    name: str
    stopped: threading.Event
    texts: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    longest: float = 0.0
    changes: int = 0
    error: BaseException | None = None

    def run(self) -> None:
        chance, chat = random.Random(self.name), memory()
        try:
            while not self.stopped.is_set():
                self.change(chance, chat)
                self.changes += 1
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.error = error
        finally:
            connection.close()

    def change(self, chance: random.Random, chat: ConversationMemory) -> None:
        key = f"{self.name} {chance.randrange(12)}"
        texts = self.texts.setdefault(key, [])
        kind = chance.choice(["append"] * 6 + ["redact", "truncate", "clear", "delete", "update", "replace"])
        if kind == "append":
            new = [f"{self.name} {self.changes}.{number}" for number in range(chance.choice((1, 1, 1, 3)))]
            began = time.perf_counter()
            chat.append(key, *map(ChatMessage.human, new), idempotency_key=f"{self.name} {self.changes}")
            self.longest = max(self.longest, time.perf_counter() - began)
            texts += new
        elif kind == "delete":
            chat.delete(key)
            texts.clear()
        elif kind == "clear":
            chat.clear(key)
            texts.clear()
        elif texts:
            place = chance.randrange(len(texts))
            if kind == "redact":
                chat.redact(key, place + 1)
                texts[place] = ""
            elif kind == "update" and texts[place]:
                chat.update_message(key, place + 1, metadata={"seen": self.changes})
            elif kind == "truncate":
                chat.truncate(key, place)
                del texts[place:]
            elif kind == "replace":
                chat.replace(key, place, ChatMessage.human(f"{self.name} {self.changes}"))
                texts[place:] = [f"{self.name} {self.changes}"]


@contextlib.contextmanager
def writers(count: int = 4) -> Iterator[list[Writer]]:
    """Let so many threads write during the block, and compare what they know with what is stored after it."""
    stopped = threading.Event()
    writing = [Writer(f"writer {number}", stopped) for number in range(count)]
    threads = [threading.Thread(target=writer.run) for writer in writing]
    for thread in threads:
        thread.start()
    try:
        yield writing
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    for writer in writing:
        if writer.error is not None:
            raise writer.error
        for key, texts in writer.texts.items():
            assert [row.message.text for row in memory().history(key, limit=10_000)] == texts, key


def test_nothing_is_lost_and_nothing_is_there_twice_while_others_write(record_property: Any) -> None:
    fill(memory(), "long", 60_000)
    talk()
    before = everything()
    pages: list[str] = []
    with writers() as writing:
        wait_until(lambda: all(writer.changes > 20 for writer in writing), "The writers do not write.")
        convert(lambda sentence: pages.append(sentence) if sentence.startswith("Copied") else None)
        counts = [writer.changes for writer in writing]
        wait_until(
            lambda: all(writer.changes > count + 20 for writer, count in zip(writing, counts, strict=True)),
            "The writers do not write after the conversion.",
        )
    assert len(pages) > 2
    kept = {row[:2]: row for row in everything()}
    assert all(kept[row[:2]] == row for row in before)
    record_property("longest append during a conversion", f"{max(writer.longest for writer in writing) * 1000:.0f} ms")
    check()


def test_a_killed_conversion_is_continued(tmp_path: pathlib.Path) -> None:
    fill(memory(), "long", 60_000)
    talk()
    before = everything()
    with writers(2):
        process = processes.start(tmp_path, "django", "convmemory_partition", "--partitions", str(PARTITIONS))
        with process:
            try:
                wait_until(is_copying, "The conversion does not copy.")
            finally:
                process.send_signal(signal.SIGKILL)
        begun = state.read(Database("default", 300))
        assert begun is not None
        assert not begun.copied
        with pytest.raises(CommandError, match="A conversion to 16 partitions has begun"):
            call_command("convmemory_partition", "--partitions", "8", verbosity=0)
        convert()
    kept = {row[:2]: row for row in everything()}
    assert all(kept[row[:2]] == row for row in before)
    check()


def is_copying() -> bool:
    begun = state.read(Database("default", 300))
    return begun is not None and begun.pages is not None and begun.next_page > 0


def test_a_conversion_can_be_interrupted_after_each_step() -> None:
    talk()
    before = everything()
    steps = []

    def interrupt(sentence: str) -> None:
        if sentence not in steps:
            steps.append(sentence)
            raise Interrupted

    for number in itertools.count():
        assert number < 20
        try:
            convert(interrupt)
        except Interrupted:
            memory().append("chat 2", ChatMessage.human(f"in between {number}"))
        if steps[-1].startswith("Dropped"):
            break
    assert [sentence.partition(" ")[0] for sentence in steps] == [
        "Created",
        "Every",
        "Copied",
        "Checked",
        "Compared",
        "Swapped",
        "Dropped",
    ]
    kept = {row[:2]: row for row in everything()}
    assert all(kept[row[:2]] == row for row in before)
    check()


@pytest.mark.parametrize("step", ["Created", "Every", "Copied", "Checked", "Compared", "Swapped"])
def test_a_conversion_that_another_one_overtakes_is_refused(step: str) -> None:
    talk()
    before = everything()

    def overtake(sentence: str) -> None:
        if sentence.startswith(step):
            convert()

    with pytest.raises(Refused, match="Another process has probably taken it"):
        convert(overtake)
    kept = {row[:2]: row for row in everything()}
    assert all(kept[row[:2]] == row for row in before)
    check()


def test_two_conversions_that_begin_at_once_leave_one_whole_table() -> None:
    talk()
    refusals: list[str] = []
    meeting = threading.Barrier(2)

    def begin() -> None:
        meeting.wait()
        try:
            convert()
        except Refused as error:
            refusals.append(str(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Each may have been overtaken by the other.
    with contextlib.suppress(Refused):
        convert()
    assert all("partitioned already" in why or "Another process" in why for why in refusals)
    check()


# Locks.


def test_a_conversion_lets_appends_pass_while_it_waits_for_a_lock() -> None:
    talk()
    holding, told = threading.Event(), threading.Event()

    def read_for_long() -> None:
        try:
            with transaction.atomic():
                rows("SELECT count(*) FROM convmemory_message")
                holding.set()
                assert told.wait(processes.PATIENCE)
        finally:
            connection.close()

    thread = threading.Thread(target=read_for_long)

    def report(sentence: str) -> None:
        if sentence.startswith("Compared"):
            thread.start()
            assert holding.wait(processes.PATIENCE)
        if sentence.startswith("Waiting"):
            assert "client backend" in sentence
            # The conversion waits for the reader, and nobody waits for the conversion.
            memory().append("chat 1", ChatMessage.human("Meanwhile."))
            told.set()

    convert(report)
    thread.join()
    assert told.is_set()
    check()


@contextlib.contextmanager
def held(work: Callable[[], Any], until: threading.Event) -> Iterator[int]:
    """Keep the transaction of ``work`` open in another thread until the event. Yield the process id of its session."""
    pids: list[int] = []
    began = threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                work()
                pids.extend(pid for (pid,) in rows("SELECT pg_backend_pid()"))
                began.set()
                assert until.wait(processes.PATIENCE)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert began.wait(processes.PATIENCE)
        yield pids[0]
    finally:
        until.set()
        thread.join()


def test_the_copy_says_which_change_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_LONG_WAIT", 0.1)
    talk()
    told = threading.Event()
    with contextlib.ExitStack() as stack:
        pid = 0

        def report(sentence: str) -> None:
            nonlocal pid
            if sentence.startswith("Every"):
                pid = stack.enter_context(held(lambda: memory().redact("chat 6", 2), told))
            if sentence.startswith("Waiting"):
                assert f"{pid} (client backend)" in sentence
                told.set()

        convert(report)
    assert told.is_set()
    check()


def test_the_last_step_says_who_keeps_the_old_table(monkeypatch: pytest.MonkeyPatch) -> None:
    talk()
    told = threading.Event()
    with contextlib.ExitStack() as stack:
        pid = 0

        def report(sentence: str) -> None:
            nonlocal pid
            if sentence.startswith("Swapped"):
                pid = stack.enter_context(held(lambda: rows("SELECT 1 FROM convmemory_message_old LIMIT 1"), told))
            if sentence.startswith("Waiting"):
                assert f"{pid} (client backend)" in sentence
                told.set()

        convert(report)
    assert told.is_set()
    check()


def test_the_server_writes_early_during_a_conversion_and_as_before_after_it() -> None:
    before = rows("SHOW backend_flush_after")
    with Database("default", 300).transaction():
        assert rows("SHOW backend_flush_after") == [("1MB",)]
    assert rows("SHOW backend_flush_after") == before != [("1MB",)]


def test_steps_about_the_whole_table_may_take_longer_than_the_sites_statements() -> None:
    limits: dict[str, str] = {}

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        with connection.connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            limits["compare" if "hashtext" in sql else sql.partition(" ")[0]] = cursor.fetchone()[0]
        return execute(sql, params, many, context)

    talk()
    rows("SET statement_timeout = '5s'")
    with connection.execute_wrapper(note):
        convert()
    assert [limits[step] for step in ("INSERT", "ALTER", "ANALYZE", "compare")] == ["0"] * 4
    assert rows("SHOW statement_timeout") == [("5s",)]


def test_statistics_wait_for_an_autovacuum_of_a_partition_as_long_as_it_takes() -> None:
    talk()
    rows("SET lock_timeout = '50ms'")
    holding = threading.Event()

    def vacuum() -> None:
        try:
            with transaction.atomic():
                # The lock of VACUUM.
                rows("LOCK TABLE convmemory_message_p03 IN SHARE UPDATE EXCLUSIVE MODE")
                holding.set()
                time.sleep(0.5)
        finally:
            connection.close()

    thread = threading.Thread(target=vacuum)

    def report(sentence: str) -> None:
        if sentence.startswith("Checked"):
            thread.start()
            assert holding.wait(processes.PATIENCE)

    convert(report)
    thread.join()
    assert rows("SHOW lock_timeout") == [("50ms",)]
    check()


# What a conversion keeps.

# By kind, each as a query about the table with this OID.
DESCRIPTIONS = {
    "columns": """
        SELECT attname, format_type(atttypid, atttypmod), attnotnull, attnum, attstattarget, attacl::text
        FROM pg_attribute WHERE attrelid = %s AND attnum > 0 ORDER BY 1""",
    "constraints": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s ORDER BY 1",
    "owner": """
        SELECT pg_get_userbyid(relowner), obj_description(oid), ARRAY(
        SELECT acl::text FROM aclexplode(relacl) acl ORDER BY 1) FROM pg_class WHERE oid = %s""",
    "indexes": """
        SELECT indexrelid::regclass::text, replace(pg_get_indexdef(indexrelid), 'ON ONLY', 'ON'), indisprimary
        FROM pg_index WHERE indrelid = %s ORDER BY 1""",
}


def described() -> dict[str, list[tuple[Any, ...]]]:
    return {name: rows(query.replace("%s", "'convmemory_message'::regclass")) for name, query in DESCRIPTIONS.items()}


@pytest.fixture
def role(unpartitioned: None) -> Iterator[str]:
    name = f"{connection.settings_dict['NAME']}_role"
    rows(f'CREATE ROLE "{name}"')
    yield name
    for statement in ("REASSIGN OWNED BY {} TO CURRENT_USER", "DROP OWNED BY {}", "DROP ROLE {}"):
        rows(statement.format(f'"{name}"'))


def test_a_conversion_keeps_all_that_the_table_has(role: str) -> None:
    talk()
    options = "fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_scale_factor = 0.03"
    for statement in (
        f"ALTER TABLE convmemory_message SET ({options})",
        "ALTER TABLE convmemory_message ALTER COLUMN session_id SET STATISTICS 500",
        "ALTER INDEX convmemory_message_through SET (fillfactor = 70)",
        "ALTER INDEX convmemory_message_pkey SET (fillfactor = 75)",
        "CREATE INDEX sites_own ON convmemory_message (session_id, created_at) WHERE role = 'tool'",
        "COMMENT ON TABLE convmemory_message IS 'What people''s chats say: 100 %'",
        "GRANT SELECT ON convmemory_message TO pg_monitor WITH GRANT OPTION",
        "GRANT UPDATE (metadata) ON convmemory_message TO pg_monitor",
        "GRANT SELECT ON convmemory_message TO PUBLIC",
        f'ALTER TABLE convmemory_message OWNER TO "{role}"',
        f'GRANT CREATE ON SCHEMA public TO "{role}"',
    ):
        rows(statement)
    before = described()
    assert "pg_monitor" in str(before["columns"])
    convert()
    assert described() == before
    of_partitions = rows(
        "SELECT DISTINCT c.reloptions, toast.reloptions, pg_get_userbyid(c.relowner), c.relacl FROM pg_inherits "
        "JOIN pg_class c ON c.oid = inhrelid JOIN pg_class toast ON toast.oid = c.reltoastrelid "
        "WHERE inhparent = 'convmemory_message'::regclass"
    )
    [(storage, toast, owner, grants)] = of_partitions
    assert sorted(storage) == ["autovacuum_vacuum_scale_factor=0.02", "fillfactor=80"]
    assert toast == ["autovacuum_vacuum_scale_factor=0.03"]
    assert owner == role
    assert any(grant.startswith("=r/") for grant in grants)
    check()


def test_a_role_that_may_only_change_messages_goes_on_meanwhile(role: str) -> None:
    talk()
    rows(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{role}"')
    rows(f'GRANT UPDATE ON convmemory_session, convmemory_message TO "{role}"')

    def report(sentence: str) -> None:
        if sentence.startswith("Every"):
            rows(f'SET ROLE "{role}"')
            try:
                memory().update_message("chat 6", 2, metadata={"liked": True})
            finally:
                rows("RESET ROLE")

    convert(report)
    assert memory().history("chat 6")[1].message.metadata == {"liked": True}
    check()


def give_tables(role: str) -> None:
    """Make a role the owner of all tables. It may create more."""
    rows(f'GRANT CREATE, USAGE ON SCHEMA public TO "{role}"')
    for (name,) in rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        rows(f'ALTER TABLE "{name}" OWNER TO "{role}"')


@pytest.mark.parametrize("step", ["Created", "Copied", "Swapped"])
def test_the_owner_continues_what_another_role_has_begun(role: str, step: str) -> None:
    talk()
    give_tables(role)

    def report(sentence: str) -> None:
        if sentence.startswith(step):
            raise Interrupted

    with pytest.raises(Interrupted):
        convert(report)
    rows(f'SET ROLE "{role}"')
    convert()
    rows("RESET ROLE")
    check()


def test_a_role_without_the_privileges_of_the_owner_is_refused(role: str) -> None:
    talk()
    give_tables(role)
    before, member = names(), f"{role}_member"
    rows(f'CREATE ROLE "{member}" NOINHERIT IN ROLE "{role}"')
    rows(f'GRANT CREATE, USAGE ON SCHEMA public TO "{member}"')
    try:
        rows(f'SET ROLE "{member}"')
        with pytest.raises(CommandError, match="does not have the privileges of that role"):
            call_command("convmemory_partition", verbosity=0)
        rows("RESET ROLE")
        assert names() == before
        with pytest.raises(Interrupted):
            convert(lambda sentence: interrupt())
        rows(f'SET ROLE "{member}"')
        for arguments in ([], ["--abort"], ["--dry-run"]):
            with pytest.raises(CommandError, match=r"lacks a privilege: .* Run the command again as the owner"):
                call_command("convmemory_partition", *arguments, verbosity=0)
    finally:
        rows("RESET ROLE")
        rows(f'DROP OWNED BY "{member}"')
        rows(f'DROP ROLE "{member}"')
    convert()
    check()


def test_a_conversion_in_another_schema_of_the_search_path_is_another_one() -> None:
    talk()
    with pytest.raises(Interrupted):
        convert(lambda sentence: interrupt())
    rows("CREATE SCHEMA tenant")
    rows("SET search_path = tenant")
    call_command("migrate", verbosity=0)
    rows("SET search_path = tenant, public")
    with pytest.raises(CommandError, match="No conversion has begun"):
        call_command("convmemory_partition", "--abort", verbosity=0)
    talk()
    convert()
    rows("SET search_path = public")
    convert()
    assert rows(
        "SELECT relnamespace::regnamespace::text, relkind FROM pg_class WHERE relname = 'convmemory_message' ORDER BY 1"
    ) == [("public", "p"), ("tenant", "p")]


def test_what_a_tool_writes_without_the_sites_triggers_is_mirrored() -> None:
    talk()

    def report(sentence: str) -> None:
        if sentence.startswith("Compared"):
            rows("SET session_replication_role = replica")
            memory().append("chat 1", ChatMessage.human("Loaded."))
            rows("RESET session_replication_role")

    convert(report)
    assert memory().load("chat 1")[-1].text == "Loaded."
    check()


def test_default_privileges_do_not_give_the_copy_to_others() -> None:
    rows("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC, pg_monitor")
    readable = """
        SELECT relname FROM pg_class WHERE relname LIKE 'convmemory_message%' AND relkind IN ('r', 'p')
        AND has_table_privilege('pg_monitor', oid, 'SELECT')"""
    seen: list[Any] = []
    convert(lambda sentence: seen.extend(rows(readable)))
    # The row that says how far the conversion has come is no secret.
    assert {name for (name,) in seen} <= {"convmemory_message_conversion"}


def test_a_generated_column_is_computed_in_the_copy_too() -> None:
    rows(
        "ALTER TABLE convmemory_message "
        "ADD COLUMN words tsvector GENERATED ALWAYS AS (to_tsvector('english', content)) STORED"
    )
    talk()

    def report(sentence: str) -> None:
        if sentence.startswith("Every"):
            memory().append("chat 1", ChatMessage.human("A heron."))
            memory().redact("chat 6", 2)

    convert(report)
    check()
    assert rows(
        "SELECT count(*) FILTER (WHERE words IS DISTINCT FROM to_tsvector('english', content)), "
        "count(*) FILTER (WHERE words @@ 'heron') FROM convmemory_message"
    ) == [(0, 1)]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE VIEW v AS SELECT role FROM convmemory_message", "the view or rule of v uses it"),
        (
            "CREATE UNIQUE INDEX u ON convmemory_message (created_at, position)",
            "the unique index u does not contain session_id",
        ),
        ("ALTER TABLE convmemory_message ENABLE ROW LEVEL SECURITY", "row security is on"),
        ("CREATE PUBLICATION p FOR TABLE convmemory_message", "it is in the publication p of logical replication"),
        (
            """CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
            CREATE TRIGGER t AFTER INSERT ON convmemory_message EXECUTE FUNCTION f()""",
            "it has the trigger t",
        ),
        (
            "CREATE TABLE likes (a bigint, b bigint, FOREIGN KEY (a, b) REFERENCES convmemory_message)",
            "the foreign key likes_a_b_fkey refers to it",
        ),
        (
            "ALTER TABLE convmemory_message ADD CONSTRAINT short CHECK (position < 3) NOT VALID",
            "the check constraint short is not validated",
        ),
        (
            "ALTER TABLE convmemory_message ADD CONSTRAINT long CHECK (position > 0) NO INHERIT",
            "the check constraint long is not validated, or is NO INHERIT",
        ),
        (
            "CREATE TABLE convmemory_message_old AS SELECT * FROM convmemory_message",
            'There is a table "public"."convmemory_message_old"',
        ),
        ("ALTER TABLE convmemory_message ADD COLUMN number bigserial", "the column number has a sequence"),
        (
            "ALTER TABLE convmemory_message ADD COLUMN number bigint GENERATED BY DEFAULT AS IDENTITY",
            "the column number has a sequence",
        ),
    ],
)
def test_a_table_with_something_that_would_be_lost_is_refused(statement: str, why: str) -> None:
    rows(statement)
    for arguments in ([], ["--dry-run"]):
        with pytest.raises(CommandError, match=why):
            call_command("convmemory_partition", *arguments, verbosity=0)
    assert state.read(Database("default", 300)) is None


def test_a_function_that_depends_on_the_search_path_does_not_stop_appends() -> None:
    talk()
    rows("CREATE FUNCTION helper(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT lower($1)'")
    rows("CREATE FUNCTION plain(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN helper($1); END'")
    rows("CREATE INDEX sites_own ON convmemory_message (session_id, md5(plain(content)))")
    with pytest.raises(Refused, match=r"it uses the function plain\(text\), which needs a search path of its own"):
        convert()
    rows("ALTER FUNCTION plain(text) SET search_path = public")

    def report(sentence: str) -> None:
        if sentence.startswith("Every"):
            memory().append("chat 1", ChatMessage.human("Meanwhile."))

    convert(report)
    assert memory().load("chat 1")[-1].text == "Meanwhile."
    check()


def test_a_name_that_is_taken_is_named() -> None:
    talk()
    rows("CREATE TABLE convmemory_message_p03 AS SELECT * FROM convmemory_message")
    with pytest.raises(Refused, match=r"convmemory_message_p03.* already exists.*has a name that the conversion needs"):
        convert()
    rows("ALTER TABLE convmemory_message_p03 RENAME TO copied")
    convert()
    check()


def test_a_table_that_a_subscription_fills_is_refused() -> None:
    # The subscription would go on with the old table, and nobody would notice.
    address = make_conninfo(servers.POSTGRESQL, dbname=connection.settings_dict["NAME"])
    rows("CREATE PUBLICATION everything FOR TABLE convmemory_message")
    rows(
        f"CREATE SUBSCRIPTION of_tests CONNECTION '{address}' "
        "PUBLICATION everything WITH (create_slot = false, enabled = false, slot_name = NONE, copy_data = false)"
    )
    try:
        rows("DROP PUBLICATION everything")
        with pytest.raises(CommandError, match="it is in the subscription of_tests of logical replication"):
            call_command("convmemory_partition", verbosity=0)
    finally:
        rows("DROP SUBSCRIPTION of_tests")


def test_a_site_with_another_isolation_level_is_refused() -> None:
    rows("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(CommandError, match="have the isolation level 'repeatable read'"):
        call_command("convmemory_partition", verbosity=0)
    assert state.read(Database("default", 300)) is None


@pytest.mark.parametrize("arguments", [[], ["--abort"]])
def test_a_conversion_in_a_transaction_of_the_caller_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError, match="A transaction is open"), transaction.atomic():
        call_command("convmemory_partition", *arguments, verbosity=0)
    # As with AUTOCOMMIT = False: nothing would be committed.
    transaction.set_autocommit(False)
    try:
        with pytest.raises(CommandError, match="AUTOCOMMIT = False"):
            call_command("convmemory_partition", *arguments, verbosity=0)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert state.read(Database("default", 300)) is None


# The way back, and changes of the table meanwhile.


def names() -> list[Any]:
    return [
        rows("SELECT relname, relkind FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"),
        rows("SELECT conname FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1"),
        rows("SELECT count(*) FROM pg_trigger"),
        rows("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace"),
    ]


@pytest.mark.parametrize("step", ["Created", "Every", "Copied", "Checked", "Compared"])
def test_an_abort_leaves_no_trace(step: str) -> None:
    talk()
    before, stored = names(), everything()

    def report(sentence: str) -> None:
        if sentence.startswith(step):
            raise Interrupted

    with pytest.raises(Interrupted):
        convert(report)
    assert names() != before
    call_command("convmemory_partition", "--abort", verbosity=0)
    assert names() == before
    assert everything() == stored
    memory().append("chat 1", ChatMessage.human("Go on."))
    memory().delete("chat 2")
    convert()
    check()


def test_an_abort_that_a_conversion_overtakes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(sentence: str) -> None:
        if sentence.startswith("Compared"):
            raise Interrupted

    table_of = conversion.table_of

    def overtaken(database: Database) -> Table:
        monkeypatch.setattr(conversion, "table_of", table_of)
        convert()
        return table_of(database)

    talk()
    stored = everything()
    with pytest.raises(Interrupted):
        convert(report)
    # The abort has seen that the tables are not swapped yet.
    monkeypatch.setattr(conversion, "table_of", overtaken)
    with pytest.raises(CommandError, match="Another process has probably taken it"):
        call_command("convmemory_partition", "--abort", verbosity=0)
    assert everything() == stored
    check()


def test_there_is_no_way_back_after_the_swap() -> None:
    def report(sentence: str) -> None:
        if sentence.startswith("Swapped"):
            raise Interrupted

    talk()
    with pytest.raises(Interrupted):
        convert(report)
    with pytest.raises(CommandError, match=r"is partitioned already\. Only the old one, convmemory_message_old"):
        call_command("convmemory_partition", "--abort", verbosity=0)
    memory().delete("chat 2")
    convert()
    check()
    with pytest.raises(CommandError, match="is partitioned already"):
        call_command("convmemory_partition", verbosity=0)
    with pytest.raises(CommandError, match="No conversion has begun"):
        call_command("convmemory_partition", "--abort", verbosity=0)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("ALTER TABLE convmemory_message ADD COLUMN mood text", "its columns were altered"),
        ("CREATE INDEX later ON convmemory_message (session_id, kind)", "the index later was created or changed"),
        ("DROP INDEX convmemory_message_through", "an index was dropped"),
        ("GRANT SELECT ON convmemory_message TO PUBLIC", "its owner or the privileges on it were changed"),
        ("VACUUM FULL convmemory_message", "it was rewritten"),
    ],
)
def test_a_table_that_is_altered_meanwhile_is_not_swapped(statement: str, why: str) -> None:
    talk()

    def report(sentence: str) -> None:
        if sentence.startswith("Every"):
            rows(statement)

    with pytest.raises(Refused, match=why):
        convert(report)
    conversion.abort(Database("default", 300), lambda sentence: None)
    assert rows("SELECT relkind FROM pg_class WHERE relname = 'convmemory_message'") == [("r",)]
    memory().append("chat 1", ChatMessage.human("Go on."))


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_a_table_that_is_altered_before_the_mirroring_is_not_mirrored(is_interrupted: bool) -> None:
    talk()

    def report(sentence: str) -> None:
        if sentence.startswith("Created"):
            rows("ALTER TABLE convmemory_message ADD COLUMN mood text")
            if is_interrupted:
                raise Interrupted

    with pytest.raises(Interrupted if is_interrupted else Refused):
        convert(report)
    with pytest.raises(Refused, match="its columns were altered"):
        convert()

    # The trigger would write the new column to the copy, which lacks it.
    memory().append("chat 1", ChatMessage.human("Go on."))


@pytest.mark.parametrize(
    ("create", "remove"),
    [
        ("CREATE VIEW later AS SELECT role FROM convmemory_message", "DROP VIEW later"),
        (
            """CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
            CREATE TRIGGER later AFTER INSERT ON convmemory_message EXECUTE FUNCTION later()""",
            "DROP FUNCTION later CASCADE",
        ),
    ],
)
def test_something_that_would_be_lost_is_refused_if_it_is_created_meanwhile(create: str, remove: str) -> None:
    talk()

    def report(sentence: str) -> None:
        if sentence.startswith("Compared"):
            rows(create)

    with pytest.raises(Refused, match=r"cannot be converted as it is: .* later"):
        convert(report)
    rows(remove)
    convert()
    check()


def test_a_copy_that_is_not_right_is_not_swapped() -> None:
    talk()

    def report(sentence: str) -> None:
        if sentence.startswith("Checked"):
            rows("UPDATE convmemory_message_new SET role = 'tool' WHERE position = 1")

    with pytest.raises(Refused, match=r"The copy is not right: the rows of .* differ"):
        convert(report)


# The command.


def test_a_dry_run_changes_nothing() -> None:
    talk()
    before = names()
    output = StringIO()
    call_command("convmemory_partition", "--dry-run", stdout=output)
    assert names() == before
    text = output.getvalue()
    assert "It would have 64 partitions, convmemory_message_p00 and so on." in text
    assert "The index convmemory_message_key would be copied: btree (session_id, idempotency_key) WHERE" in text
    assert "FOREIGN KEY (session_id) REFERENCES convmemory_session(id) DEFERRABLE INITIALLY DEFERRED." in text
    with pytest.raises(Interrupted):
        convert(lambda sentence: interrupt())
    output = StringIO()
    call_command("convmemory_partition", "--dry-run", stdout=output)
    assert output.getvalue() == ("A conversion to 16 partitions has begun. The next step would be to copy the rest.\n")


def interrupt() -> None:
    raise Interrupted


@pytest.mark.parametrize(
    ("tuples", "number"),
    [(-1, "an unknown number of rows, because it was never analyzed"), (7, "about 7 rows")],
)
def test_a_dry_run_says_if_the_number_of_rows_is_unknown(tuples: int, number: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pg_class SET reltuples = %s WHERE relname = 'convmemory_message'", [tuples])
    output = StringIO()
    call_command("convmemory_partition", "--dry-run", stdout=output)
    assert f"has {number}. The copy would need" in output.getvalue()


def test_an_interrupted_command_says_how_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    talk()
    with monkeypatch.context() as patch:
        patch.setattr(copying, "mirror", stop)
        with pytest.raises(CommandError, match=r"^Interrupted\. .*again with the same --partitions\. .*--abort\.$"):
            call_command("convmemory_partition", "--partitions", "16", stdout=StringIO())
    call_command("convmemory_partition", "--partitions", "16", stdout=StringIO())


def test_the_command_says_what_it_does() -> None:
    talk()
    output = StringIO()
    call_command("convmemory_partition", "--partitions", str(PARTITIONS), stdout=output)
    lines = output.getvalue().splitlines()
    assert lines[0] == "Created a table with 16 partitions."
    assert lines[-1] == 'Dropped the old table. "public"."convmemory_message" has 16 partitions.'
    check()


@pytest.mark.parametrize(
    "arguments", [["--partitions", "1"], ["--partitions", "257"], ["--lock-timeout", "0"], ["--database", "nowhere"]]
)
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError) as raised:
        call_command("convmemory_partition", *arguments)
    assert raised.value.returncode == 2
