"""Fields that take what the schema says and nothing else: DRF's own read numbers from texts, and texts from numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from django_convmemory.api import conf
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.messages import dumps, freeze

# The largest whole number that every client can read.
MOST = 2**53 - 1


class Text(serializers.CharField):
    """A text as it is: a number is none, and blanks at its ends stay."""

    def __init__(self, **options: Any) -> None:
        # Said in numbers too, for the schema.
        least = {} if options.get("allow_blank") else {"min_length": 1}
        super().__init__(**{"trim_whitespace": False, **least, **options})

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class Alias(Text):
    """The alias of a memory that can be reached."""

    default_error_messages = {"unknown_alias": "There is no memory with this alias. Known aliases: {known}."}

    def to_internal_value(self, data: Any) -> str:
        alias, known = super().to_internal_value(data), conf.aliases()
        if alias not in known:
            self.fail("unknown_alias", known=", ".join(known) or "none")
        return alias


class Choice(serializers.ChoiceField):
    """One of some texts."""

    default_error_messages = {"invalid_choice": '"{input}" is not a valid value. Use one of these: {choices}.'}

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str) or data not in self.choices:
            self.fail("invalid_choice", input=str(data)[:100], choices=", ".join(map(str, self.choices)))
        return data


class Whole(serializers.IntegerField):
    """A whole number; in JSON a number, not a text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": MOST, **options})

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, (bool, str)) or not isinstance(data, (int, float)) or data != data // 1:
            self.fail("invalid")
        return int(data)


class WholeInQuery(serializers.IntegerField):
    """A whole number of the query string."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"min_value": 0, "max_value": MOST, **options})

    def to_internal_value(self, data: Any) -> int:
        if not (isinstance(data, str) and data.removeprefix("-").isascii() and data.removeprefix("-").isdigit()):
            self.fail("invalid")
        return super().to_internal_value(data)


class Flag(serializers.BooleanField):
    """True or false; in JSON those, and nothing that looks like it."""

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class Metadata(serializers.Field[Any, Any, Any, Any]):
    """A JSON object of the site's own, limited in size and depth."""

    default_error_messages = {
        "not_an_object": "The value must be a JSON object.",
        "too_large": "The value has {size} bytes; the limit is {most}. Store a reference to large data instead.",
        "too_deep": "The value is nested deeper than {most} levels. Use fewer levels.",
        "unstorable": "The value cannot be stored: it contains a NUL, half a surrogate pair, NaN or Infinity.",
    }

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, Mapping):
            self.fail("not_an_object")
        limits = conf.limits()
        if _deeper(data, limits.max_metadata_depth):
            self.fail("too_deep", most=limits.max_metadata_depth)
        try:
            # Checked as a message's is.
            size = len(dumps(freeze(data, "metadata")).encode())
        except InvalidMessage:
            self.fail("unstorable")
        if size > limits.max_metadata_bytes:
            self.fail("too_large", size=size, most=limits.max_metadata_bytes)
        return dict(data)

    def to_representation(self, value: Any) -> Any:
        return value


def _deeper(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        return levels == 0 or any(_deeper(item, levels - 1) for item in value.values())
    if isinstance(value, list):
        return levels == 0 or any(_deeper(item, levels - 1) for item in value)
    return False
