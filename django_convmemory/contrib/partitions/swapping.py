"""The end of a conversion: foreign keys, the comparison of both tables, and the swap of their names. Or its abort."""

from __future__ import annotations

from django.db import transaction

from django_convmemory.contrib.partitions import building, state, table as tables
from django_convmemory.contrib.partitions.state import EMPTYING, MIRROR, NEW, OLD
from django_convmemory.contrib.partitions.table import MESSAGES, ForeignKey, Table

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


def add_keys(table: Table, name: str) -> None:
    """Give the partition ``name`` the keys that it lacks: for new rows only, not validated yet."""
    lock_referenced(table, "SHARE ROW EXCLUSIVE")
    for key in _missing(table, name):
        constraint = table.database.quoted(key.name)
        table.database.rows(f"ALTER TABLE {table.name(name)} ADD CONSTRAINT {constraint} {key.definition} NOT VALID")


def validate_keys(table: Table, name: str) -> None:
    """Check the rows that a partition has had before its keys. This lets others write."""
    for key in table.foreign_keys:
        # It does nothing if the key is valid.
        table.database.rows(f"ALTER TABLE {table.name(name)} VALIDATE CONSTRAINT {table.database.quoted(key.name)}")


def add_keys_of_table(table: Table) -> None:
    """Give the whole new table its foreign keys, made of those of the partitions."""
    lock_referenced(table, "SHARE ROW EXCLUSIVE")
    for key in _missing(table, NEW):
        constraint = table.database.quoted(key.name)
        table.database.rows(f"ALTER TABLE {table.name(NEW)} ADD CONSTRAINT {constraint} {key.definition}")


def _missing(table: Table, name: str) -> list[ForeignKey]:
    existing = {key.name for key in tables.get(table.database, table.name(name)).foreign_keys}
    return [key for key in table.foreign_keys if key.name not in existing]


def differences(table: Table) -> str | None:
    """Compare both tables as they are at one moment. Return what is different, or None.

    A change and its mirrored one commit together, so the tables are equal at every moment.
    """
    database = table.database
    with transaction.atomic(using=database.using):
        database.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        database.take_time()
        (old_rows, old_hash), (new_rows, new_hash) = (
            database.rows(f"SELECT count(*), sum(hashtextextended(ROW({table.listed})::text, 0)::numeric) FROM {name}")[
                0
            ]
            for name in (table.messages, table.name(NEW))
        )
    if old_rows != new_rows:
        return f"{table.messages} has {old_rows} rows, but its copy has {new_rows}"
    return None if old_hash == new_hash else f"the rows of {table.messages} and of its copy differ"


def lock(table: Table) -> None:
    """Keep everybody else from both tables until the transaction ends, as :func:`swap` needs it."""
    # Dropping the old table's foreign key needs this lock. Sessions first, as in an append.
    lock_referenced(table, "ACCESS EXCLUSIVE")
    table.database.rows(f"LOCK TABLE {table.messages}, {table.name(NEW)} IN ACCESS EXCLUSIVE MODE")


def swap(table: Table) -> None:
    """Give the new table the name of the old one, with the names of its indexes, and end the mirroring."""
    database = table.database
    old, new = tables.get(database, table.messages), tables.get(database, table.name(NEW))
    building.compare(old, new)
    pairs = building.index_names(old, new)
    for key in table.foreign_keys:
        database.rows(f"ALTER TABLE {table.messages} DROP CONSTRAINT {database.quoted(key.name)}")
    _drop_mirror(table)
    for number, (name, new_name) in enumerate(pairs):
        database.rows(f"ALTER INDEX {table.name(name)} RENAME TO {database.quoted(f'{OLD}_{number}')}")
        database.rows(f"ALTER INDEX {table.name(new_name)} RENAME TO {database.quoted(name)}")
    database.rows(f"ALTER TABLE {table.messages} RENAME TO {database.quoted(OLD)}")
    database.rows(f"ALTER TABLE {table.name(NEW)} RENAME TO {database.quoted(MESSAGES)}")
    state.write(table, swapped=True)


def _drop_mirror(table: Table) -> None:
    for trigger in (MIRROR, EMPTYING):
        table.database.rows(f"DROP TRIGGER IF EXISTS {table.database.quoted(trigger)} ON {table.messages}")
    table.database.rows(f"DROP FUNCTION IF EXISTS {table.name(MIRROR)}()")


def drop_old(table: Table) -> None:
    """Drop the old table, and with it the record of the conversion."""
    table.database.rows(f"DROP TABLE {table.name(OLD)}")
    state.end(table)


def abort(table: Table) -> None:
    """Drop the new table and everything else that the conversion has made."""
    database = table.database
    lock_referenced(table, "ACCESS EXCLUSIVE")
    database.rows(f"LOCK TABLE {table.messages} IN ACCESS EXCLUSIVE MODE")
    _drop_mirror(table)
    database.rows(f"DROP TABLE {table.name(NEW)}")
    state.end(table)


def analyze(table: Table) -> None:
    """Collect statistics of the new table for the planner, before anybody reads it."""
    with transaction.atomic(using=table.database.using):
        table.database.take_time()
        table.database.rows(f"ANALYZE {table.name(NEW)}")
