"""Several faults at once."""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable
from typing import NamedTuple

from django.db import DatabaseError

from tests.chaos.faults.registry import CELERY, SERVERS, SQLITE, Drawn, Heading, fault
from tests.chaos.runs import Run, in_threads
from tests.chaos.talk import Talk
from tests.openai_server import Behaviour

FAILURES = ("server_error", "rate_limited", "reset_before_body", "reset_mid_body", "empty", "none", "apology", "hang")
# How often each person talks until the session is due.
ROUNDS = 5
# Seconds for which the model fails. An alias with two attempts uses both before the end, and waits between them.
OUTAGE = 40.0


def _stored(run: Run, change: Callable[[], object]) -> None:
    """Make a change. It is repeated if another fault has restarted the database."""
    while True:
        try:
            change()
        except DatabaseError:
            if not run.may_fail:
                raise
            run.connect_again()
        else:
            return


def _end_leases(run: Run) -> None:
    """End the leases of processes that are gone. The two that run tasks may lose theirs, and an answer, too."""
    run.may_waste += 2
    _stored(run, run.end_leases)


class Trouble(NamedTuple):
    """A fault that can occur beside others. Two of the same ``part`` cannot, because each ends what it began."""

    part: str
    cause: Callable[[Run, random.Random], None]
    on: tuple[str, ...] = ("",)


def kill_children(run: Run, rng: random.Random) -> None:
    for _ in range(2):
        time.sleep(rng.uniform(0, 1))
        run.kill_children()
        _end_leases(run)


def kill_workers(run: Run, rng: random.Random) -> None:
    time.sleep(rng.uniform(0, 1))
    run.kill_workers()
    _end_leases(run)


def suspend_children(run: Run, rng: random.Random) -> None:
    """For longer than their lease."""
    time.sleep(rng.uniform(0, 1))
    children = run.children()
    with contextlib.ExitStack() as suspended:
        for pid in children:
            suspended.enter_context(run.suspended(pid))
        run.may_waste += len(children)
        _end_leases(run)
        time.sleep(rng.uniform(0.5, 2))


def kill_clients(run: Run, rng: random.Random) -> None:
    for _ in range(3):
        time.sleep(rng.uniform(0, 0.5))
        rng.choice(run.site.clients).kill()


def restart_broker(run: Run, rng: random.Random) -> None:
    time.sleep(rng.uniform(0, 1))
    run.site.broker.crash()
    try:
        time.sleep(rng.uniform(0, 2))
    finally:
        run.site.broker.start()


def freeze_broker(run: Run, rng: random.Random) -> None:
    time.sleep(rng.uniform(0, 1))
    run.site.broker.freeze()
    try:
        time.sleep(rng.uniform(0.5, 3))
    finally:
        run.site.broker.thaw()


def restart_database(run: Run, rng: random.Random) -> None:
    time.sleep(rng.uniform(0, 1))
    # Each process that runs tasks may have an answer that it cannot store.
    run.may_waste += 4
    run.site.database.crash()
    run.site.database.start()


def lock_database(run: Run, rng: random.Random) -> None:
    for _ in range(3):
        with run.hold(run.talks[0]):
            time.sleep(rng.uniform(0.1, 0.5))


def fail_in_the_model(run: Run, rng: random.Random) -> None:
    run.site.model.queue(*[Behaviour(kind) for kind in rng.choices(FAILURES, k=6)])


def edit(run: Run, rng: random.Random) -> None:
    """The people themselves change their sessions, between two messages: see :func:`_talk_on`."""


TROUBLES = (
    Trouble("worker", kill_children),
    Trouble("worker", kill_workers),
    Trouble("worker", suspend_children),
    Trouble("client", kill_clients),
    Trouble("broker", restart_broker, on=CELERY),
    Trouble("broker", freeze_broker, on=CELERY),
    Trouble("database", restart_database, on=SERVERS),
    Trouble("database", lock_database, on=SQLITE),
    Trouble("model", fail_in_the_model),
    Trouble("session", edit),
)


def _drawn(run: Run, count: int, *, without: tuple[str, ...] = ()) -> list[Trouble]:
    possible = [
        trouble
        for trouble in TROUBLES
        if trouble.part not in without and any(part in run.site.name for part in trouble.on)
    ]
    parts = run.rng.sample(sorted({trouble.part for trouble in possible}), count)
    return [run.rng.choice([trouble for trouble in possible if trouble.part == part]) for part in parts]


def _cause(run: Run, troubles: list[Trouble], talks: list[Talk]) -> None:
    """Have all troubles at once, while people talk."""
    run.details = ", ".join(trouble.cause.__name__ for trouble in troubles)
    run.may_fail = any(trouble.cause is restart_database for trouble in troubles)
    edited = any(trouble.cause is edit for trouble in troubles)
    for talk in talks:
        run.say(talk)
    causes = [
        functools.partial(trouble.cause, run, random.Random(f"{run.seed} {number}"))
        for number, trouble in enumerate(troubles)
    ]
    in_threads(*causes, *[functools.partial(_talk_on, run, talk, edited) for talk in talks])
    run.site.model.forget_queue()
    run.connect_again()


def _talk_on(run: Run, talk: Talk, edited: bool) -> None:
    rng = random.Random(f"{talk.key} edits")
    for _ in range(ROUNDS):
        run.until_due(talk)
        time.sleep(rng.uniform(0, 0.3))
        if edited:
            run.may_waste += 1
            _edit(run, talk, rng)


def _edit(run: Run, talk: Talk, rng: random.Random) -> None:
    """Redact or truncate, which may be repeated if the database was away."""
    position = rng.randint(1, max(talk.expected_marks))
    redacts = rng.random() < 0.5
    _stored(run, functools.partial(talk.session.redact if redacts else talk.session.truncate, position))
    if redacts:
        talk.expected_marks[position] = None
    else:
        talk.forget(position)


@fault(Heading.TOGETHER, "Two or three faults of different parts of the site occur together.")
def several_at_once(run: Run) -> None:
    run.site.model.queue(*[Behaviour(latency=run.rng.uniform(0, 0.3)) for _ in range(5)])
    _cause(run, _drawn(run, run.rng.randint(2, 3)), [run.talk() for _ in range(3)])
    _end_leases(run)


@fault(
    Heading.TOGETHER,
    "The model fails for 40 s, and another fault occurs. No time is skipped.",
    drawn=Drawn.LONG,
)
def an_outage_in_real_time(run: Run) -> None:
    run.skips_time = False
    # The fallback of the alias "fallback" stands in after two attempts and half of the outage.
    talks = [run.talk(alias=alias) for alias in ("default", "default", "fallback")]
    with run.model_answers(Behaviour("server_error")):
        _cause(run, _drawn(run, 1, without=("model", "database")), talks)
        run.until(lambda: run.site.model.log, "the model is asked")
        ends = time.monotonic() + OUTAGE
        while time.monotonic() < ends:
            run.sweep()
            time.sleep(0.5)
    began = time.monotonic()
    run.until(lambda: all(run.folded(talk) for talk in talks), "the sessions are folded after the outage")
    run.figures["seconds from the end of the outage until all is folded"] = time.monotonic() - began
    run.until(lambda: not any(run.to_be_rebuilt(talk) for talk in talks), "the model makes the fallback's parts again")
    run.figures["seconds until the fallback's parts are rebuilt"] = time.monotonic() - began
    made = [summary for talk in talks for summary in run.summaries(talk)]
    run.figures["summaries by the fallback"] = sum(summary.fallback for summary in made)
    if any(summary.fallback and summary.invalidated_at is None for summary in made):
        run.problems.append("a summary by the fallback was not rebuilt")
    run.figures["calls of the model"] = len(run.site.model.log)
    # A call for each summary, as without the outage.
    run.figures["ideal number of calls"] = sum(not summary.fallback for summary in made)
