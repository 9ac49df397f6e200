"""``settings.CONVMEMORY_TELEMETRY``: what is reported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_convmemory.core.options import check_type

NAME = "CONVMEMORY_TELEMETRY"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The keys of ``CONVMEMORY_TELEMETRY``, in lower case."""

    # Whether calls of models get a span and metrics. None: unless an instrumentation of the openai client makes them.
    chat_spans: bool | None = None
    # Whether spans have the texts of requests, answers and searches.
    content: bool = False
    # Whether the process reports how many sessions are due. It then asks the database at each export.
    gauges: bool = True

    def __post_init__(self) -> None:
        if self.chat_spans is not None:
            check_type("CHAT_SPANS", self.chat_spans, bool)
        check_type("CONTENT", self.content, bool)
        check_type("GAUGES", self.gauges, bool)


KEYS = tuple(field.name.upper() for field in dataclasses.fields(Options))


def options() -> Options:
    """Return what the settings say. Raises ImproperlyConfigured, which says what to correct."""
    configured: Any = getattr(settings, NAME, {})
    try:
        if not isinstance(configured, Mapping):
            raise ValueError(f"The setting must be a dict, not a {type(configured).__name__}.")
        unknown = [key for key in configured if key not in KEYS]
        if unknown:
            raise ValueError(f"The setting has the unknown key {unknown[0]!r:.100}. The keys are {', '.join(KEYS)}.")
        return Options(**{key.lower(): value for key, value in configured.items()})
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{NAME}: {error}") from None
