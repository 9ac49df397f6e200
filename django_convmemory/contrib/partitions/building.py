"""The partitioned table beside the old one: empty, with everything that the old one has except its foreign keys."""

from __future__ import annotations

from django_convmemory.contrib.partitions import state, table as tables
from django_convmemory.contrib.partitions.state import NEW
from django_convmemory.contrib.partitions.table import BY, MESSAGES, Grant, Table


def partition_names(partitions: int) -> list[str]:
    """Return the names of the partitions: ``convmemory_message_p00`` and so on."""
    digits = len(str(partitions - 1))
    return [f"{MESSAGES}_p{number:0{digits}}" for number in range(partitions)]


def build(table: Table, partitions: int) -> None:
    """Create the partitioned table and the record of the conversion."""
    database, new = table.database, table.name(NEW)
    database.rows(f"CREATE TABLE {new} (LIKE {table.messages} INCLUDING ALL) PARTITION BY HASH ({BY})")
    for column in table.columns:
        if column.statistics is not None:
            name = database.quoted(column.name)
            database.rows(f"ALTER TABLE {new} ALTER COLUMN {name} SET STATISTICS {column.statistics}")
    if table.comment is not None:
        # This statement takes no parameters.
        database.rows(f"COMMENT ON TABLE {new} IS {database.value('SELECT quote_literal(%s)', [table.comment])}")
    storage = f" WITH ({', '.join(table.options)})" if table.options else ""
    storage += f" TABLESPACE {table.tablespace}" if table.tablespace else ""
    names = partition_names(partitions)
    for number, name in enumerate(names):
        database.rows(
            f"CREATE TABLE {table.name(name)} PARTITION OF {new} "
            f"FOR VALUES WITH (MODULUS {partitions}, REMAINDER {number}){storage}"
        )
    # Default privileges may have given the new tables to roles that may not read the old one.
    unwanted = sorted({grant.to for grant in tables.get(database, new).grants})
    # The partitions too: pg_dump and monitoring read them by their names.
    for name in (NEW, *names):
        if unwanted:
            database.rows(f"REVOKE ALL ON {table.name(name)} FROM {', '.join(unwanted)}")
        for grant in table.grants:
            database.rows(_grant(table, name, grant))
        database.rows(f"ALTER TABLE {table.name(name)} OWNER TO {table.owner}")
    state.begin(table, partitions)


def _grant(table: Table, name: str, grant: Grant) -> str:
    columns = f" ({table.database.quoted(grant.column)})" if grant.column else ""
    option = " WITH GRANT OPTION" if grant.with_option else ""
    return f"GRANT {grant.privilege}{columns} ON {table.name(name)} TO {grant.to}{option}"


class Altered(Exception):
    """The old table was altered after the new one was built. The message says how."""


def compare_columns(old: Table, new: Table) -> None:
    """Raise :class:`Altered` if the tables have different columns."""
    if old.columns != new.columns:
        raise Altered("its columns were altered")


def compare(old: Table, new: Table) -> None:
    """Raise :class:`Altered` if the tables differ in anything but their indexes."""
    compare_columns(old, new)
    if old.grants != new.grants or old.owner != new.owner:
        raise Altered("its owner or the privileges on it were changed")
    if old.foreign_keys != new.foreign_keys:
        raise Altered("its foreign keys were altered")


def index_names(old: Table, new: Table) -> list[tuple[str, str]]:
    """Return for each index of the old table its name, and the name of the same index of the new one.

    Raises :class:`Altered` if an index was created or dropped since the new table was built.
    """
    unused = tables.indexes(new)
    pairs = []
    for index in tables.indexes(old):
        same = next((other for other in unused if other.kind == index.kind), None)
        if same is None:
            raise Altered(f"the index {index.name} was created or changed")
        unused.remove(same)
        pairs.append((index.name, same.name))
    if unused:
        raise Altered("an index was dropped")
    return pairs
