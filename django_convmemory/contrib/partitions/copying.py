"""Copying the rows, while a trigger writes every change to both tables.

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

import functools
import time
from collections.abc import Callable, Iterator

from django_convmemory.contrib.partitions import building, state, table as tables
from django_convmemory.contrib.partitions.state import EMPTYING, MIRROR, NEW
from django_convmemory.contrib.partitions.table import Table

# The key of the advisory lock, chosen at random.
_LOCK = 7_412_093_655_120_871
# In seconds: how long a portion should take, how often the copy looks whether the advisory lock is free, and after how
# long a wait it says so.
_PORTION_SECONDS, _LOOK_AGAIN, _LONG_WAIT = 0.1, 0.02, 5.0
# In pages.
_FIRST_PORTION, _LARGEST_PORTION = 32, 4096


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
    events = {MIRROR: "INSERT OR UPDATE OR DELETE", EMPTYING: "TRUNCATE"}
    for name, event in events.items():
        each = "STATEMENT" if name == EMPTYING else "ROW"
        database.rows(
            f"CREATE TRIGGER {database.quoted(name)} AFTER {event} ON {table.messages} "
            f"FOR EACH {each} EXECUTE FUNCTION {table.name(MIRROR)}()"
        )
        # Also for sessions with session_replication_role = replica, as tools have that load data.
        database.rows(f"ALTER TABLE {table.messages} ENABLE ALWAYS TRIGGER {database.quoted(name)}")
    # After the lock of CREATE TRIGGER: nobody alters the table, and all that is written from now on is mirrored.
    building.compare_columns(tables.get(database, table.messages), tables.get(database, table.name(NEW)))
    pages = database.value("SELECT pg_relation_size(%s) / current_setting('block_size')::int", [table.oid])
    state.write(table, pages=pages)


class Overtaken(Exception):
    """Another process has ended this conversion, and begun another one."""


class Rewritten(Exception):
    """The old table was written to another file, so its pages are not those that were copied."""


def copy(table: Table, waiting: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """Copy the rest of the rows. Yield after each portion the number of pages that are copied, and of all pages.

    Raises :class:`Rewritten` if the table was rewritten, for example by VACUUM FULL, and :class:`Overtaken`.
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
    name = table.name(state.STATE)
    # The lock keeps a second process of the command from copying the same pages.
    [(first, pages, filenode)] = database.rows(f"SELECT next_page, pages, filenode FROM {name} FOR UPDATE")
    if pages is None:
        raise Overtaken
    if database.value("SELECT pg_relation_filenode(%s)", [table.oid]) != filenode:
        raise Rewritten
    end = min(pages, first + size)
    if first < end:
        database.rows(
            f"INSERT INTO {table.name(NEW)} ({table.listed}) SELECT {table.listed} FROM {table.messages} "
            f"WHERE ctid >= %s::tid AND ctid < %s::tid ON CONFLICT (session_id, position) DO NOTHING",
            [f"({first},0)", f"({end},0)"],
        )
        state.write(table, next_page=end)
    return end, pages
