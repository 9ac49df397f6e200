"""Measures the cost of trouble: ``python -m tests.chaos.measure crowd --database postgresql``.

``crowd``: 32 processes append to one session, and 32 retry one append. ``outage``: appends while the broker is there,
is gone, and answers nothing. ``hung``: 16 clients while the model answers at once, and while it hangs. ``backlog``:
many sessions are due when the workers start. ``killed``: a whole worker is killed during a call, with the default
options, and another one runs. Prints figures, and ends with 1 where what is stored is wrong.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tests.chaos import guard, servers, site as sites
from tests.chaos.site_processes import Beat, Client
from tests.openai_server import Behaviour, prompt

# Four times the limit at which a session is due.
LONG = "word " * 600


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.measure", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=list(MEASURES))
    parser.add_argument("--database", choices=sites.DATABASES, default="postgresql")
    parser.add_argument("--broker", choices=sites.BROKERS, default="redis")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of it; 1 is what the documentation reports")
    arguments = parser.parse_args()
    measure, options = MEASURES[arguments.what]
    with (
        guard.guarded() as folder,
        sites.running(folder, arguments.database, arguments.broker, **options) as site,
    ):
        problems = measure(site, arguments.scale)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def milliseconds(seconds: Sequence[float]) -> str:
    """Return the median, the 99th percentile and the maximum of these times."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"median {statistics.median(ordered) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, worst {ordered[-1] * 1e3:.0f} ms"


def human(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# A crowd.


def crowd(site: sites.Site, scale: float) -> list[str]:
    """Every process appends to one session; then every process makes the same append."""
    from tests.chaos.runs import in_threads
    from tests.chaos.talk import Talk

    each = max(1, int(30 * scale))
    talk = Talk("hot", random.Random(0))
    client_batches = [[[human(f"{talk.mark()} hello")] for _ in range(each)] for _ in site.clients]
    errors: list[str] = []
    took: list[float] = []

    def append(client: Client, batches: list[list[dict[str, str]]]) -> None:
        for batch in batches:
            answer = talk.say(client, batch)
            took.append(answer["seconds"])
            if "error" in answer:
                errors.append(answer["error"])

    began = time.monotonic()
    in_threads(*map(partial, itertools.repeat(append), site.clients, client_batches))
    rate = len(took) / (time.monotonic() - began)
    print(f"{site.name}: {len(site.clients)} processes, one session: {rate:.0f} appends a second; {milliseconds(took)}")
    _catch_up()
    return errors + talk.problems() + _retries(site, max(1, int(20 * scale)))


def _retries(site: sites.Site, rounds: int) -> list[str]:
    from tests.chaos.runs import in_threads
    from tests.chaos.talk import Talk

    talk, errors = Talk("retried", random.Random(0)), []
    for number in range(rounds):
        messages = talk.messages()
        answers = in_threads(*[partial(talk.say, client, messages, f"k{number}") for client in site.clients])
        errors += [answer["error"] for answer in answers if "error" in answer]
        if len({(answer.get("first"), answer.get("last")) for answer in answers}) != 1:
            errors.append(f"the same append had different receipts: {answers}")
    _catch_up()
    problems = talk.problems()
    # After a clear, a retry stores nothing.
    last = f"k{rounds - 1}"
    talk.session.clear()
    talk.forget()
    late = site.clients[0].ask(session={"key": talk.key}, messages=messages, key=last)
    if "error" in late:
        errors.append(late["error"])
    talk.say(site.clients[0], [human(f"{talk.mark()} anew")], "another")
    print(f"{site.name}: {rounds} appends, each made by {len(site.clients)} processes at once with one key")
    return errors + problems + talk.problems()


def _catch_up() -> None:
    """Wait until everything is folded."""
    from django_convmemory import models, tasks
    from django_convmemory.memory import memories

    def caught_up() -> bool:
        list(tasks.send_due(memories["default"], limit=100, hint_age=5))
        return not models.Session.objects.due().exists()

    servers.until(caught_up, "everything is folded", patience=300)


# An outage of the broker.


def outage(site: sites.Site, scale: float) -> list[str]:
    """Each append makes a session due, so each append has a task to send."""
    from tests.chaos.runs import in_threads

    errors: list[str] = []
    medians: dict[str, float] = {}
    number, pause = 0, 0.1

    def phase(name: str, seconds: float) -> None:
        nonlocal number
        number += 1
        took: list[list[float]] = [[] for _ in site.clients]

        def append(client: Client, mine: list[float], prefix: str) -> None:
            count = max(1, int(seconds / pause))
            for place in range(count):
                client.ask(session={"key": f"{prefix}-{place}"}, messages=[human("hello")])
            for place in range(count):
                answer = client.ask(session={"key": f"{prefix}-{place}"}, messages=[human(LONG)])
                mine.append(answer["seconds"])
                errors.extend([answer["error"]] if "error" in answer else [])
                time.sleep(pause)

        prefixes = [f"{number}-{index}" for index in range(len(site.clients))]
        in_threads(*map(partial, itertools.repeat(append), site.clients, took, prefixes))
        every = [seconds for mine in took for seconds in mine]
        medians.setdefault(name, statistics.median(every))
        slow = [sum(seconds > 0.05 for seconds in mine) for mine in took]
        print(
            f"{site.name}, broker {name}, {seconds:.0f} s: {len(every)} appends, {milliseconds(every)}; "
            f"over 50 ms in a process: {max(slow)}; median {medians[name] / medians['healthy']:.2f} of the healthy"
        )

    for client in site.clients:  # Imports, and the first connection.
        client.ask(session={"key": f"first-{client.pid}"}, messages=[human(LONG), human("hello")])
    phase("healthy", 10 * scale)
    site.broker.crash()
    phase("stopped", 40 * scale)
    site.broker.start()
    time.sleep(31)
    phase("healthy again", 10 * scale)
    site.broker.freeze()
    phase("frozen", 40 * scale)
    site.broker.thaw()
    return errors


# A model that hangs.


def hung(site: sites.Site, scale: float) -> list[str]:
    """Clients append and load while workers fold, or wait for a model that never answers."""
    from tests.chaos.runs import in_threads

    errors: list[str] = []
    took: dict[str, dict[str, list[float]]] = {}

    def use(here: dict[str, list[float]], client: Client, key: str) -> None:
        ends = time.monotonic() + 15 * scale
        while time.monotonic() < ends:
            for what, request in (("append", {"messages": [human("word " * 40)]}), ("load", {})):
                answer = client.ask(session={"key": key}, **request)
                here[what].append(answer["seconds"])
                if "error" in answer:
                    errors.append(answer["error"])

    for client in site.clients:  # Imports, and the first connections.
        client.ask(session={"key": f"first-{client.pid}"}, messages=[human(LONG), human("hello")])
    for number in range(4):
        name = ("answers at once", "hangs")[number % 2]
        site.model.default = Behaviour() if number % 2 == 0 else Behaviour("hang")
        here = took.setdefault(name, {"append": [], "load": []})
        keys = [f"{number}-{index}" for index in range(len(site.clients))]
        in_threads(*map(partial, itertools.repeat(use), itertools.repeat(here), site.clients, keys))
    site.model.default = Behaviour()
    for name, both in took.items():
        for what, seconds in both.items():
            print(f"{site.name}, {len(site.clients)} clients, the model {name}: {what} {milliseconds(seconds)}")
    return errors


# A backlog.


def backlog(site: sites.Site, scale: float) -> list[str]:
    """Sessions became due while no worker ran; live ones go on becoming due when the workers start."""
    from django.db.models import F

    from django_convmemory import models, tasks
    from django_convmemory.maintenance import integrity
    from django_convmemory.memory import memories
    from django_convmemory.schedulers import NullScheduler

    count = max(10, int(10_000 * scale))
    memory = memories["default"]
    scheduler, memory.scheduler = memory.scheduler, NullScheduler()
    for number in range(count):
        memory.append(f"b{number}", human(f"[[b{number}.1]] {LONG}"), human("hello"))
    memory.scheduler = scheduler

    sent: dict[int, int] = {}
    for _ in range(60):
        for session_id in tasks.send_due(memory, limit=100):
            sent[session_id] = sent.get(session_id, 0) + 1
        # The minute to the next sweep is skipped.
        models.Session.objects.exclude(hinted_at=None).update(hinted_at=F("hinted_at") - dt.timedelta(minutes=1))
    print(
        f"{site.name}: {count} sessions due, no worker: 60 sweeps, a minute apart, sent {sum(sent.values())} tasks of "
        f"{len(sent)} sessions, {max(sent.values())} of one at most"
    )

    workers, site.model.default = 2, Behaviour(latency=0.1)
    began = time.monotonic()
    for _ in range(workers):
        site.start_worker()
    live: list[float] = []
    left, swept = count, 0.0
    while left:
        if time.monotonic() - swept > 60:  # as Celery beat does
            swept = time.monotonic()
            list(tasks.send_due(memory, limit=100))
            left = models.Session.objects.filter(key__startswith="b").due().count()
        live.append(_until_folded(site, f"live{len(live)}"))
    seconds = time.monotonic() - began

    calls = [call for call in site.model.log if "[[b" in prompt(call.body)]
    order = [int(prompt(call.body).partition("[[b")[2].partition(".")[0]) for call in calls]
    early = max(number - place for place, number in enumerate(order))
    print(
        f"{site.name}: worked off in {seconds:.0f} s, {count / seconds:.0f} a second, by {len(calls)} calls, "
        f"at most {_at_once(site)} at once with {2 * workers} worker processes; the one that was folded furthest out "
        f"of turn was {early} places early; {len(live)} live sessions meanwhile: "
        f"folded in {statistics.median(live):.1f} s, median, {max(live):.1f} s at most"
    )
    return [str(finding) for finding in integrity.check(models.Session.objects.all())]


def _until_folded(site: sites.Site, key: str) -> float:
    from django_convmemory import models

    site.clients[0].ask(session={"key": key}, messages=[human(LONG), human("hello")])
    began = time.monotonic()
    servers.until(lambda: not models.Session.objects.filter(key=key).due().exists(), f"{key} is folded", patience=120)
    return time.monotonic() - began


def _at_once(site: sites.Site) -> int:
    moments = [(call.started, 1) for call in site.model.log] + [(call.finished or 0.0, -1) for call in site.model.log]
    now = most = 0
    for _, change in sorted(moments):
        now += change
        most = max(most, now)
    return most


# A worker that is killed.


def killed(site: sites.Site, scale: float) -> list[str]:
    """A worker and all its processes are killed while the model answers. The broker's own redelivery takes longer."""
    from tests.chaos.talk import Talk

    beat = Beat(site, "beat")
    problems: list[str] = []
    took: list[float] = []
    try:
        for number in range(max(1, int(3 * scale))):
            [worker] = site.workers
            talk = Talk(f"killed{number}", random.Random(number))
            site.model.queue(Behaviour("hang", seconds=600))
            while not talk.say(site.clients[0], talk.messages())["due"]:
                pass
            calls = len(site.model.log)
            servers.until(lambda calls=calls: len(site.model.log) > calls, "the model is asked")  # type: ignore[misc]
            site.start_worker()
            worker.kill()
            site.workers.remove(worker)
            began = time.monotonic()
            servers.until(lambda talk=talk: not talk.rows.due().exists(), "it is folded", patience=400)  # type: ignore[misc]
            took.append(time.monotonic() - began)
            problems += talk.problems()
    finally:
        beat.kill()
    each = ", ".join(f"{seconds:.0f}" for seconds in took)
    print(f"{site.name}: a whole worker killed during the call: folded after {each} s")
    return problems


MEASURES: dict[str, tuple[Callable[[sites.Site, float], list[str]], dict[str, Any]]] = {
    "crowd": (crowd, {"clients": 32, "workers": 1}),
    "outage": (outage, {"clients": 4, "workers": 0}),
    "hung": (hung, {"clients": 16, "workers": 1}),
    "backlog": (backlog, {"clients": 1, "workers": 0}),
    # The deadline of a call is then that of the default options.
    "killed": (killed, {"clients": 1, "workers": 1, "deadline": 60.0}),
}

if __name__ == "__main__":
    sys.exit(main())
