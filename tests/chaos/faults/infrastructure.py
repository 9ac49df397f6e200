"""Faults of a process that serves requests, of the broker and of the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django_convmemory.memory import memories
from tests.chaos.faults.registry import CELERY, SERVERS, SQLITE, Heading, fault
from tests.chaos.runs import Run, in_threads
from tests.chaos.servers import Server
from tests.openai_server import Behaviour


@fault(Heading.SERVICES, "A process that serves requests is killed while it appends.")
def a_client_killed_in_its_append(run: Run) -> None:
    """Between the commit and the answer, or before. The client cannot know, and asks again."""
    talk = run.talk()

    def kill() -> None:
        for _ in range(3):
            time.sleep(run.rng.uniform(0, 0.1))
            run.rng.choice(run.site.clients).kill()

    in_threads(kill, lambda: run.until_due(talk))


# The broker.


def broker_away(name: str, says: str, leave: Callable[[Any], object], return_: Callable[[Any], object]) -> None:
    """Register a fault: the broker is away while people talk."""

    @fault(Heading.SERVICES, says, on=CELERY, name=name)
    def inject(run: Run) -> None:
        leave(run.site.broker)
        try:
            run.some_talks()
        finally:
            return_(run.site.broker)
        # A busy machine may take a second for anything; a process that waits for a broker takes several.
        run.figures["slowest append (s)"] = run.slowest
        if run.slowest > 3:
            run.problems.append(f"an append took {run.slowest:.1f} s")


broker_away(
    "broker_stopped",
    "The broker is killed. It starts again when the conversations have ended.",
    Server.crash,
    Server.start,
)
broker_away("broker_frozen", "The broker accepts connections and does not answer.", Server.freeze, Server.thaw)


@fault(Heading.SERVICES, "The broker is killed and started while the model answers.", on=CELERY)
def broker_restarted_during_the_call(run: Run) -> None:
    run.site.model.queue(*[Behaviour(latency=0.5)] * 3)
    talks = run.some_talks()
    run.asked(talks[0])
    run.site.broker.crash()
    run.site.broker.start()


@fault(Heading.SERVICES, "Five more tasks are sent for a session that a worker folds.")
def a_task_delivered_five_times(run: Run) -> None:
    run.site.model.queue(Behaviour(latency=0.3))
    talk = run.talk()
    run.until_due(talk)
    scheduler: Any = memories["default"].scheduler
    for _ in range(5):
        scheduler.send(memories["default"], talk.rows.get().pk)


# The database.


@fault(Heading.SERVICES, "The database is killed and started while people talk.", on=SERVERS)
def database_restarted(run: Run) -> None:
    run.site.model.queue(*[Behaviour(latency=run.rng.uniform(0, 0.5))] * 3)
    talks = [run.talk() for _ in range(3)]
    # An answer may arrive that cannot be stored, and a client that was cut off asks again.
    run.may_waste += 2
    run.may_fail = True

    def restart() -> None:
        time.sleep(run.rng.uniform(0, 1.0))
        run.site.database.crash()
        run.site.database.start()

    in_threads(restart, *[lambda talk=talk: run.until_due(talk) for talk in talks])
    run.connect_again()
    run.end_leases()


@fault(
    Heading.SERVICES,
    "Another process locks the SQLite file for up to half a second, three times.",
    on=SQLITE,
)
def database_locked(run: Run) -> None:
    """Another process holds the lock of the file for a while, as a backup may."""
    talks = [run.talk() for _ in range(3)]
    run.say(talks[0])

    def lock() -> None:
        for _ in range(3):
            with run.hold(talks[0]):
                time.sleep(run.rng.uniform(0.1, 0.5))

    in_threads(lock, *[lambda talk=talk: run.until_due(talk) for talk in talks])
