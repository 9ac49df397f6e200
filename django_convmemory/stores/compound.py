"""Several changes as one statement of PostgreSQL, which commits by itself.

The statements come from the ORM's own compilers, so the columns are those of the models. They return numbers and ids,
never texts: PostgreSQL would keep its locks while it waits for a stopped client to read a long answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections, models
from django.db.models import QuerySet

from django_convmemory.stores import compiled
from django_convmemory.stores.compiled import Bound


def execute(using: str, first: Bound, updates: Sequence[Bound], rows: Sequence[models.Model]) -> bool:
    """Run ``first``, which changes one row. If there is such a row, run ``updates`` and insert ``rows``.

    Returns whether there was such a row.
    """
    text, params = first
    parts, all_params = [f"changed AS ({text} RETURNING 1)"], list(params)
    for number, (text, params) in enumerate(updates):
        parts.append(f"updated{number} AS ({text} AND EXISTS (SELECT 1 FROM changed))")
        all_params += params
    for number, row in enumerate(rows):
        text, params = _insert(using, row)
        parts.append(f"inserted{number} AS ({text} FROM changed)")
        all_params += params
    with connections[using].cursor() as cursor:
        cursor.execute(f"WITH {', '.join(parts)} SELECT COUNT(*) FROM changed", all_params)
        return bool(cursor.fetchone()[0])


def mark(rows: QuerySet[Any], order: Sequence[str], limit: int, changes: dict[str, Any]) -> list[int]:
    """Change the first ``limit`` of ``rows`` by ``order``, and return their ids. Rows that are locked are left out.

    The last name of ``order`` is ``pk``.
    """
    table = rows.model._meta.db_table
    picked, picked_params = rows.order_by(*order).values_list(*order)[:limit].query.get_compiler(rows.db).as_sql()
    # The compiler refuses FOR UPDATE outside of a transaction. This statement is one by itself.
    update, update_params = compiled.update(
        rows.model._default_manager.using(rows.db).filter(pk__gt=0), **changes
    ).bind()
    # The subquery reads a qualified name. An unqualified name that ``picked`` does not have would be the outer row's,
    # and every row would be changed.
    names = [f"picked{number}" for number in range(len(order))]
    text = (
        f"WITH picked ({', '.join(names)}) AS MATERIALIZED ({picked} FOR UPDATE SKIP LOCKED), "
        f"marked AS ({update} AND {table}.id IN (SELECT picked.{names[-1]} FROM picked)) "
        f"SELECT * FROM picked ORDER BY {', '.join(names)}"
    )
    with connections[rows.db].cursor() as cursor:
        cursor.execute(text, [*picked_params, *update_params])
        return [row[-1] for row in cursor.fetchall()]


def _insert(using: str, row: models.Model) -> tuple[str, list[Any]]:
    """Return the INSERT of ``row`` without its id, up to the FROM."""
    connection = connections[using]
    start, columns = _columns(using, type(row))
    values, params = [], []
    for field, place in columns:
        value = getattr(row, field.attname)
        if hasattr(value, "as_sql"):
            text, value_params = value.as_sql(None, connection)
            values.append(text)
            params += value_params
        elif (value := field.get_db_prep_save(value, connection)) is None:
            values.append("NULL")  # Not a parameter: psycopg parses a text again if it has more than 50 of them.
        else:
            values.append(place)
            params.append(value)
    return f"{start} SELECT {', '.join(values)}", params


@compiled.once
def _columns(using: str, model: type[models.Model]) -> tuple[str, list[tuple[Any, str]]]:
    """Return the beginning of an INSERT, and for each column its field and the place of a value."""
    connection = connections[using]
    fields: list[Any] = [field for field in model._meta.concrete_fields if not field.primary_key]
    types = [field.rel_db_type(connection) if field.is_relation else field.db_type(connection) for field in fields]
    names = ", ".join(connection.ops.quote_name(field.column) for field in fields)
    start = f"INSERT INTO {connection.ops.quote_name(model._meta.db_table)} ({names})"
    return start, [(field, f"CAST(%s AS {kind})") for field, kind in zip(fields, types, strict=True)]
