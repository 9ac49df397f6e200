"""Columns whose values come back as they went in, and are found as they are."""

from __future__ import annotations

import json
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from django_convmemory.messages import dumps


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """A text that equals itself alone: MariaDB's usual collations find ``abc``, ``ABC``, ``äbc`` and ``abc `` alike."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters


class ExactJSONField(models.TextField):  # type: ignore[type-arg]
    """A JSON value in a text column.

    Django's JSONField lets the database normalize: PostgreSQL reorders keys and rewrites numbers (1e300 comes back as
    an integer), MariaDB refuses what is nested deeper than 32 levels. A stored message has to come back as it was.
    """

    def from_db_value(self, value: str | None, expression: Any, connection: BaseDatabaseWrapper) -> Any:
        return None if value is None else json.loads(value)

    def to_python(self, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else dumps(value)

    def value_to_string(self, obj: models.Model) -> str:
        return dumps(self.value_from_object(obj))
