"""What an append pays for its hint: on brokers that hang, refuse and restart, with many threads, after a fork."""

from __future__ import annotations

import pathlib
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import celery
import pytest
from celery import _state

from django_convmemory import tasks
from tests import processes
from tests.ports import Port
from tests.projects import Project, append_until_due, celery_settings, configured, project, warnings_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def port(broker_url: str) -> Iterator[Port]:
    """A port before a real broker, which hangs until it is told to lead on."""
    with Port(broker_url) as port:
        yield port


def test_an_append_does_not_wait_for_what_no_timeout_bounds(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    monkeypatch.setattr(tasks, "LONGEST_SEND", 0.2)
    monkeypatch.setattr(tasks.Line, "send", lambda line, hint: release.wait(processes.PATIENCE))
    with project("memory://") as site:
        memory = configured(settings, site)
        session = append_until_due(memory)
        release.set()

    [said] = warnings_of(caplog)
    assert "did not take a task" in said
    assert session.due_since is not None


def test_what_could_not_be_sent_is_found_by_the_next_sweep(port: Port, settings: Settings) -> None:
    with project(port.url()) as site:
        memory = configured(settings, site)
        session = append_until_due(memory)

        assert session.hinted_at is None
        assert memory.sweep() == [session.pk]


def test_an_append_succeeds_while_the_broker_hangs(
    port: Port, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with project(port.url()) as site:
        memory = configured(settings, site)

        sessions = [append_until_due(memory, f"user-{number}") for number in range(5)]

        assert port.connections == 1
        [said] = warnings_of(caplog)
        assert "convmemory_sweep" in said
        assert all(session.due_since for session in sessions)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_an_append_succeeds_while_the_broker_refuses(
    scheme: str, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        with project(f"{scheme}://127.0.0.1:{bound.getsockname()[1]}//") as site:
            memory = configured(settings, site)

            for number in range(5):
                append_until_due(memory, f"user-{number}")

            assert tasks.publisher().broken
            [said] = warnings_of(caplog)
            assert "refused" in said


def test_the_broker_is_tried_again_when_the_breaker_closes(
    port: Port, broker_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "BREAKER_SECONDS", 0.2)
    with project(port.url(), real=broker_url) as site:
        memory = configured(settings, site)
        append_until_due(memory, "user-1")
        assert tasks.publisher().broken

        port.leads_on = True
        processes.wait_until(lambda: not tasks.publisher().broken, "the breaker closes")
        append_until_due(memory, "user-2")

        assert site.depth() == 1
        assert not tasks.publisher().broken


def test_a_broker_that_was_restarted_costs_no_hint(
    port: Port, broker_url: str, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    port.leads_on = True
    with project(port.url(), real=broker_url) as site:
        memory = configured(settings, site)
        append_until_due(memory, "user-1")

        port.break_off()
        append_until_due(memory, "user-2")

        assert site.depth() == 2
        assert warnings_of(caplog) == []


def test_each_of_several_brokers_is_tried_once(broker_url: str, settings: Settings) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        refusing = f"{urlsplit(broker_url).scheme}://127.0.0.1:{bound.getsockname()[1]}//"
        with project(f"{refusing};{broker_url}", real=broker_url) as site:
            append_until_due(configured(settings, site))

            assert not tasks.publisher().broken
            site.app.conf.broker_read_url = broker_url
            assert site.depth() == 1


def test_without_a_celery_app_the_append_succeeds_and_the_log_says_why(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_state, "default_app", None)
    monkeypatch.setattr(_state._tls, "current_app", None)

    append_until_due(configured(settings, Project(celery.current_app, "convmemory-none")))

    assert tasks.publisher().broken
    [said] = warnings_of(caplog)
    assert "imports its Celery app" in said
    tasks.publisher().close()


# Threads and processes.


def test_no_thread_waits_for_another_and_no_hint_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = tasks.Publisher()
    sent: list[int] = []
    entered, go_on = threading.Event(), threading.Event()

    def send(hint: tasks.Hint) -> None:
        entered.set()
        assert go_on.wait(processes.PATIENCE)
        sent.append(hint.session_id)

    monkeypatch.setattr(tasks, "LONGEST_TURN", processes.PATIENCE)
    monkeypatch.setattr(publisher, "_send", send)
    first = threading.Thread(target=publisher.publish, args=(tasks.Hint("convmemory.compact", "default", 0, {}, {}),))
    first.start()
    assert entered.wait(processes.PATIENCE)

    others = [
        threading.Thread(target=publisher.publish, args=(tasks.Hint("convmemory.compact", "default", number, {}, {}),))
        for number in range(1, 20)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join()  # while the first one still sends
    assert sent == []
    go_on.set()
    first.join()

    assert sorted(sent) == list(range(20))


def test_every_hint_of_many_threads_arrives(site: Project, settings: Settings) -> None:
    memory = configured(settings, site)
    threads = [
        threading.Thread(target=lambda: [memory.scheduler.schedule(memory, 1) for _ in range(25)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert site.depth() == 100


def test_a_failure_drops_what_was_left_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = tasks.Publisher()
    tried: list[int] = []

    def send(hint: tasks.Hint) -> None:
        tried.append(hint.session_id)
        if len(tried) == 1:
            for number in range(2, 2 + 2 * tasks.MOST_WAITING):
                publisher.publish(
                    tasks.Hint("convmemory.compact", "default", number, {}, {})
                )  # as other threads do meanwhile
            assert len(publisher._waiting) == tasks.MOST_WAITING
        raise ConnectionError

    monkeypatch.setattr(publisher, "_send", send)

    assert not publisher.publish(tasks.Hint("convmemory.compact", "default", 1, {}, {}))
    assert not publisher.publish(tasks.Hint("convmemory.compact", "default", 2, {}, {}))
    assert tried == [1]
    assert not publisher._waiting


def test_a_forked_process_opens_a_connection_of_its_own(
    site: Project, settings: Settings, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "forking.py").write_text(
        "import os, sys, django\n"
        "django.setup()\n"
        "from tests import celery_app\n"
        "from django_convmemory import tasks\n"
        "from django_convmemory.memory import memories\n"
        "memory = memories['default']\n"
        "def send(number):\n"
        "    assert memory.scheduler.send(memory, number)\n"
        "    return tasks.publisher()._line\n"
        "before = send(1)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(send(2) is before)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert send(3) is before\n"
    )
    memory = {"SCHEDULER": {"BACKEND": "django_convmemory.tasks.CeleryScheduler", "OPTIONS": {"queue": site.queue}}}
    options = celery_settings(str(site.app.conf.broker_url), site.queue)
    process = processes.start(
        tmp_path,
        "forking",
        **{f"CELERY_{name.upper()}": value for name, value in options.items()},
        CONVMEMORY={"default": memory},
    )

    assert process.wait(processes.PATIENCE) == 0, (tmp_path / "output").read_text()
    assert sorted(site.take().payload[0][1] for _ in range(3)) == [1, 2, 3]
