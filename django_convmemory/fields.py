"""JSON kept as text, so that what comes back is what went in."""

from __future__ import annotations

import json
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from django_convmemory.messages import dumps


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
