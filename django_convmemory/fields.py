"""Fields whose values are compared and returned exactly as they were stored."""

from __future__ import annotations

import json
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from django_convmemory.messages import dumps


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """A text that is equal only to exactly the same text.

    By MariaDB's usual collations ``abc``, ``ABC``, ``äbc`` and ``abc `` are equal.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters


class ExactJSONField(models.TextField):  # type: ignore[type-arg]
    """A JSON value in a text column.

    With Django's JSONField, PostgreSQL reorders keys and rewrites numbers: 1e300 comes back as an integer. MariaDB
    refuses more than 32 levels of nesting. A stored message has to come back exactly as it was.
    """

    def from_db_value(self, value: str | None, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        return None if value is None else json.loads(value)

    def to_python(self, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else dumps(value)

    def value_to_string(self, obj: models.Model) -> str:
        return dumps(self.value_from_object(obj))
