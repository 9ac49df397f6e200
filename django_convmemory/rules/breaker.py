"""The circuit breaker of an alias: it keeps workers from calling a model that does not answer.

There is one breaker for each alias. Failures of the alias's own model are counted, at most once in a row for each
session, and not if the model has folded another session since the last one. So a few sessions that always time out do
not stop the others. From the third failure on, the breaker is open: nobody calls the model, except one probe each time
a pause ends. Any answer closes the breaker.

Source of the pattern: M. Nygard, "Release It!", 2007, chapter 5.
"""

from __future__ import annotations

import datetime as dt
import enum
import random
from typing import NamedTuple

from django_convmemory import exceptions

# So many failures in a row open the breaker.
MAX_FAILURES = 3
# All times are in seconds. The pause doubles with each failure from the third one on.
FIRST_PAUSE, LONGEST_PAUSE = 20.0, 60.0
MISCONFIGURED_PAUSE = 60.0
RATE_LIMIT_PAUSE = 5.0
# No provider's Retry-After holds an alias up for longer.
LONGEST_RETRY_AFTER = 3600.0
# If nobody has called the model for so long after a pause, the outage may be over. Sessions that wait try it every five
# minutes or more often, and a task that was lost is sent again after five minutes.
KNOWN_FOR = 900.0
# A pause is longer by up to this share, so that processes do not come back together.
_JITTER = 0.25


class Reason(enum.StrEnum):
    """Why an alias is paused."""

    OUTAGE = "outage"
    RATE_LIMIT = "rate_limit"
    MISCONFIGURED = "misconfigured"


# With these, only a probe may call the model until it answers. After a rate limit all go on together.
OPEN = frozenset({Reason.OUTAGE, Reason.MISCONFIGURED})


class Breaker(NamedTuple):
    """The state of an alias's breaker at the time ``now``.

    - ``failures`` in a row were counted, the last one with the session ``last_session``. ``since`` is the time of the
      first one, and while the breaker is open, the time at which it opened.
    - ``until`` is when the pause ends, ``reason`` is why there is one, and ``error`` is the last error. The breaker
      stays open after ``until``, until the model answers: then ``until`` is the time of the answer, without a reason.
    """

    now: dt.datetime
    failures: int = 0
    last_session: int | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    reason: str = ""
    error: str = ""

    @property
    def paused(self) -> bool:
        """Whether nobody may call the model now."""
        return self.until is not None and self.until > self.now

    @property
    def open(self) -> bool:
        """Whether only a probe may call the model, also after the end of the pause."""
        return self.reason in OPEN

    @property
    def silent_seconds(self) -> float:
        """For how long the outage lasts. 0 if there is none: one failure is none, nor is a wrong configuration.

        It is 0 too if nobody has called the model for so long that the outage may be over.
        """
        if self.since is None or self.until is None or not self.open or self.reason == Reason.MISCONFIGURED:
            return 0.0
        if (self.now - self.until).total_seconds() > KNOWN_FOR:
            return 0.0
        return max(0.0, (self.now - self.since).total_seconds())

    def silent_for(self, seconds: float) -> bool:
        """Whether the fallback may stand in after ``seconds``: never for a wrong configuration or a rate limit."""
        pauses_only = self.reason == Reason.MISCONFIGURED or (self.reason == Reason.RATE_LIMIT and self.paused)
        return not pauses_only and self.silent_seconds >= seconds


def reason_of(error: Exception) -> Reason | None:
    """Return why ``error`` of the alias's own model pauses the alias, or None if it says nothing about other calls."""
    if isinstance(error, exceptions.ModelMisconfigured):
        return Reason.MISCONFIGURED
    if isinstance(error, exceptions.RateLimited):
        return Reason.RATE_LIMIT
    if isinstance(error, exceptions.ModelUnavailable) and not isinstance(error, exceptions.RequestRejected):
        return Reason.OUTAGE
    return None


def pause(reason: Reason, *, failures: int = 0, retry_after: float | None = None) -> float:
    """Return for how many seconds to pause, after so many failures in a row. ``retry_after`` is the provider's wish."""
    if reason == Reason.MISCONFIGURED:
        seconds = MISCONFIGURED_PAUSE
    elif reason == Reason.RATE_LIMIT:
        seconds = RATE_LIMIT_PAUSE
    else:
        seconds = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(10, max(0, failures - MAX_FAILURES)))
    if retry_after is not None and retry_after > seconds:  # NaN is not.
        seconds = min(LONGEST_RETRY_AFTER, retry_after)
    return seconds * random.uniform(1.0, 1.0 + _JITTER)  # noqa: S311
