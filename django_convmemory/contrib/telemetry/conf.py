"""``settings.CONVMEMORY_TELEMETRY``: what is reported."""

from __future__ import annotations

import dataclasses

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_convmemory.rules.options import check_type, from_setting

NAME = "CONVMEMORY_TELEMETRY"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TelemetryOptions:
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


def options() -> TelemetryOptions:
    """Return what the settings say. Raises ImproperlyConfigured, which says what to correct."""
    try:
        return from_setting(TelemetryOptions, getattr(settings, NAME, {}))
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{NAME}: {error}") from None
