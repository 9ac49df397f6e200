"""``settings.CONVMEMORY_MONITORING``: who may see figures, and when work counts as overdue."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_convmemory.conf import from_settings
from django_convmemory.rules.options import check_type

NAME = "CONVMEMORY_MONITORING"
_SHORTEST_TOKEN = 16


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MonitoringOptions:
    """The keys of ``CONVMEMORY_MONITORING``, in lower case."""

    # What a monitoring system sends as "Authorization: Bearer …". None: only staff may see figures.
    token: str | None = dataclasses.field(default=None, repr=False)
    # Workers do not keep up if a session has been due for longer.
    max_due_seconds: int = 900

    def __post_init__(self) -> None:
        check_type("TOKEN", self.token, str | None, shown=False)
        check_type("MAX_DUE_SECONDS", self.max_due_seconds, int)
        if self.token is not None and not (len(self.token) >= _SHORTEST_TOKEN and self.token.isascii()):
            raise ValueError(f"TOKEN must have at least {_SHORTEST_TOKEN} ASCII characters, so that nobody guesses it.")
        if self.max_due_seconds < 1:
            raise ValueError(f"MAX_DUE_SECONDS must be at least 1, not {self.max_due_seconds}.")


def options() -> MonitoringOptions:
    """Return what the settings say. Raises ImproperlyConfigured, which says what to correct."""
    return from_settings(MonitoringOptions, NAME)


def check_settings(**kwargs: Any) -> list[checks.CheckMessage]:
    """Report what is wrong with ``CONVMEMORY_MONITORING``."""
    try:
        options()
    except ImproperlyConfigured as error:
        hint = "Correct the key, or remove it to use its default. docs/guides/telemetry.md lists the keys."
        return [checks.Error(str(error), hint=hint, id="convmemory.E014")]
    return []
