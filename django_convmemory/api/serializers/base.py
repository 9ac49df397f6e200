"""The fields and serializers that the others are made of. They accept what the schema says and nothing else.

DRF's fields convert their input, because they serve HTML forms too. A CharField accepts the number 7, an IntegerField
the strings "1" and "1.0", and a BooleanField the string "yes". A serializer ignores a misspelt field without a word.
The schema promises to refuse all of these.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import router
from rest_framework import ISO_8601, serializers

from django_convmemory import clock, models
from django_convmemory.api import conf
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import dumps, freeze

# The largest integer that JSON and every database represent exactly.
MAX_INTEGER = 2**53 - 1
# Levels of objects and lists.
_MAX_METADATA_DEPTH = 8
# How many unknown fields an error names.
_MAX_NAMED = 5


class Text(serializers.CharField):
    """A string as it is. A number is not a string, and blanks at its ends stay."""

    def __init__(self, **options: Any) -> None:
        # Refuses "" as allow_blank=False does, and appears in the schema.
        minimum = {} if options.get("allow_blank") else {"min_length": 1}
        super().__init__(**{"trim_whitespace": False, **minimum, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        text = super().to_internal_value(data)
        self.check(text)
        return text

    def check(self, text: str) -> None:
        """Fail for a text that a subclass does not accept."""


class Alias(Text):
    """The alias of a memory that the API may reach."""

    default_error_messages = {"unknown_alias": "There is no memory with this alias. Known aliases: {known}."}

    def check(self, text: str) -> None:
        known = conf.aliases()
        if text not in known:
            self.fail("unknown_alias", known=", ".join(known) or "none")


def first_alias() -> str:
    """Return the default of an :class:`Alias`. It is checked too, because the API may reach no memory at all."""
    return Alias().to_internal_value(conf.first_alias())


class Choice(serializers.ChoiceField):
    """One of several strings. The error lists them, and repeats at most 100 characters of the input."""

    default_error_messages = {"invalid_choice": '"{input}" is not a valid value. Use one of these: {choices}.'}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or data not in self.choices:
            self.fail("invalid_choice", input=str(data)[:100], choices=", ".join(map(str, self.choices)))
        return data


class WholeNumber(serializers.IntegerField):
    """An integer of at least 0. In JSON it is a number, not a string."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": MAX_INTEGER, **options})

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, (bool, str)) or not isinstance(data, (int, float)) or data != data // 1:
            self.fail("invalid")
        return int(data)


class MessageId(serializers.UUIDField):
    """The id of a message, as a string."""

    def to_internal_value(self, data: Any) -> uuid.UUID:
        if not isinstance(data, str):  # DRF's own takes numbers too.
            self.fail("invalid", value=data)
        return super().to_internal_value(data)


class QueryNumber(WholeNumber):
    """An integer in the query string, in ASCII digits."""

    def to_internal_value(self, data: Any) -> int:
        if not re.fullmatch(r"-?[0-9]{1,400}", data):
            self.fail("invalid")
        return super().to_internal_value(int(data))


class PageSize(WholeNumber):
    """The number of entries of a page, from 1 to ``MAX_PAGE_SIZE``. DRF's own paginator ignores a wrong one."""

    default_error_messages = {"out_of_range": "The limit must be a whole number from 1 to {maximum}."}

    def to_internal_value(self, data: Any) -> int:
        maximum = conf.limits().max_page_size
        if not re.fullmatch(r"[0-9]{1,9}", data) or not 1 <= int(data) <= maximum:
            self.fail("out_of_range", maximum=maximum)
        return int(data)


class Flag(serializers.BooleanField):
    """True or false."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class JSONObject(serializers.JSONField):
    """A JSON object, as a response has it."""


class Metadata(JSONObject):
    """A JSON object of the site's own, limited in size and depth."""

    default_error_messages = {
        "not_an_object": "The value must be a JSON object.",
        "too_large": "The value has {size} bytes; the limit is {limit}. Store a reference to large data instead.",
        "too_deep": "The value is nested deeper than {limit} levels. Use fewer levels.",
        "unstorable": "The value cannot be stored: it contains a NUL, half a surrogate pair, NaN or Infinity.",
    }

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            self.fail("not_an_object")
        if _is_deeper(data, _MAX_METADATA_DEPTH):
            self.fail("too_deep", limit=_MAX_METADATA_DEPTH)
        try:
            size = len(dumps(freeze(data, "metadata")).encode())
        except InvalidMessage:
            self.fail("unstorable")
        if size > (limit := conf.limits().max_metadata_bytes):
            self.fail("too_large", size=size, limit=limit)
        return dict(data)


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether objects and lists are nested in ``value`` more than ``levels`` deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, list) and (levels == 0 or any(_is_deeper(item, levels - 1) for item in value))


class UTCTime(serializers.DateTimeField):
    """A time with a zone, in UTC, whatever time zone and format the site uses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"format": ISO_8601, "default_timezone": dt.UTC, **options})


class Time(UTCTime):
    """The time of a row, which has no zone if the site uses none."""

    def get_attribute(self, instance: Any) -> Any:
        moment = super().get_attribute(instance)
        return moment and clock.aware(moment, instance._state.db)


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


class StrictSerializer(serializers.Serializer[Any]):
    """Input that refuses unknown fields."""

    default_error_messages = {"unknown_field": "This field does not exist. Allowed fields: {fields}."}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, Mapping) and not data.keys() <= self.fields.keys():
            known = ", ".join(name for name, field in self.fields.items() if not field.read_only) or "none"
            error = self.error_messages["unknown_field"].format(fields=known)
            unknown = sorted(data.keys() - self.fields.keys())[:_MAX_NAMED]
            raise serializers.ValidationError({name: [error] for name in unknown}, "unknown_field")
        return super().to_internal_value(data)

    def get_initial(self) -> Any:
        """Return what the browsable API proposes: the fields that are required. An empty optional one is refused."""
        return {name: field.get_initial() for name, field in self.fields.items() if field.required}


class IsSet(serializers.BooleanField):
    """Whether a column has a value."""

    def get_attribute(self, instance: Any) -> bool:
        return super().get_attribute(instance) is not None


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
