"""Several changes as one statement of PostgreSQL, which commits by itself.

The statements come from the ORM's own compilers, so the columns are those of the models. They return numbers and ids,
never texts: PostgreSQL would keep its locks while it waits for a stopped client to read a long answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections, models
from django.db.models import QuerySet
from django.db.models.sql import UpdateQuery

# Rows, and the new values of their columns.
Update = tuple[QuerySet[Any], dict[str, Any]]


def execute(
    using: str, first: QuerySet[Any], changes: dict[str, Any], updates: Sequence[Update], rows: Sequence[models.Model]
) -> bool:
    """Change the one row of ``first``. If there is such a row, make ``updates`` and insert ``rows``.

    Returns whether there was one.
    """
    text, params = _update(first, changes)
    parts, all_params = [f"changed AS ({text} RETURNING 1)"], list(params)
    for number, (others, values) in enumerate(updates):
        text, params = _update(others, values)
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
    update, update_params = _update(rows.model._default_manager.using(rows.db).filter(pk__gt=0), changes)
    # With names of its own and a qualified one in the subquery: a name that it does not have would be the outer row's,
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


def _update(rows: QuerySet[Any], changes: dict[str, Any]) -> tuple[str, Sequence[Any]]:
    query: Any = rows.query.chain(UpdateQuery)
    query.add_update_values(changes)
    text, params = query.get_compiler(rows.db).as_sql()
    return text, params


def _insert(using: str, row: models.Model) -> tuple[str, list[Any]]:
    """Return the INSERT of ``row`` without its id, up to the FROM."""
    connection = connections[using]
    names, values, params = [], [], []
    for field in row._meta.concrete_fields:
        if field.primary_key:
            continue
        names.append(connection.ops.quote_name(str(field.column)))
        value = getattr(row, field.attname)
        if hasattr(value, "as_sql"):
            text, value_params = value.as_sql(None, connection)
            values.append(text)
            params += value_params
        else:
            values.append(
                f"CAST(%s AS {field.rel_db_type(connection) if field.is_relation else field.db_type(connection)})"
            )
            params.append(field.get_db_prep_save(value, connection))
    table = connection.ops.quote_name(row._meta.db_table)
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)}", params
