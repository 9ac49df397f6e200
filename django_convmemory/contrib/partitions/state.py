"""How far a conversion has come. It is a row in a table that exists as long as the conversion does."""

from __future__ import annotations

from typing import NamedTuple

from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.contrib.partitions.table import MESSAGES, Table

STATE = f"{MESSAGES}_conversion"
# The partitioned table until the swap, and the old table after it.
NEW, OLD = f"{MESSAGES}_new", f"{MESSAGES}_old"
# The function, and the triggers that call it.
MIRROR = f"{MESSAGES}_mirror"
EMPTYING = f"{MESSAGES}_mirror_truncate"


class State(NamedTuple):
    """A conversion that has begun.

    The pages are those of the old table's file ``filenode``. ``pages`` is None until changes are mirrored.
    """

    partitions: int
    filenode: int
    next_page: int
    pages: int | None
    swapped: bool

    @property
    def copied(self) -> bool:
        return self.pages is not None and self.next_page >= self.pages


def read(database: PatientDatabase) -> State | None:
    """Return how far the conversion has come, or None if there is none."""
    # In the schema of the messages: another schema in the search path may have its own messages and conversion.
    name = database.value(
        "SELECT to_regclass(format('%%I.%%I', n.nspname, %s::text))::text FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        [STATE, MESSAGES],
    )
    if name is None:
        return None
    return State(*database.rows(f"SELECT {', '.join(State._fields)} FROM {name}")[0])


def begin(table: Table, partitions: int) -> None:
    """Create the row."""
    name = table.name(STATE)
    table.database.rows(
        f"CREATE TABLE {name} (partitions int NOT NULL, filenode bigint NOT NULL, next_page bigint NOT NULL, "
        "pages bigint, swapped boolean NOT NULL)"
    )
    table.database.rows(
        f"INSERT INTO {name} VALUES (%s, pg_relation_filenode(%s), 0, NULL, false)", [partitions, table.oid]
    )
    # Another role that may convert the table has to be able to continue.
    table.database.rows(f"ALTER TABLE {name} OWNER TO {table.owner}")


def write(table: Table, **changes: int | bool) -> None:
    """Change the row."""
    assignments = ", ".join(f"{column} = %s" for column in changes)
    table.database.rows(f"UPDATE {table.name(STATE)} SET {assignments}", list(changes.values()))


def end(table: Table) -> None:
    """Drop the row with its table."""
    table.database.rows(f"DROP TABLE {table.name(STATE)}")
