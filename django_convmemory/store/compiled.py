"""Statements of the ORM that are compiled once: those that each fold runs.

The ORM builds and compiles a query each time it runs. In a worker, this takes several times as long as waiting for the
database. So these statements are compiled at their first use, with a :class:`Slot` in the place of each value that
differs from one run to the next. The text is still the ORM's, so the columns are those of the models.

A function that returns such a statement is decorated with :data:`once`. Its arguments are what the text depends on: the
database, the limits of a memory, and which conditions there are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connections, models
from django.db.models import Expression, QuerySet
from django.db.models.sql import UpdateQuery

# A bound, for sites that make memories with ever new limits. A statement that was dropped is compiled again.
once = functools.lru_cache(maxsize=500)


class Slot(Expression):
    """The place of the value ``name`` in a statement. ``slot + 5`` is the place of a value that is 5 more.

    The value is passed to the driver as it is, so it is a text, a number, or None.
    """

    def __init__(self, name: str, more: int = 0) -> None:
        super().__init__()
        self.name = name
        self.more = more

    def __add__(self, number: int) -> Slot:  # type: ignore[override]
        # Added here, because PostgreSQL would add small numbers as integers of two bytes.
        return Slot(self.name, self.more + number)

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        return "%s", (self,)

    def value_of(self, values: dict[str, Any]) -> Any:
        value = values[self.name]
        return value + self.more if self.more else value


# The text of a statement, and its parameters.
Bound = tuple[str, list[Any]]


def run(using: str, bound: Bound) -> int:
    """Run a statement, and return how many rows it changed."""
    with connections[using].cursor() as cursor:
        cursor.execute(*bound)
        return int(cursor.rowcount)


def run_all(using: str, first: Bound, others: Iterable[Bound], rows: Iterable[models.Model]) -> bool:
    """Run ``first``. If it changes a row, run the ``others`` and insert ``rows``. Return whether it did."""
    if not run(using, first):
        return False
    for bound in others:
        run(using, bound)
    for row in rows:
        insert(using, row)
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledStatement:
    """The text of a statement for the database ``using``, and its parameters, some of which are slots."""

    using: str
    text: str
    params: Sequence[Any]

    def bind(self, **values: Any) -> Bound:
        """Return the text, and the parameters with ``values`` in the slots."""
        return self.text, [param.value_of(values) if isinstance(param, Slot) else param for param in self.params]

    def run(self, **values: Any) -> int:
        """Run the statement with ``values`` in the slots, and return how many rows it changed."""
        return run(self.using, self.bind(**values))


@dataclasses.dataclass(frozen=True, slots=True)
class Selection(CompiledStatement):
    """A statement that reads rows."""

    rows: QuerySet[Any]
    columns: Sequence[Any]

    def read(self, **values: Any) -> list[Sequence[Any]]:
        """Return the rows with ``values`` in the slots."""
        with connections[self.using].cursor() as cursor:
            cursor.execute(*self.bind(**values))
            found: Iterable[Sequence[Any]] = cursor.fetchall()
        # A compiler of this thread's connection turns the values of the driver into those of the fields.
        compiler: Any = self.rows.query.get_compiler(self.using)
        if converters := compiler.get_converters(self.columns):
            found = compiler.apply_converters(found, converters)
        return list(found)


def selection(rows: QuerySet[Any], *names: Any, lock: bool = False) -> Selection:
    """Return the statement that reads the columns ``names`` of ``rows``, and locks the rows with ``lock``."""
    rows = (rows.select_for_update() if lock else rows).values_list(*names)
    compiler: Any = rows.query.get_compiler(rows.db)
    text, params = compiler.as_sql()
    columns = [column for column, *_ in compiler.select[: compiler.col_count]]
    return Selection(rows.db, text, params, rows, columns)


def update(rows: QuerySet[Any], **changes: Any) -> CompiledStatement:
    """Return the statement that changes ``rows``."""
    query: Any = rows.query.chain(UpdateQuery)
    query.add_update_values(changes)
    text, params = query.get_compiler(rows.db).as_sql()
    return CompiledStatement(rows.db, text, params)


def insert(using: str, row: models.Model) -> None:
    """Insert a row that nobody needs the id of. ``save`` would compile the statement each time."""
    connection = connections[using]
    start, fields = _insertion(using, type(row))
    places, params = [], []
    for field in fields:
        value = getattr(row, field.attname)
        if hasattr(value, "as_sql"):
            place, more = value.as_sql(None, connection)
            places.append(place)
            params += more
        else:
            places.append("%s")
            params.append(field.get_db_prep_save(value, connection))
    run(using, (f"{start} VALUES ({', '.join(places)})", params))


@once
def _insertion(using: str, model: type[models.Model]) -> tuple[str, list[Any]]:
    """Return the beginning of an INSERT, and its columns."""
    quoted = connections[using].ops.quote_name
    fields: list[Any] = [field for field in model._meta.concrete_fields if not field.primary_key]
    return f"INSERT INTO {quoted(model._meta.db_table)} ({', '.join(quoted(field.column) for field in fields)})", fields
