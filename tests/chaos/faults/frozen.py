"""A worker that is suspended just after a statement that writes, one fault for each kind of write."""

from __future__ import annotations

import functools
import math
import os
import signal
import threading
import time

from django.db import connections

from django_convmemory import models
from tests.chaos.faults.registry import Drawn, Heading, fault
from tests.chaos.runs import Run
from tests.openai_server import Behaviour

# Seconds for which the worker is suspended: shorter than its lease.
HELD = 10.0
# An append may wait so many seconds: where one statement writes, and where a transaction does, which the database ends
# after two seconds.
STATEMENT, TRANSACTION = 0.5, 2.5


def _frozen(run: Run, method: str, behaviour: Behaviour | None) -> None:
    if behaviour is not None:
        run.site.model.queue(behaviour)
    talk, other = run.talk(), run.talk()
    run.say(other)
    run.may_waste += 1
    with run.closed(f"in_{method}", talk):
        # Due at once, and large enough to be tried again in smaller chunks.
        run.say(talk, [{"role": "user", "content": f"{talk.mark()} {'word ' * 15}"} for _ in range(20)])
        frozen = run.arrival(f"in_{method}")
        os.kill(frozen, signal.SIGSTOP)
    thaw = threading.Timer(HELD, os.kill, (frozen, signal.SIGCONT))
    slowest = usual = 0.0
    thaw.start()
    try:
        while thaw.is_alive():
            slowest = max(slowest, run.say(talk)["seconds"])
            usual = max(usual, run.say(other)["seconds"])
            time.sleep(0.05)
    finally:
        thaw.join()
    run.figures["slowest append (s)"] = slowest
    run.figures["slowest append to another session (s)"] = usual
    # What the other session waits is the machine's doing.
    if slowest > _longest_wait(method) + usual:
        run.problems.append(f"an append waited {slowest:.1f} s for a suspended worker, another session {usual:.1f} s")


def _longest_wait(method: str) -> float:
    vendor = connections[models.Session.objects.db].vendor
    if vendor == "sqlite":
        return math.inf  # A stopped writer holds the file.
    return TRANSACTION if method == "publish" else STATEMENT


def _register(method: str, says: str, behaviour: Behaviour | None = None) -> None:
    inject = functools.partial(_frozen, method=method, behaviour=behaviour)
    fault(Heading.WORKER, says, drawn=Drawn.LONG, name=f"frozen_in_its_{method}")(inject)


_register("claim", "A worker is suspended for ten seconds after the statement that takes the lease.")
_register("extend", "The same after the statement that extends the lease.")
_register("publish", "The same after the first statement that publishes.")
_register("release", "The same after the statement that releases the lease.")
_register("record", "The same after the first statement that records a failure.", Behaviour("server_error"))
