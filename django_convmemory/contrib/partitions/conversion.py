"""A conversion from beginning to end. It can be interrupted at any time, and a second call continues it.

Note [No change is lost]

A row is in the new table because the trigger or the copy has put it there:

- The trigger is created under a lock that waits for all transactions that are writing. Rows that are written later are
  mirrored, so the copy needs only the pages that the table had at that moment.
- A new row, and a new version of a row, is inserted into the new table in the same transaction. The copy may find the
  same row too. Then it keeps the one that is there.
- A version that the copy reads could be updated or deleted before the copy commits. Its mirrored change would find
  nothing, and the copy would then insert the old version. So changes and deletions hold an advisory lock in shared mode
  until they commit, and the copy of a portion holds it in exclusive mode. The statement that reads the portion begins
  after the lock is taken. At the isolation level READ COMMITTED it sees what was committed before, and a later deletion
  sees what it copied.

Appends only insert, so they never wait for the copy. A redaction or deletion waits for one portion at most. The copy
does not queue for the lock: later changes would have to wait behind it, even if the lock's holder takes long.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator

from django.db import Error, transaction

from django_convmemory.contrib.partitions import tables
from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.contrib.partitions.tables import EMPTYING, MESSAGES, MIRROR, NEW, OLD, Altered, State, Table
from django_convmemory.store import database as store_database, transactions

# PostgreSQL: what a step changes is not there, or what it creates is there already.
_OVERTAKEN = frozenset({"42P01", "42P07", "42710", "42723", "23505"})
_WAY_BACK = "docs/guides/partitions.md says how the partitions become one table again."
# The key of the advisory lock, chosen at random.
_LOCK = 7_412_093_655_120_871
# In seconds: how long a portion should take, how often the copy looks whether the advisory lock is free, and after how
# long a wait it says so.
_PORTION_SECONDS, _LOOK_AGAIN, _LONG_WAIT = 0.1, 0.02, 5.0
# In pages.
_FIRST_PORTION, _LARGEST_PORTION = 32, 4096


class Refused(Exception):
    """The table cannot be converted. The message says why, and what to do."""


class Overtaken(Refused):
    """Another process has ended this conversion, and begun another one."""


def table_of(database: PatientDatabase) -> Table:
    """Return the table of messages. Raises :class:`Refused` if there is none."""
    try:
        return tables.read(database, MESSAGES)
    except tables.NoTable as error:
        raise Refused(f"{error} Run migrate first.") from None


def check(table: Table) -> None:
    """Raise :class:`Refused` if the table is partitioned already, or if a conversion would lose something."""
    if table.is_partitioned:
        raise Refused(f"The table {table.messages} is partitioned already.")
    with table.database.transaction():
        isolation = table.database.value("SHOW transaction_isolation")
    if isolation != "read committed":
        raise Refused(
            f"Transactions of this site have the isolation level {isolation!r}. A deletion at this level would not see "
            "the rows that a conversion has just copied. Use 'read committed' until the conversion is done."
        )
    _refuse_obstacles(table)
    # The swap would need the name, after hours of copying. The other names are needed at once.
    if table.database.value("SELECT to_regclass(%s)", [table.name(OLD)]) is not None:
        raise Refused(
            f"There is a table {table.name(OLD)}, and the conversion needs this name for the old table. Rename the one "
            "that is there, or drop it."
        )


def _refuse_obstacles(table: Table) -> None:
    obstacles = tables.obstacles(table, frozenset({MIRROR, EMPTYING}))
    if obstacles:
        raise Refused(
            f"The table {table.messages} cannot be converted as it is: {'; '.join(obstacles)}. Remove what is named. "
            "What a partitioned table can have, create again after the conversion."
        )


@contextlib.contextmanager
def _refusing_if_overtaken() -> Iterator[None]:
    """Raise :class:`Refused` if a step fails because another process has taken it."""
    try:
        yield
    except (Error, tables.NoTable) as error:
        if isinstance(error, Error) and transactions.sqlstate(error) not in _OVERTAKEN:
            raise
        raise Refused(
            f"A step could not be taken: {error}. Another process has probably taken it at the same moment. If the "
            "command is running twice, let the other one end. Otherwise run it again: it continues. If the same error "
            "comes again, something else has a name that the conversion needs: rename that."
        ) from error


@_refusing_if_overtaken()
def convert(database: PatientDatabase, partitions: int, report: Callable[[str], None]) -> None:
    """Partition the table of messages, or continue to. ``report`` is called with a sentence about each step.

    Raises :class:`Refused`.
    """

    def wait() -> None:
        report(_waiting(table))

    before = tables.read_state(database)
    table = table_of(database)
    if before is None:
        check(table)
        database.give_way(lambda: tables.build(table, partitions), wait)
        report(f"Created a table with {partitions} partitions.")
    elif before.partitions != partitions:
        raise Refused(
            f"A conversion to {before.partitions} partitions has begun. Continue it with --partitions "
            f"{before.partitions}, or end it with --abort."
        )
    try:
        if before is None or not before.swapped:
            _until_swap(table, before or State(partitions, 0, 0, None, swapped=False), report, wait)
    except Altered as error:
        raise Refused(
            f"The table {table.messages} has changed during the conversion: {error}. End the conversion with --abort, "
            "and begin again."
        ) from error
    store_database.forget_partitions()
    database.give_way(lambda: drop_old(table), wait)
    report(f"Dropped the old table. {table.messages} has {partitions} partitions.")


def _until_swap(table: Table, begun: State, report: Callable[[str], None], wait: Callable[[], None]) -> None:
    database = table.database
    tables.compare_columns(table, tables.read(database, table.name(NEW)))
    if begun.pages is None:
        database.give_way(lambda: mirror(table), wait)
        report("Every change is now written to both tables.")
    for done, pages in copy(table, wait):
        report(f"Copied {done} of {pages} pages.")
    for name in tables.partition_names(begun.partitions):
        database.give_way(functools.partial(add_keys, table, name, " NOT VALID"), wait)
        database.give_way(functools.partial(validate_keys, table, name), wait)
    database.give_way(lambda: add_keys(table, NEW), wait)
    report("Checked the foreign keys.")
    analyze(table)
    different = differences(table)
    if different is not None:
        raise Refused(f"The copy is not right: {different}. End the conversion with --abort, and report this.")
    report("Compared all rows of both tables: they are equal.")
    database.give_way(lambda: swap(table), wait)
    report(f"Swapped the tables. {table.messages} is partitioned.")


def abort(database: PatientDatabase, report: Callable[[str], None]) -> None:
    """Remove everything that an unfinished conversion has made. Raises :class:`Refused`."""
    begun, table = tables.read_state(database), table_of(database)
    if begun is None:
        raise Refused("No conversion has begun." + (f" {_WAY_BACK}" if table.is_partitioned else ""))
    if begun.swapped:
        raise Refused(
            f"The table {table.messages} is partitioned already. Only the old one, {OLD}, has to be dropped: run the "
            f"command again without --abort. {_WAY_BACK}"
        )
    with _refusing_if_overtaken():
        database.give_way(lambda: drop_new(table), lambda: report(_waiting(table)))
    report(f"Ended the conversion. The table {table.messages} is as it was.")


def _waiting(table: Table) -> str:
    """Return a sentence about the processes that may hold a lock for which a step waits, the oldest transaction first.

    Changes of the site hold the lock for which the copy waits, and locks of tables too.
    """
    names = [table.messages, table.name(NEW), table.name(OLD), *(key.target for key in table.foreign_keys)]
    holders = table.database.rows(
        "SELECT a.pid, a.backend_type FROM pg_stat_activity a "
        "WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND EXISTS ("
        "SELECT 1 FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND l.relation IN ("
        "SELECT to_regclass(name)::oid FROM unnest(%s::text[]) name "
        "UNION SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass(%s)::oid)) "
        "ORDER BY a.xact_start LIMIT 5",
        [names, table.name(NEW)],
    )
    listed = ", ".join(f"{pid} ({kind})" for pid, kind in holders)
    return f"Waiting for a lock. Server processes that have one: {listed or 'none any more'}."


def plan(database: PatientDatabase, partitions: int) -> Iterator[str]:
    """Yield what a conversion would do, in sentences. Raises :class:`Refused`."""
    table = table_of(database)
    begun = tables.read_state(database)
    if begun is not None:
        step = "drop the old table" if begun.swapped else "copy the rest" if not begun.copied else "swap the tables"
        yield f"A conversion to {begun.partitions} partitions has begun. The next step would be to {step}."
        return
    check(table)
    # The number of rows is -1 until the table is analyzed for the first time.
    size, rows = database.rows(
        "SELECT pg_size_pretty(pg_total_relation_size(oid)), reltuples::bigint FROM pg_class WHERE oid = %s",
        [table.oid],
    )[0]
    first = tables.partition_names(partitions)[0]
    number = f"about {rows} rows" if rows >= 0 else "an unknown number of rows, because it was never analyzed"
    yield f"The table {table.messages} has {number}. The copy would need about {size} of disk."
    yield f"It would have {partitions} partitions, {first} and so on. They would belong to {table.owner}."
    for index in tables.indexes(table):
        yield f"The index {index.name} would be copied: {index.kind[2]}."
    for key in table.foreign_keys:
        yield f"The foreign key {key.name} would be copied: {key.definition}."
    if table.options:
        yield f"Each partition would have the storage parameters {', '.join(table.options)}."
    for grant in table.grants:
        column = f" ({grant.column})" if grant.column else ""
        yield f"{grant.privilege}{column} would be granted to {grant.to}."


# Copying the rows, while a trigger writes every change to both tables.


def mirror(table: Table) -> None:
    """Create the triggers, and note how many pages the copy has to read.

    Raises :class:`.Altered` if the columns were altered: the trigger would fail, and each append of the site with it.
    """
    database = table.database
    key = f"{database.quoted('session_id')} = OLD.session_id AND {database.quoted('position')} = OLD.position"
    values = ", ".join(f"NEW.{column}" for column in table.written)
    insert = f"INSERT INTO {table.name(NEW)} ({table.listed}) VALUES ({values});"
    # It runs as the owner of the tables: a role that may only change messages has to delete and insert in the copy.
    database.rows(
        f"CREATE FUNCTION {table.name(MIRROR)}() RETURNS trigger LANGUAGE plpgsql "
        "SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $mirror$ BEGIN "
        f"IF TG_OP = 'TRUNCATE' THEN TRUNCATE {table.name(NEW)}; RETURN NULL; END IF; "
        f"IF TG_OP <> 'INSERT' THEN PERFORM pg_advisory_xact_lock_shared({_LOCK}); "
        f"DELETE FROM {table.name(NEW)} WHERE {key}; END IF; "
        f"IF TG_OP <> 'DELETE' THEN {insert} END IF; RETURN NULL; END $mirror$"
    )
    database.rows(f"REVOKE ALL ON FUNCTION {table.name(MIRROR)}() FROM PUBLIC")
    database.rows(f"ALTER FUNCTION {table.name(MIRROR)}() OWNER TO {table.owner}")
    for name, event, each in ((MIRROR, "INSERT OR UPDATE OR DELETE", "ROW"), (EMPTYING, "TRUNCATE", "STATEMENT")):
        database.rows(
            f"CREATE TRIGGER {database.quoted(name)} AFTER {event} ON {table.messages} "
            f"FOR EACH {each} EXECUTE FUNCTION {table.name(MIRROR)}()"
        )
        # Also for sessions with session_replication_role = replica, as tools have that load data.
        database.rows(f"ALTER TABLE {table.messages} ENABLE ALWAYS TRIGGER {database.quoted(name)}")
    # After the lock of CREATE TRIGGER: nobody alters the table, and all that is written from now on is mirrored.
    tables.compare_columns(tables.read(database, table.messages), tables.read(database, table.name(NEW)))
    pages = database.value("SELECT pg_relation_size(%s) / current_setting('block_size')::int", [table.oid])
    tables.write_state(table, pages=pages)


def copy(table: Table, waiting: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """Copy the rest of the rows. Yield after each portion the number of pages that are copied, and of all pages.

    Raises :class:`.Altered` if the table was written to another file, with other pages, and :class:`Overtaken`.
    """
    size = _FIRST_PORTION
    waiting_since = time.monotonic()
    while True:
        began = time.monotonic()
        progress = table.database.give_way(functools.partial(_copy_portion, table, size), waiting)
        if progress is None:
            if time.monotonic() - waiting_since > _LONG_WAIT:
                waiting()
                waiting_since = time.monotonic()
            # Changes go on. To wait for the lock itself would hold up those that come next.
            time.sleep(_LOOK_AGAIN)
            continue
        yield progress
        waiting_since = time.monotonic()
        if progress[0] >= progress[1]:
            return
        took = time.monotonic() - began
        size = max(1, min(_LARGEST_PORTION, int(size * min(2, _PORTION_SECONDS / max(took, 0.001)))))


def _copy_portion(table: Table, size: int) -> tuple[int, int] | None:
    """Copy the next ``size`` pages. None: changes are going on, which the copy must not read."""
    database = table.database
    if not database.value("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK]):
        return None
    name = table.name(tables.STATE)
    # The lock keeps a second process of the command from copying the same pages.
    [(first, pages, filenode)] = database.rows(f"SELECT next_page, pages, filenode FROM {name} FOR UPDATE")
    if pages is None:
        raise Overtaken(
            "Another process has ended this conversion, and begun another one. Let that one finish. If it was "
            "interrupted, run it again."
        )
    if database.value("SELECT pg_relation_filenode(%s)", [table.oid]) != filenode:
        raise Altered("it was rewritten, for example by VACUUM FULL")
    end = min(pages, first + size)
    if first < end:
        database.rows(
            f"INSERT INTO {table.name(NEW)} ({table.listed}) SELECT {table.listed} FROM {table.messages} "
            f"WHERE ctid >= %s::tid AND ctid < %s::tid ON CONFLICT (session_id, position) DO NOTHING",
            [f"({first},0)", f"({end},0)"],
        )
        tables.write_state(table, next_page=end)
    return end, pages


# Foreign keys.
#
# If the new table had its keys from the start, each copied row would check that its session exists, and lock the
# session. One check of all rows of a partition is faster, and locks nothing. So a partition gets its key after the
# copy, at first for new rows only. Once the key of each partition is validated, the key of the whole table is made of
# them, without another check.


def lock_referenced(table: Table, mode: str) -> None:
    """Lock the tables that the foreign keys refer to, before any other: appends lock them in this order too."""
    for key in table.foreign_keys:
        table.database.rows(f"LOCK TABLE {key.target} IN {mode} MODE")


def add_keys(table: Table, name: str, option: str = "") -> None:
    """Give the new table or one of its partitions the keys that it lacks. ``" NOT VALID"``: for new rows only."""
    lock_referenced(table, "SHARE ROW EXCLUSIVE")
    existing = {key.name for key in tables.read(table.database, table.name(name)).foreign_keys}
    for key in table.foreign_keys:
        if key.name not in existing:
            constraint = f"{table.database.quoted(key.name)} {key.definition}{option}"
            table.database.rows(f"ALTER TABLE {table.name(name)} ADD CONSTRAINT {constraint}")


def validate_keys(table: Table, name: str) -> None:
    """Check the rows that a partition has had before its keys. This lets others write."""
    for key in table.foreign_keys:
        # It does nothing if the key is valid.
        table.database.rows(f"ALTER TABLE {table.name(name)} VALIDATE CONSTRAINT {table.database.quoted(key.name)}")


def analyze(table: Table) -> None:
    """Collect statistics of the new table for the planner, before anybody reads it."""
    with transaction.atomic(using=table.database.using):
        table.database.take_time()
        table.database.rows(f"ANALYZE {table.name(NEW)}")


def differences(table: Table) -> str | None:
    """Compare both tables as they are at one moment. Return what is different, or None.

    A change and its mirrored one commit together, so the tables are equal at every moment.
    """
    database = table.database
    with transaction.atomic(using=database.using):
        database.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        database.take_time()
        query = f"SELECT count(*), sum(hashtextextended(ROW({table.listed})::text, 0)::numeric) FROM"
        [(old_rows, old_hash)] = database.rows(f"{query} {table.messages}")
        [(new_rows, new_hash)] = database.rows(f"{query} {table.name(NEW)}")
    if old_rows != new_rows:
        return f"{table.messages} has {old_rows} rows, but its copy has {new_rows}"
    return None if old_hash == new_hash else f"the rows of {table.messages} and of its copy differ"


# The swap of the tables, or the end without it.


def swap(table: Table) -> None:
    """Give the new table the name of the old one, with the names of its indexes, and end the mirroring.

    Nobody else reads or writes the tables until the transaction ends.
    """
    database = table.database
    # Dropping the old table's foreign key needs this lock. Sessions first, as in an append.
    lock_referenced(table, "ACCESS EXCLUSIVE")
    database.rows(f"LOCK TABLE {table.messages}, {table.name(NEW)} IN ACCESS EXCLUSIVE MODE")
    # A view or a trigger may have been created since the conversion began.
    _refuse_obstacles(table)
    old, new = tables.read(database, table.messages), tables.read(database, table.name(NEW))
    tables.compare(old, new)
    pairs = tables.index_names(old, new)
    for key in table.foreign_keys:
        database.rows(f"ALTER TABLE {table.messages} DROP CONSTRAINT {database.quoted(key.name)}")
    _drop_mirror(table)
    for number, (name, new_name) in enumerate(pairs):
        database.rows(f"ALTER INDEX {table.name(name)} RENAME TO {database.quoted(f'{OLD}_{number}')}")
        database.rows(f"ALTER INDEX {table.name(new_name)} RENAME TO {database.quoted(name)}")
    database.rows(f"ALTER TABLE {table.messages} RENAME TO {database.quoted(OLD)}")
    database.rows(f"ALTER TABLE {table.name(NEW)} RENAME TO {database.quoted(MESSAGES)}")
    tables.write_state(table, swapped=True)


def _drop_mirror(table: Table) -> None:
    for trigger in (MIRROR, EMPTYING):
        table.database.rows(f"DROP TRIGGER IF EXISTS {table.database.quoted(trigger)} ON {table.messages}")
    table.database.rows(f"DROP FUNCTION IF EXISTS {table.name(MIRROR)}()")


def drop_old(table: Table) -> None:
    """Drop the old table, and with it the record of the conversion."""
    table.database.rows(f"DROP TABLE {table.name(OLD)}")
    table.database.rows(f"DROP TABLE {table.name(tables.STATE)}")


def drop_new(table: Table) -> None:
    """Drop the new table and everything else that the conversion has made."""
    database = table.database
    lock_referenced(table, "ACCESS EXCLUSIVE")
    database.rows(f"LOCK TABLE {table.messages} IN ACCESS EXCLUSIVE MODE")
    _drop_mirror(table)
    database.rows(f"DROP TABLE {table.name(NEW)}")
    database.rows(f"DROP TABLE {table.name(tables.STATE)}")
