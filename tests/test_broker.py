"""Sending hints: brokers that hang, refuse or restart, many threads, and forked processes."""

from __future__ import annotations

import pathlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import celery
import pytest

from django_convmemory import models, sender as broker_module
from django_convmemory.clock import Clock
from django_convmemory.operations.folding import PATIENCE
from django_convmemory.sender import MOST_WAITING, BrokerConnection, Hint, Sender, logger, sender
from tests import processes
from tests.ports import Port
from tests.projects import (
    Project,
    append_until_due,
    celery_settings,
    celery_state,
    configured,
    project,
    warnings_of,
)
from tests.test_changes_at_once import InThread

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("patient_broker")]


class AdvancedClock:
    """The sender's ``time``. A test moves it forward instead of waiting."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> AdvancedClock:
    advanced = AdvancedClock()
    monkeypatch.setattr(broker_module, "time", advanced)
    return advanced


@pytest.fixture
def port(broker_url: str) -> Iterator[Port]:
    """A port that hangs until a test lets it forward to the real broker."""
    with Port(broker_url) as port:
        yield port


@pytest.mark.usefixtures("hanging_broker")
def test_an_append_succeeds_while_the_broker_hangs_and_the_next_sweep_finds_it(
    port: Port, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with project(port.url()) as site:
        memory = configured(settings, site)

        sessions = [append_until_due(memory, f"user-{number}") for number in range(5)]

        assert port.connections == 1
        [warning] = warnings_of(caplog)
        assert "convmemory_sweep" in warning
        assert all(session.due_since for session in sessions)
        assert memory.sweep() == []
        models.Session.objects.update(due_since=Clock(-PATIENCE))
        assert sorted(memory.sweep()) == [session.pk for session in sessions]


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_an_append_succeeds_while_the_broker_refuses(
    scheme: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        with project(f"{scheme}://127.0.0.1:{bound.getsockname()[1]}//") as site:
            memory = configured(settings, site)

            for number in range(5):
                append_until_due(memory, f"user-{number}")

            assert sender().broken
            [warning] = warnings_of(caplog)
            assert "refused" in warning


@pytest.mark.usefixtures("hanging_broker")
def test_the_broker_is_tried_again_after_a_pause(
    port: Port, broker_url: str, settings: Any, clock: AdvancedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with project(port.url(), real=broker_url) as site:
        memory = configured(settings, site)
        append_until_due(memory, "user-1")
        clock.advance(broker_module.BREAKER_SECONDS - processes.PATIENCE)
        assert sender().broken

        port.leads_on = True
        monkeypatch.setattr("django_convmemory.sender.BROKER_TIMEOUT", processes.PATIENCE)
        clock.advance(processes.PATIENCE)
        assert not sender().broken
        append_until_due(memory, "user-2")

        assert site.depth() == 1
        assert not sender().broken


def test_a_broker_that_was_restarted_costs_no_hint(
    port: Port, broker_url: str, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    port.leads_on = True
    with project(port.url(), real=broker_url) as site:
        memory = configured(settings, site)
        append_until_due(memory, "user-1")

        port.break_off()
        append_until_due(memory, "user-2")

        assert site.depth() == 2
        assert warnings_of(caplog) == []


def test_each_of_several_brokers_is_tried_once(broker_url: str, settings: Any) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        refusing = f"{urlsplit(broker_url).scheme}://127.0.0.1:{bound.getsockname()[1]}//"
        with project(f"{refusing};{broker_url}", real=broker_url) as site:
            append_until_due(configured(settings, site))

            assert not sender().broken
            site.app.conf.update(broker_read_url=broker_url)
            assert site.depth() == 1


def test_without_a_celery_app_the_append_succeeds_and_the_log_says_why(
    settings: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery_state, "default_app", None)
    monkeypatch.setattr(celery_state._tls, "current_app", None)

    append_until_due(configured(settings, Project(celery.current_app, "convmemory-none")))

    assert sender().broken
    [warning] = warnings_of(caplog)
    assert "imports its Celery app" in warning
    sender().close()


# Threads and processes.


def hint_of(session_id: int) -> Hint:
    return Hint("convmemory.compact", "default", session_id, {}, {})


class Broker:
    """Stands for a broker. It can be slow, and it can fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: list[int] = []
        self.go_on, self.entered = threading.Event(), threading.Event()
        self.fails = False
        monkeypatch.setattr(BrokerConnection, "send", lambda line, hint: self.take(hint))

    def take(self, hint: Hint) -> None:
        self.tried.append(hint.session_id)
        self.entered.set()
        assert self.go_on.wait(processes.PATIENCE)
        if self.fails:
            raise ConnectionError("it is away")


@pytest.fixture
def own() -> Iterator[Sender]:
    """A sender that no other test shares."""
    made = Sender()
    yield made
    made.close()


@pytest.fixture
def broker(own: Sender, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    made = Broker(monkeypatch)
    yield made
    made.go_on.set()  # before the sender is closed, which waits for it


APP = celery.Celery("nobody", set_as_current=False)


def test_nobody_waits_and_what_is_handed_over_is_sent_in_order(broker: Broker, own: Sender) -> None:
    for number in range(20):
        assert own.send(hint_of(number), APP)
    assert broker.entered.wait(processes.PATIENCE)
    assert broker.tried == [0]
    broker.go_on.set()
    assert own.flush(processes.PATIENCE)
    assert broker.tried == list(range(20))


def test_who_waits_knows_that_it_was_sent(broker: Broker, own: Sender) -> None:
    broker.go_on.set()
    assert own.send(hint_of(1), APP, wait=True)
    assert broker.tried == [1]
    broker.fails = True
    assert not own.send(hint_of(2), APP, wait=True)
    # The connection that failed may only have been stale, so the sender tries once more.
    assert broker.tried == [1, 2, 2]
    assert not own.send(hint_of(3), APP, wait=True)
    assert broker.tried == [1, 2, 2]


def test_a_failure_drops_what_waits_for_the_broker(broker: Broker, own: Sender) -> None:
    broker.fails = True
    assert own.send(hint_of(0), APP)
    assert broker.entered.wait(processes.PATIENCE)
    taken = [own.send(hint_of(number), APP) for number in range(1, 2 * MOST_WAITING)]
    assert taken == [True] * MOST_WAITING + [False] * (MOST_WAITING - 1)
    broker.go_on.set()
    assert own.flush(processes.PATIENCE)
    assert own.broken
    assert broker.tried == [0]
    assert not own.send(hint_of(9999), APP)
    assert own.flush(processes.PATIENCE)


def test_a_log_handler_that_fails_does_not_stop_the_sender(broker: Broker, own: Sender, clock: AdvancedClock) -> None:
    def refuse(record: object) -> bool:
        raise KeyError("a filter of the site's")

    broker.fails = True
    broker.go_on.set()
    logger.addFilter(refuse)
    try:
        assert not own.send(hint_of(1), APP, wait=True)
    finally:
        logger.removeFilter(refuse)
    broker.fails = False
    clock.advance(broker_module.BREAKER_SECONDS)
    assert own.send(hint_of(2), APP, wait=True)


def test_who_waits_in_vain_is_told_so(
    broker: Broker, own: Sender, clock: AdvancedClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("django_convmemory.sender.LONGEST_SEND", 0.3)
    assert own.send(hint_of(1), APP)
    assert broker.entered.wait(processes.PATIENCE)
    assert not own.send(hint_of(2), APP, wait=True)
    # It counts as a failure of the broker.
    [warning] = warnings_of(caplog)
    assert "did not take a task" in warning
    assert not own.send(hint_of(3), APP)
    broker.go_on.set()
    assert own.flush(processes.PATIENCE)
    assert broker.tried == [1]

    clock.advance(broker_module.BREAKER_SECONDS)
    assert own.send(hint_of(4), APP, wait=True)
    assert broker.tried == [1, 4]


def test_many_who_wait_for_a_healthy_broker_begin_no_pause(own: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_convmemory.sender.LONGEST_SEND", 0.3)
    monkeypatch.setattr(BrokerConnection, "send", lambda line, hint: time.sleep(0.05))

    sent = [each.result() for each in [InThread(lambda: own.send(hint_of(1), APP, wait=True)) for _ in range(20)]]

    assert set(sent) == {True, False}
    assert not own.broken


FORKING = """
import os, threading, time
from celery import Celery
from django_convmemory import sender

loading = threading.Event()

def load(connection):
    loading.set()
    time.sleep(0.5)

sender.BrokerConnection.load = load
threading.Thread(target=sender.Sender()._load, args=[Celery("a")]).start()
loading.wait()
child = os.fork()
if not child:
    os._exit(0 if sender._loading.acquire(timeout=0.1) else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.slow
def test_a_child_does_not_get_the_locks_of_an_import_that_its_parent_has_begun() -> None:
    assert processes.output_of([sys.executable, "-W", "ignore", "-c", FORKING]) == "0\n"


def test_a_process_that_is_out_of_threads_appends_all_the_same(own: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert not own.send(hint_of(1), APP)
    assert not own.send(hint_of(2), APP, wait=True)
    monkeypatch.undo()
    assert not own._waiting


def test_the_time_in_which_libraries_are_loaded_does_not_count(
    broker: Broker, own: Sender, clock: AdvancedClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loading, loaded = threading.Event(), threading.Event()

    def load(connection: BrokerConnection) -> None:
        loading.set()
        assert loaded.wait(processes.PATIENCE)

    monkeypatch.setattr(BrokerConnection, "load", load)
    broker.go_on.set()
    assert own.send(hint_of(1), APP)
    assert loading.wait(processes.PATIENCE)
    assert own.send(hint_of(2), APP)
    assert broker.tried == []

    # A process that ends waits for it too.
    threading.Timer(0.1, loaded.set).start()
    assert own.flush()

    assert broker.tried == [1, 2]
    assert warnings_of(caplog) == []
    assert not own.broken


def test_who_waits_loads_the_libraries_first(broker: Broker, own: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "LONGEST_SEND", 0.2)
    monkeypatch.setattr(BrokerConnection, "load", lambda connection: time.sleep(0.4))
    broker.go_on.set()

    assert own.send(hint_of(1), APP, wait=True)


def test_every_hint_of_many_threads_arrives(site: Project, settings: Any) -> None:
    memory = configured(settings, site)
    for thread in [InThread(lambda: [memory.scheduler.schedule(memory, 1) for _ in range(25)]) for _ in range(4)]:
        thread.result()

    assert sender().flush(processes.PATIENCE)
    assert site.depth() == 100


def start(site: Project, folder: pathlib.Path, script: str) -> subprocess.Popen[bytes]:
    """Start a process of the site that runs ``script``."""
    (folder / "script.py").write_text(
        "import os, sys, django\n"
        "django.setup()\n"
        "from tests import celery_app\n"
        # This machine may be busy: give the broker a minute when the process ends, too.
        "from django_convmemory import sender as sending\n"
        f"sending.BROKER_TIMEOUT = sending.LONGEST_SEND = {processes.PATIENCE}\n"
        "from django_convmemory.sender import sender\n"
        "from django_convmemory.memory import memories\n"
        "memory = memories['default']\n" + script
    )
    memory = {"SCHEDULER": {"BACKEND": "django_convmemory.tasks.CeleryScheduler", "OPTIONS": {"queue": site.queue}}}
    options = celery_settings(str(site.app.conf.broker_url), site.queue)
    return processes.start(
        folder,
        "script",
        **{f"CELERY_{name.upper()}": value for name, value in options.items()},
        CONVMEMORY={"default": memory},
    )


@pytest.mark.slow
def test_a_process_that_ends_at_once_has_sent_what_it_had_to(
    site: Project, settings: Any, tmp_path: pathlib.Path
) -> None:
    process = start(site, tmp_path, "for number in range(20):\n    memory.scheduler.schedule(memory, number)\n")
    assert process.wait(processes.PATIENCE) == 0, (tmp_path / "output").read_text()
    assert site.depth() == 20


def test_a_process_that_ends_while_the_broker_hangs_does_not_wait_for_it(
    broker: Broker, own: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert own.send(hint_of(1), APP)
    assert broker.entered.wait(processes.PATIENCE)
    assert not own.flush(0.1)  # as at the end of a process, where it is a second


@pytest.mark.parametrize(
    ("options", "waits"), [(None, False), ({}, True), ({b"threads": b"4"}, False), ({b"enable-threads": True}, False)]
)
def test_only_a_process_that_runs_no_threads_waits(
    options: dict[bytes, object] | None,
    waits: bool,
    local_site: Project,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    if options is not None:
        monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(opt=options))
    monkeypatch.setattr(Sender, "send", lambda self, *args, wait, **more: asked.append(wait) or True)
    append_until_due(configured(settings, local_site))
    assert asked == [waits]


def test_a_task_waits_until_its_hints_are_sent(
    local_site: Project, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(Sender, "send", lambda self, *args, wait, **more: asked.append(wait) or True)
    memory = configured(settings, local_site)

    @local_site.app.task
    def appends() -> None:
        append_until_due(memory)

    appends()
    assert asked == [True]


@pytest.mark.slow
def test_a_forked_process_opens_a_connection_of_its_own(site: Project, settings: Any, tmp_path: pathlib.Path) -> None:
    process = start(
        site,
        tmp_path,
        "def send(number):\n"
        "    assert memory.scheduler.send(memory, number)\n"
        "    return sender()._thread\n"
        "before = send(1)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(send(2) is before)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert send(3) is before\n",
    )

    assert process.wait(processes.PATIENCE) == 0, (tmp_path / "output").read_text()
    assert sorted(site.take().payload[0][1] for _ in range(3)) == [1, 2, 3]
