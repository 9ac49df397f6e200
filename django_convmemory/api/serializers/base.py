"""What the serializers share.

Input with an unknown field is refused. Otherwise a misspelt field would be ignored without a word.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import router
from django.db.models import DateTimeField
from rest_framework import ISO_8601, serializers

from django_convmemory import clock, models
from django_convmemory.api.fields import PageSize

# How many unknown fields an error names.
_MAX_NAMED = 5


class StrictSerializer(serializers.Serializer[Any]):
    """Input that refuses unknown fields."""

    default_error_messages = {"unknown_field": "This field does not exist. Allowed fields: {fields}."}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and not data.keys() <= self.fields.keys():
            known = ", ".join(name for name, field in self.fields.items() if not field.read_only) or "none"
            error = self.error_messages["unknown_field"].format(fields=known)
            unknown = sorted(data.keys() - self.fields.keys())[:_MAX_NAMED]
            raise serializers.ValidationError(
                {name: [serializers.ErrorDetail(error, "unknown_field")] for name in unknown}
            )
        return super().to_internal_value(data)

    def get_initial(self) -> Any:
        """Return what the browsable API proposes: the fields that are required. An empty optional one is refused."""
        return {name: field.get_initial() for name, field in self.fields.items() if field.required}


class UTCTime(serializers.DateTimeField):
    """A time with a zone, in UTC, whatever time zone and format the site uses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"format": ISO_8601, "default_timezone": dt.UTC, **options})


class Time(UTCTime):
    """The time of a row, which has no zone if the site uses none."""

    def get_attribute(self, instance: Any) -> Any:
        moment = super().get_attribute(instance)
        return moment and clock.aware(moment, instance._state.db)


class RowSerializer(serializers.ModelSerializer[Any]):
    """A row of the database, as the API shows it."""

    serializer_field_mapping = {**serializers.ModelSerializer.serializer_field_mapping, DateTimeField: Time}


_ZONED = re.compile(r"[-\d]+[Tt ][\d:.]+(?:[Zz]|[-+]\d\d:\d\d)", re.ASCII)


class Moment(serializers.DateTimeField):
    """A time with a time zone (RFC 3339)."""

    def __init__(self, **options: Any) -> None:
        # In UTC, because converting the first or the last possible hour to the site's zone would overflow.
        super().__init__(**{"input_formats": [ISO_8601], "default_timezone": dt.UTC, **options})

    def to_internal_value(self, value: Any) -> Any:
        if not isinstance(value, str) or not _ZONED.fullmatch(value):
            self.fail("invalid", format='RFC 3339 with a time zone: 2026-01-31T12:00:00Z, or +02:00 (write "+" as %2B)')
        moment = super().to_internal_value(value)
        try:
            return moment if settings.USE_TZ else clock.naive(moment, router.db_for_write(models.Session))
        except OverflowError:  # The site's own zone has no such time.
            self.fail("overflow")


class PageQuery(StrictSerializer):
    """The parameters of every list."""

    cursor = serializers.CharField(
        required=False,
        allow_blank=True,
        help_text="The start of the page. Take it from the `next` or `previous` address of another page.",
    )
    limit = PageSize(required=False)


class Nothing(StrictSerializer):
    """An empty body: the action takes no fields."""
