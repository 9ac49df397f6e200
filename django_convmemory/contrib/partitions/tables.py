"""The tables of a conversion.

There is the table of messages, as PostgreSQL's catalogs describe it. Beside it is the partitioned one: empty at first,
with everything that the old one has except its foreign keys. And as long as the conversion lasts, there is a table with
one row, which says how far it has come.
"""

from __future__ import annotations

from typing import NamedTuple

from django_convmemory import models
from django_convmemory.contrib.partitions.database import PatientDatabase

MESSAGES = models.Message._meta.db_table
# The column by which the table is partitioned.
BY = "session_id"
STATE = f"{MESSAGES}_conversion"
# The partitioned table until the swap, and the old table after it.
NEW, OLD = f"{MESSAGES}_new", f"{MESSAGES}_old"
# The function, and the triggers that call it.
MIRROR = f"{MESSAGES}_mirror"
EMPTYING = f"{MESSAGES}_mirror_truncate"


class TableColumn(NamedTuple):
    """A column: its name, its type, whether it may be NULL, its default, and its statistics target.

    If it is ``generated``, the database computes its values, and ``default`` is the expression.
    """

    name: str
    type: str
    not_null: bool
    default: str | None
    statistics: int | None
    generated: bool


class ForeignKey(NamedTuple):
    """A foreign key of the table. ``target`` is the table that it refers to, quoted."""

    name: str
    definition: str
    target: str


class Grant(NamedTuple):
    """A privilege on the table, or on one of its columns. ``to`` is a role, quoted, or PUBLIC."""

    privilege: str
    column: str | None
    to: str
    with_option: bool


class Table(NamedTuple):
    """What the table has. ``options`` are its storage parameters, with those of its TOAST table."""

    database: PatientDatabase
    oid: int
    schema: str
    columns: list[TableColumn]
    is_partitioned: bool
    owner: str
    options: list[str]
    tablespace: str | None
    foreign_keys: list[ForeignKey]
    grants: list[Grant]
    comment: str | None

    def name(self, name: str) -> str:
        """Return the name of another table in the same schema, quoted and qualified."""
        return self.database.quoted(self.schema, name)

    @property
    def messages(self) -> str:
        """The name of the table, quoted and qualified."""
        return self.name(MESSAGES)

    @property
    def written(self) -> list[str]:
        """The names of the columns that a statement can write, quoted: those that are not generated."""
        return [self.database.quoted(column.name) for column in self.columns if not column.generated]

    @property
    def listed(self) -> str:
        """The names of the columns that a statement can write, in a list."""
        return ", ".join(self.written)


class NoTable(LookupError):
    """There is no such table."""


class Altered(Exception):
    """The old table was altered after the new one was built. The message says how."""


def read(database: PatientDatabase, name: str) -> Table:
    """Read what the table ``name`` has. Raises :class:`NoTable`."""
    found = database.rows(
        "SELECT c.oid, n.nspname, c.relkind = 'p', quote_ident(r.rolname), c.reloptions, toast.reloptions, "
        "quote_ident(t.spcname), obj_description(c.oid, 'pg_class') "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner "
        "LEFT JOIN pg_class toast ON toast.oid = c.reltoastrelid LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace "
        "WHERE c.oid = to_regclass(%s)",
        [name],
    )
    if not found:
        raise NoTable(f"There is no table {name}.")
    [(oid, schema, is_partitioned, owner, options, toast_options, tablespace, comment)] = found
    columns = database.rows(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid), "
        "NULLIF(attstattarget, -1), attgenerated <> '' "
        "FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum "
        "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [oid],
    )
    foreign_keys = database.rows(
        "SELECT conname, pg_get_constraintdef(oid), confrelid::regclass::text FROM pg_constraint "
        "WHERE conrelid = %s AND contype = 'f' ORDER BY conname",
        [oid],
    )
    grants = database.rows(
        "SELECT acl.privilege_type, acl.attname, COALESCE(quote_ident(r.rolname), 'PUBLIC'), acl.is_grantable FROM ("
        "SELECT relowner, NULL AS attname, (aclexplode(relacl)).* FROM pg_class WHERE oid = %s UNION ALL "
        "SELECT 0, attname, (aclexplode(attacl)).* FROM pg_attribute WHERE attrelid = %s AND NOT attisdropped) acl "
        "LEFT JOIN pg_roles r ON r.oid = acl.grantee WHERE acl.grantee <> acl.relowner ORDER BY 1, 2, 3",
        [oid, oid],
    )
    return Table(
        database=database,
        oid=oid,
        schema=schema,
        columns=[TableColumn(*column) for column in columns],
        is_partitioned=is_partitioned,
        owner=owner,
        options=[*(options or ()), *(f"toast.{option}" for option in toast_options or ())],
        tablespace=tablespace,
        foreign_keys=[ForeignKey(*key) for key in foreign_keys],
        grants=[Grant(*grant) for grant in grants],
        comment=comment,
    )


class Index(NamedTuple):
    """An index: its name, and what it is, without its name and that of its table."""

    name: str
    kind: tuple[bool, bool, str]


def indexes(table: Table) -> list[Index]:
    """Return the indexes of a table."""
    rows = table.database.rows(
        "SELECT c.relname, i.indisprimary, i.indisunique, pg_get_indexdef(i.indexrelid) FROM pg_index i "
        "JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indrelid = %s ORDER BY c.relname",
        [table.oid],
    )
    return [Index(name, (primary, unique, text.partition(" USING ")[2])) for name, primary, unique, text in rows]


# Each query returns the names of things that a conversion would lose, or that would go on using the old table.
_OBSTACLES = {
    "it has the trigger {}": "SELECT tgname FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal",
    "it has the rule {}": "SELECT rulename FROM pg_rewrite WHERE ev_class = %s",
    "it has the policy {} for row security": "SELECT polname FROM pg_policy WHERE polrelid = %s",
    "row security is on": "SELECT '' FROM pg_class WHERE oid = %s AND (relrowsecurity OR relforcerowsecurity)",
    "it is in the publication {} of logical replication": (
        "SELECT p.pubname FROM pg_publication_tables p JOIN pg_class c ON c.relname = p.tablename "
        "JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = p.schemaname WHERE c.oid = %s"
    ),
    "it is in the subscription {} of logical replication": (
        "SELECT s.subname FROM pg_subscription s JOIN pg_subscription_rel r ON r.srsubid = s.oid WHERE r.srrelid = %s"
    ),
    "its replica identity is not the default": "SELECT '' FROM pg_class WHERE oid = %s AND relreplident <> 'd'",
    # A copy of the column would use the same sequence, which is dropped with the old table, or one that begins again.
    "the column {} has a sequence": (
        "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped "
        "AND pg_get_serial_sequence(attrelid::regclass::text, attname) IS NOT NULL"
    ),
    "it is unlogged or temporary": "SELECT '' FROM pg_class WHERE oid = %s AND relpersistence <> 'p'",
    "the table {} inherits from it": "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s",
    "it inherits from the table {}": "SELECT inhparent::regclass::text FROM pg_inherits WHERE inhrelid = %s",
    "the foreign key {} refers to it": "SELECT conname FROM pg_constraint WHERE confrelid = %s",
    "the view or rule of {} uses it": (
        "SELECT DISTINCT r.ev_class::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid "
        "WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s "
        "AND r.ev_class <> d.refobjid"
    ),
    "the exclusion constraint {} cannot be on a partitioned table": (
        "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype = 'x'"
    ),
    f"the unique index {{}} does not contain {BY}": (
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s AND indisunique AND NOT EXISTS ("
        "SELECT 1 FROM pg_attribute a WHERE a.attrelid = indrelid AND a.attnum = ANY(indkey) "
        f"AND a.attname = '{BY}')"
    ),
    "the index {} is not valid": (
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s AND NOT indisvalid"
    ),
    "the foreign key {} is not validated": (
        "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype = 'f' AND NOT convalidated"
    ),
    "the check constraint {} is not validated, or is NO INHERIT": (
        "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype = 'c' AND (NOT convalidated OR connoinherit)"
    ),
    # The trigger that mirrors has a search path of its own, by which such a function may not find what it calls. Then
    # each append would fail.
    "it uses the function {}, which needs a search path of its own (ALTER FUNCTION ... SET search_path)": (
        "SELECT DISTINCT p.oid::regprocedure::text FROM pg_depend d "
        "JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid "
        "JOIN pg_language l ON l.oid = p.prolang "
        "LEFT JOIN pg_index i ON d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid "
        "LEFT JOIN pg_constraint c ON d.classid = 'pg_constraint'::regclass AND c.oid = d.objid "
        "LEFT JOIN pg_attrdef a ON d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid "
        "WHERE %s IN (i.indrelid, c.conrelid, a.adrelid) AND l.lanname NOT IN ('c', 'internal') "
        "AND p.prosqlbody IS NULL AND COALESCE(array_to_string(p.proconfig, ' '), '') !~ '(^| )search_path='"
    ),
    # USAGE: a member without INHERIT could create the copy, but neither continue nor abort.
    "it belongs to the role {}, and the role of this connection does not have the privileges of that role": (
        "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s AND NOT pg_has_role(relowner, 'USAGE')"
    ),
}


def obstacles(table: Table, known_triggers: frozenset[str] = frozenset()) -> list[str]:
    """Return why the table cannot be converted, each as a clause about the table."""
    return [
        clause.format(name)
        for clause, query in _OBSTACLES.items()
        for (name,) in table.database.rows(query, [table.oid])
        if name not in known_triggers
    ]


# How far a conversion has come.


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


def read_state(database: PatientDatabase) -> State | None:
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


def write_state(table: Table, **changes: int | bool) -> None:
    """Change the row."""
    assignments = ", ".join(f"{column} = %s" for column in changes)
    table.database.rows(f"UPDATE {table.name(STATE)} SET {assignments}", list(changes.values()))


# The partitioned table.


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
    unwanted = sorted({grant.to for grant in read(database, new).grants})
    # The partitions too: pg_dump and monitoring read them by their names.
    for name in (NEW, *names):
        if unwanted:
            database.rows(f"REVOKE ALL ON {table.name(name)} FROM {', '.join(unwanted)}")
        for grant in table.grants:
            columns = f" ({database.quoted(grant.column)})" if grant.column else ""
            option = " WITH GRANT OPTION" if grant.with_option else ""
            database.rows(f"GRANT {grant.privilege}{columns} ON {table.name(name)} TO {grant.to}{option}")
        database.rows(f"ALTER TABLE {table.name(name)} OWNER TO {table.owner}")
    state = table.name(STATE)
    database.rows(
        f"CREATE TABLE {state} (partitions int NOT NULL, filenode bigint NOT NULL, next_page bigint NOT NULL, "
        "pages bigint, swapped boolean NOT NULL)"
    )
    database.rows(f"INSERT INTO {state} VALUES (%s, pg_relation_filenode(%s), 0, NULL, false)", [partitions, table.oid])
    # Another role that may convert the table has to be able to continue.
    database.rows(f"ALTER TABLE {state} OWNER TO {table.owner}")


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
    unused = indexes(new)
    pairs = []
    for index in indexes(old):
        same = next((other for other in unused if other.kind == index.kind), None)
        if same is None:
            raise Altered(f"the index {index.name} was created or changed")
        unused.remove(same)
        pairs.append((index.name, same.name))
    if unused:
        raise Altered("an index was dropped")
    return pairs
