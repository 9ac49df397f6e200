"""Processes with other settings of their database, and a disk without space."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Any

from django.db import connections

from django_convmemory import models
from tests.chaos import servers
from tests.chaos.faults.registry import CELERY, SERVERS, SQLITE, Heading, fault
from tests.chaos.runs import Run, in_threads
from tests.chaos.site import database_of_process
from tests.chaos.talk import Talk
from tests.openai_server import Behaviour

# Isolation levels, as the options of Django's backends name them.
POSTGRESQL_LEVELS = {"REPEATABLE READ": 3, "SERIALIZABLE": 4}


@contextlib.contextmanager
def everybody(run: Run, **entry: Any) -> Iterator[None]:
    """Give the worker and the clients these settings of the database, until the end of the block."""
    environment = database_of_process(**entry)
    with run.site.other_workers(environment), run.site.other_clients(environment):
        yield


def isolated(run: Run, level: str) -> None:
    mariadb = connections[models.Session.objects.db].vendor == "mysql"
    with everybody(run, OPTIONS={"isolation_level": level.lower() if mariadb else POSTGRESQL_LEVELS[level]}):
        run.site.model.queue(*[Behaviour(latency=0.2)] * 6)
        talks = [run.talk() for _ in range(3)]

        def talk_on(talk: Talk) -> None:
            run.until_due(talk)
            run.asked(talk)
            for _ in range(5):  # while the worker publishes
                run.say(talk)

        in_threads(*[functools.partial(talk_on, talk) for talk in talks])
        for talk in talks:
            run.until(functools.partial(run.folded, talk), "it is folded")


for level in POSTGRESQL_LEVELS:
    says = f"All processes use the isolation level {level}."
    fault(Heading.SERVICES, says, on=SERVERS, name=level.lower().replace(" ", "_"))(
        functools.partial(isolated, level=level)
    )


@fault(Heading.SERVICES, "Requests have `AUTOCOMMIT` off, and commit at their end.")
def autocommit_off(run: Run) -> None:
    with run.site.other_clients(database_of_process(AUTOCOMMIT=False)):
        for talk in run.some_talks():
            run.until(functools.partial(run.folded, talk), "the sweep finds it")


# Without it, a worker of Django's tasks would not even keep the task that it has taken.
@fault(Heading.SERVICES, "The worker has `AUTOCOMMIT` off, until it is restarted without.", on=CELERY)
def autocommit_off_in_the_worker(run: Run) -> None:
    """It must not call the model, because nothing would commit the summary."""
    with run.site.other_workers(database_of_process(AUTOCOMMIT=False)) as worker:
        talks = run.some_talks()
        run.until(lambda: "AUTOCOMMIT of the database" in worker.log.read_text(), "the worker logs why it cannot fold")
        if any(run.calls(talk) for talk in talks):
            run.problems.append("a worker that cannot commit called the model")


# PgBouncer passes no options on.
@fault(
    Heading.SERVICES,
    "Statements are cancelled after 0.3 s, while another process holds the session's lock.",
    on=("postgresql", "pooled", "routed", "mariadb"),
)
def statement_timeout(run: Run) -> None:
    options = (
        {"init_command": "SET SESSION max_statement_time = 0.3"}
        if connections[models.Session.objects.db].vendor == "mysql"
        else {"options": "-c statement_timeout=300"}
    )
    run.may_fail = True
    with everybody(run, OPTIONS=options):
        talk = run.talk()
        run.say(talk)

        def hold() -> None:
            for _ in range(3):
                with run.hold(talk):
                    time.sleep(run.rng.uniform(0.5, 1.0))
                run.may_waste += 1

        in_threads(hold, lambda: run.until_due(talk))
        run.figures["appends that the timeout ended"] = run.failures
        run.may_waste += 1
        run.end_leases()
        run.until(lambda: run.folded(talk), "it is folded")


@fault(Heading.SERVICES, "The disk is full, and has space again a second later.", on=SQLITE)
def disk_full(run: Run) -> None:
    """SQLite says so itself if the file reaches its largest number of pages."""
    connection = connections[models.Session.objects.db]
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA page_count")
        pages = cursor.fetchone()[0] + 4
    usual = connection.settings_dict["OPTIONS"]["init_command"]
    options = {"init_command": f"{usual} PRAGMA max_page_count = {pages};"}
    run.may_fail = True
    talks = [run.talk() for _ in range(3)]

    def talk_on(talk: Talk) -> None:
        while not run.failures:
            run.say(talk, [{"role": "user", "content": f"{talk.mark()} " + "word " * 400}])
        run.until_due(talk)

    def make_space() -> None:
        servers.until(lambda: run.failures, "an append fails because the disk is full")
        time.sleep(1)
        run.site.restart_clients()

    with run.site.other_workers(database_of_process(OPTIONS=options)):
        run.site.restart_clients(database_of_process(OPTIONS=options))
        in_threads(make_space, *[functools.partial(talk_on, talk) for talk in talks])
    # An answer may have arrived that could not be stored.
    run.may_waste += 2
    run.end_leases()
