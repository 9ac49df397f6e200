"""Who summarizes a session: its alias's own model, the fallback, or nobody for now. All decisions are here.

============================  ====================================  ==================================================
The own model                 Then the alias                        Then the session
============================  ====================================  ==================================================
answers                       has no pause any more                 is folded
cannot summarize this text    has no pause any more                 is tried with the fallback, if it refused or the
                                                                    session has waited; otherwise after a backoff
does not answer (``OUTAGE``)  pauses from the third failure in a    is tried after a backoff, at most 5 minutes
                              row on: 20 s, 40 s, then 60 s
``RATE_LIMIT``                pauses 5 s, or as the provider asks   is tried after that; the attempt does not count
``MISCONFIGURED``             pauses 60 s                           is tried after 1 to 2 minutes; the attempt does not
                                                                    count, unless only this session was answered so
rejects the request           goes on                               is tried after a backoff, at most an hour
============================  ====================================  ==================================================

After a pause for ``OUTAGE`` or ``MISCONFIGURED`` one call probes the model. All others wait until it answers.

The fallback stands in for a session that has been due for ``fallback_after`` seconds, if the own model has failed
``max_attempts`` times with it, or has not answered anybody for as long. It never stands in because of a wrong
configuration or a rate limit: a key that expires on Friday must not have replaced each session's memory by Monday. Nor
does it make a summary that is there again.

A session counts as a failure of the model once in a row, and not if the model has folded another session since. So a
few sessions that always time out do not stop the others.

Source of the pause and its probe: M. Nygard, "Release It!", 2007, chapter 5 (circuit breaker). Source of the backoff
with full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import datetime as dt
import enum
import random
from typing import NamedTuple

from django_convmemory import exceptions

# So many failures in a row begin a pause.
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
# The wait of a session doubles with each of its attempts. The first one is for one attempt.
_FIRST_WAIT, LONGEST_WAIT = 8.0, 3600.0
_LAST_DOUBLING = 9
# A session waits so long at most after a failure of the provider: the pause keeps the calls few.
LONGEST_OUTAGE_WAIT = 300.0
# After a wrong configuration, sessions come back spread over this time.
_MISCONFIGURED_JITTER = 60.0
# A pause is longer by up to this share, so that processes do not come back together.
_JITTER = 0.25

# With these errors a model has answered that it cannot summarize this text.
ANSWERS = (exceptions.BadModelOutput, exceptions.ContentRefused, exceptions.ContextLengthExceeded)


class Reason(enum.StrEnum):
    """Why an alias is paused."""

    OUTAGE = "outage"
    RATE_LIMIT = "rate_limit"
    MISCONFIGURED = "misconfigured"


# With these, only a probe may call the model until it answers. After a rate limit all go on together.
UNTIL_ANSWERED = frozenset({Reason.OUTAGE, Reason.MISCONFIGURED})


def reason_of(error: Exception) -> Reason | None:
    """Return why ``error`` of the alias's own model pauses the alias, or None if it says nothing about other calls."""
    if isinstance(error, exceptions.ModelMisconfigured):
        return Reason.MISCONFIGURED
    if isinstance(error, exceptions.RateLimited):
        return Reason.RATE_LIMIT
    if isinstance(error, exceptions.ModelUnavailable) and not isinstance(error, exceptions.RequestRejected):
        return Reason.OUTAGE
    return None


class Pause(NamedTuple):
    """What is known of an alias's own model at the time ``now``.

    - ``failures`` in a row were counted, the last one with the session ``last_session``. ``since`` is the time of the
      first one, and if there is a pause, the time at which it began.
    - ``paused_until`` is when the pause ends, ``reason`` is why there is one, and ``error`` is the last error. An
      answer ends it: then ``paused_until`` is the time of the answer, without a reason.
    """

    now: dt.datetime
    failures: int = 0
    last_session: int | None = None
    since: dt.datetime | None = None
    paused_until: dt.datetime | None = None
    reason: str = ""
    error: str = ""

    @property
    def paused(self) -> bool:
        """Whether nobody may call the model now."""
        return bool(self.reason) and self.paused_until is not None and self.paused_until > self.now

    @property
    def until_answered(self) -> bool:
        """Whether only a probe may call the model after the end of the pause."""
        return self.reason in UNTIL_ANSWERED

    @property
    def holds(self) -> bool:
        """Whether sessions wait because of it, now or until a probe is answered."""
        return self.paused or self.until_answered

    @property
    def silent_seconds(self) -> float:
        """For how long the outage lasts. 0 if there is none: one failure is none, nor is a wrong configuration.

        It is 0 too if nobody has called the model for so long that the outage may be over.
        """
        if self.since is None or self.paused_until is None or self.reason != Reason.OUTAGE:
            return 0.0
        if (self.now - self.paused_until).total_seconds() > KNOWN_FOR:
            return 0.0
        return max(0.0, (self.now - self.since).total_seconds())

    def silent_for(self, seconds: float) -> bool:
        """Whether the model has been silent for so long. Never with a wrong configuration or during a rate limit."""
        is_no_outage = self.reason == Reason.MISCONFIGURED or (self.reason == Reason.RATE_LIMIT and self.paused)
        return not is_no_outage and self.silent_seconds >= seconds

    def sent_by_sweep(self, limit: int) -> int:
        """Return how many of ``limit`` sessions a sweep may send: none during a pause, and one as a probe after it."""
        return 0 if self.paused else min(limit, 1) if self.until_answered else limit

    # What happens to it. Each returns the next state, which is the same one if nothing changes.

    def answered(self) -> Pause:
        """The model has answered. That does not end a rate limit."""
        if self.until_answered:
            return Pause(self.now, paused_until=self.now)
        return self._replace(failures=0, last_session=None, since=None) if self.failures else self

    def probed(self, seconds: float) -> Pause:
        """Somebody probes the model for at most ``seconds``. Unchanged if nobody may, or another one does."""
        if not self.until_answered or self.paused or self.paused_until is None:
            return self
        since = self.now if (self.now - self.paused_until).total_seconds() > KNOWN_FOR else self.since
        return self._replace(since=since, paused_until=self._in(seconds))

    def not_probed(self, until: dt.datetime | None) -> Pause:
        """The probe that had until then made no call to its end, so the next one may."""
        return self._replace(paused_until=self.now) if self._is_probe(until) else self

    def _is_probe(self, until: dt.datetime | None) -> bool:
        """Whether it is a probe with the time until ``until`` that all wait for."""
        return self.until_answered and until is not None and until == self.paused_until

    def failed(
        self, error: Exception, session_id: int, *, text: str, counts: bool, probe_until: dt.datetime | None
    ) -> Pause:
        """A call for the session failed with ``error``, of which ``text`` is kept.

        ``counts``: the model has not folded another session meanwhile. ``probe_until``: until when the run may probe.
        """
        reason, retry_after = reason_of(error), getattr(error, "retry_after", None)
        probe = self._is_probe(probe_until)
        if probe and reason in (None, Reason.RATE_LIMIT):
            # The probe did not find out whether the model answers. Another session tries soon, and not only when the
            # time for this probe is over. A rate limit shows that the provider is up: the outage begins anew.
            seconds = pause_seconds(Reason.OUTAGE, retry_after=retry_after)
            return self._replace(paused_until=self._in(seconds), since=self.since if reason is None else self.now)
        if reason is None:
            return self
        if reason == Reason.RATE_LIMIT:
            until = self._in(pause_seconds(reason, retry_after=retry_after))
            # Of two calls at a time, only one may have been told how long to wait.
            is_longer = self.paused_until is None or self.paused_until < until
            if self.until_answered or not is_longer:
                return self
            return self._replace(paused_until=until, reason=reason, error=text)
        state = self
        if reason == Reason.OUTAGE:
            if self.until_answered or (counts and self.last_session != session_id):
                state = self._replace(
                    failures=self.failures + 1, last_session=session_id, since=self.since or self.now, error=text
                )
            if state.failures < MAX_FAILURES and not probe:
                return state
        # The outage begins now. The failures that were counted may be days old, and those of a wrong configuration are
        # no outage: the fallback must not stand in at once.
        begins = not self.until_answered or (self.reason == Reason.MISCONFIGURED and reason != self.reason)
        until = self._in(pause_seconds(reason, failures=state.failures, retry_after=retry_after))
        if self.paused and not probe and self.paused_until is not None:
            # The call began before the pause. A probe may be on its way, whose time it must not shorten.
            until = max(until, self.paused_until)
        return state._replace(
            since=self.now if begins else state.since or self.now, paused_until=until, reason=reason, error=text
        )

    def _in(self, seconds: float) -> dt.datetime:
        return self.now + dt.timedelta(seconds=seconds)


def pause_seconds(reason: Reason, *, failures: int = 0, retry_after: float | None = None) -> float:
    """Return for how many seconds to pause, after so many failures in a row. ``retry_after`` is the provider's wish."""
    outage = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(10, max(0, failures - MAX_FAILURES)))
    seconds = {Reason.MISCONFIGURED: MISCONFIGURED_PAUSE, Reason.RATE_LIMIT: RATE_LIMIT_PAUSE}.get(reason, outage)
    if retry_after is not None and retry_after > seconds:  # NaN is not.
        seconds = min(LONGEST_RETRY_AFTER, retry_after)
    return seconds * random.uniform(1.0, 1.0 + _JITTER)  # noqa: S311


class Admission(NamedTuple):
    """The models that a run may ask, by the pause of its alias.

    ``own`` is the alias's own. ``fallback``: the own one has been silent for so long that the fallback may stand in.
    ``probe``: the run is the only one that may ask the own model now. ``reason`` is why the alias waits for an answer,
    or "".
    """

    own: bool
    fallback: bool = False
    probe: bool = False
    reason: str = ""


def admission(pause: Pause, *, fallback_after: float | None, despite_pause: bool) -> Admission:
    """Return which models a run may ask. If it says ``probe``, the caller has to become the probe first.

    ``fallback_after`` is None if there is no fallback.
    """
    fallback = fallback_after is not None and pause.silent_for(fallback_after)
    reason = pause.reason if pause.until_answered else ""
    if despite_pause or not pause.holds:
        return Admission(own=True, fallback=fallback, reason=reason)
    probe = not pause.paused
    return Admission(own=probe, fallback=fallback, probe=probe, reason=reason)


class Choice(enum.Enum):
    """One of the two models of a memory."""

    OWN = enum.auto()
    FALLBACK = enum.auto()


class Retry(NamedTuple):
    """The next attempt comes in ``seconds``. ``counts``: this one was an attempt."""

    seconds: float
    counts: bool


class Situation(NamedTuple):
    """What decides about the models of a session: see the table.

    The session has been due for ``due_seconds``, and this is attempt number ``attempts``. Claims count as attempts,
    because a worker that is killed each time never reports a failure. ``others_answered``: the own model has folded
    another session meanwhile.
    """

    admission: Admission
    attempts: int
    due_seconds: float
    rebuilding: bool
    has_fallback: bool
    max_attempts: int
    fallback_after: float
    others_answered: bool = False

    def may_stand_in(self) -> bool:
        """Whether the fallback may be asked in the own model's place."""
        if not self.has_fallback or self.rebuilding or self.admission.reason == Reason.MISCONFIGURED:
            return False
        has_waited = self.due_seconds >= self.fallback_after
        return has_waited and (self.attempts >= self.max_attempts or self.admission.fallback)

    def first(self) -> Choice:
        """Return the model to ask for a chunk."""
        stands_in = self.attempts > self.max_attempts and self.may_stand_in()
        return Choice.FALLBACK if stands_in or not self.admission.own else Choice.OWN

    def following(self, own_error: Exception | None, fallback_error: Exception | None) -> Choice | None:
        """Return the model to ask for the same chunk after these errors, or None."""
        if own_error is None:
            # The fallback was asked first. The model's own trouble may be over, or only it can fold this text.
            return Choice.OWN if self.admission.own else None
        if not self.has_fallback or fallback_error is not None:
            return None
        if reason_of(own_error) in (Reason.MISCONFIGURED, Reason.RATE_LIMIT):
            return None
        refused = isinstance(own_error, exceptions.ContentRefused)
        return Choice.FALLBACK if refused or self.may_stand_in() else None

    def is_about_the_session(self, reason: Reason | None) -> bool:
        """Whether a wrong configuration may be an answer to this session's content alone.

        Other sessions were just answered: there was no pause. If the configuration is wrong indeed, there is one from
        now on, so this happens to a session once.
        """
        return reason == Reason.MISCONFIGURED and not self.admission.reason

    def retry(self, error: Exception) -> Retry:
        """Return when the session is tried again after ``error``, the last one of this run."""
        reason, attempts = reason_of(error), self.attempts
        retry_after = getattr(error, "retry_after", None) or 0.0
        if reason == Reason.MISCONFIGURED:
            # At different times: one session whose content the model answers with "wrong key" must not be the one that
            # is tried first each time. And less and less often, because each time it pauses the alias.
            wait = MISCONFIGURED_PAUSE + random.uniform(0, _MISCONFIGURED_JITTER)  # noqa: S311
            counts = self.is_about_the_session(reason)
            return Retry(max(wait, backoff(attempts)) if counts else wait, counts)
        if reason == Reason.RATE_LIMIT:
            return Retry(min(LONGEST_OUTAGE_WAIT, pause_seconds(reason, retry_after=retry_after)), False)
        wait = max(random.uniform(0, backoff(attempts)), retry_after)  # noqa: S311
        # If the model answered others meanwhile, what times out again and again is this session.
        if reason == Reason.OUTAGE and not self.others_answered:
            return Retry(min(LONGEST_OUTAGE_WAIT, wait), True)
        if attempts >= self.max_attempts:
            # Not longer than until the fallback may stand in.
            left = self.fallback_after - self.due_seconds if self.has_fallback else 0.0
            return Retry(max(wait, left) if 0.0 < left < LONGEST_WAIT else LONGEST_WAIT, True)
        return Retry(min(LONGEST_WAIT, wait), True)


def backoff(attempts: int) -> float:
    """Return the longest wait after so many attempts."""
    return min(LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(attempts, _LAST_DOUBLING))


def wait_after_lease(attempts: int) -> float:
    """Return how long a session waits after the end of the lease if the process that makes this attempt is killed.

    A process that is killed the first time is no sign that the session kills it.
    """
    return 0.0 if attempts <= 1 else backoff(attempts)
