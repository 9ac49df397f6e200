"""A conversion from beginning to end. It can be interrupted at any time, and a second call continues it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

from django.db import Error

from django_convmemory.contrib.partitions import building, copying, state, swapping, table as tables
from django_convmemory.contrib.partitions.building import Altered
from django_convmemory.contrib.partitions.copying import Overtaken, Rewritten
from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.contrib.partitions.state import EMPTYING, MIRROR, NEW, OLD, State
from django_convmemory.contrib.partitions.table import MESSAGES, Table
from django_convmemory.store import database as store_database, transactions

# In versions of PostgreSQL: the first one that finds rows by a range of pages.
_LEAST_VERSION = 140_000
# PostgreSQL: what a step changes is not there, or what it creates is there already.
_OVERTAKEN = frozenset({"42P01", "42P07", "42710", "42723", "23505"})
_WAY_BACK = "docs/howto/partitions.md says how the partitions become one table again."


class Refused(Exception):
    """The table cannot be converted. The message says why, and what to do."""


def table_of(database: PatientDatabase) -> Table:
    """Return the table of messages. Raises :class:`Refused` if there is none."""
    table = tables.read(database)
    if table is None:
        raise Refused(f"There is no table {MESSAGES}. Run migrate first.")
    return table


def check(table: Table) -> None:
    """Raise :class:`Refused` if the table is partitioned already, or if a conversion would lose something."""
    if table.is_partitioned:
        raise Refused(f"The table {table.messages} is partitioned already.")
    if table.database.value("SELECT current_setting('server_version_num')::int") < _LEAST_VERSION:
        raise Refused("PostgreSQL is too old. A conversion needs version 14 or newer.")
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


def convert(database: PatientDatabase, partitions: int, report: Callable[[str], None]) -> None:
    """Partition the table of messages, or continue to. ``report`` is called with a sentence about each step.

    Raises :class:`Refused`.
    """
    with _refusing_if_overtaken():
        _convert(database, partitions, report)


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


def _convert(database: PatientDatabase, partitions: int, report: Callable[[str], None]) -> None:
    def wait() -> None:
        report(_waiting(table))

    before = state.read(database)
    table = table_of(database)
    if before is None:
        check(table)
        database.give_way(lambda: building.build(table, partitions), wait)
        report(f"Created a table with {partitions} partitions.")
    elif before.partitions != partitions:
        raise Refused(
            f"A conversion to {before.partitions} partitions has begun. Continue it with --partitions "
            f"{before.partitions}, or end it with --abort."
        )
    try:
        if before is None or not before.swapped:
            _until_swap(table, before or State(partitions, 0, 0, None, swapped=False), report, wait)
    except Overtaken:
        raise Refused(
            "Another process has ended this conversion, and begun another one. Let that one finish. If it was "
            "interrupted, run it again."
        ) from None
    except (Altered, Rewritten) as error:
        why = str(error) or "it was rewritten, for example by VACUUM FULL"
        raise Refused(
            f"The table {table.messages} has changed during the conversion: {why}. End the conversion with --abort, "
            "and begin again."
        ) from error
    store_database.forget_partitions()
    database.give_way(lambda: swapping.drop_old(table), wait)
    report(f"Dropped the old table. {table.messages} has {partitions} partitions.")


def _until_swap(table: Table, begun: State, report: Callable[[str], None], wait: Callable[[], None]) -> None:
    database = table.database
    building.compare_columns(table, tables.get(database, table.name(NEW)))
    if begun.pages is None:
        database.give_way(lambda: copying.mirror(table), wait)
        report("Every change is now written to both tables.")
    for done, pages in copying.copy(table, wait):
        report(f"Copied {done} of {pages} pages.")
    for name in building.partition_names(begun.partitions):
        database.give_way(functools.partial(swapping.add_keys, table, name), wait)
        database.give_way(functools.partial(swapping.validate_keys, table, name), wait)
    database.give_way(lambda: swapping.add_keys_of_table(table), wait)
    report("Checked the foreign keys.")
    swapping.analyze(table)
    different = swapping.differences(table)
    if different is not None:
        raise Refused(f"The copy is not right: {different}. End the conversion with --abort, and report this.")
    report("Compared all rows of both tables: they are equal.")
    database.give_way(lambda: _swap(table), wait)
    report(f"Swapped the tables. {table.messages} is partitioned.")


def _swap(table: Table) -> None:
    swapping.lock(table)
    # A view or a trigger may have been created since the conversion began.
    _refuse_obstacles(table)
    swapping.swap(table)


def abort(database: PatientDatabase, report: Callable[[str], None]) -> None:
    """Remove everything that an unfinished conversion has made. Raises :class:`Refused`."""
    begun, table = state.read(database), table_of(database)
    if begun is None:
        raise Refused("No conversion has begun." + (f" {_WAY_BACK}" if table.is_partitioned else ""))
    if begun.swapped:
        raise Refused(
            f"The table {table.messages} is partitioned already. Only the old one, {OLD}, has to be dropped: run the "
            f"command again without --abort. {_WAY_BACK}"
        )
    with _refusing_if_overtaken():
        database.give_way(lambda: swapping.abort(table), lambda: report(_waiting(table)))
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
    begun = state.read(database)
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
    first = building.partition_names(partitions)[0]
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
