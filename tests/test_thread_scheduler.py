"""The scheduler that folds in a thread of the process."""

from __future__ import annotations

import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import mail
from django.core.signals import request_started

from django_convmemory import models, sweeping
from django_convmemory.maintenance import integrity
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from tests import processes
from tests.projects import append_until_due, scripted
from tests.test_sweep_command import alias_settings, due, folded

pytestmark = pytest.mark.django_db(transaction=True)

THREAD = {"BACKEND": "django_convmemory.sweeping.ThreadScheduler"}


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "convmemory"]


@pytest.fixture
def default(settings: Any) -> Iterator[ConversationMemory]:
    """The memory ``default``, which a thread folds."""
    settings.CONVMEMORY = {"default": alias_settings(scheduler=THREAD), "other": alias_settings()}
    yield memories["default"]
    sweeping._thread.stop()
    assert threads() == []


def test_a_session_that_becomes_due_is_folded_in_another_thread(default: ConversationMemory) -> None:
    append_until_due(default, "a")

    processes.wait_until(lambda: models.Summary.objects.filter(session__key="a").exists(), "it is folded")
    assert len(threads()) == 1


def test_an_append_is_stored_where_no_thread_can_be_started(
    default: ConversationMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: thread.join())  # It raises RuntimeError, too.
        session = append_until_due(default, "a")
        assert not default.scheduler.request(default, session.pk, "rebuild")
    assert "No thread can be started" in caplog.text
    append_until_due(default, "b")
    processes.wait_until(lambda: models.Summary.objects.values("session").distinct().count() == 2, "it is folded")


def test_the_thread_needs_no_system_that_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.register_at_fork")

    thread = sweeping._Thread()

    assert thread.start()
    thread.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_died_is_replaced(default: ConversationMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sweeping.Sweeper, "sweep", lambda sweeper: sys.exit())
        append_until_due(default, "a")
        processes.wait_until(lambda: not threads(), "the thread ends")
    append_until_due(default, "b")
    processes.wait_until(lambda: models.Summary.objects.values("session").distinct().count() == 2, "it is folded")


def test_the_first_requests_find_what_a_killed_process_has_left(
    default: ConversationMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over = sweeping._thread.hand_over
    sweeping._thread.hand_over = lambda *arguments: False  # type: ignore[method-assign]
    try:
        sessions = due(default, "a", "b")
        others = due(memories["other"], "c")
    finally:
        sweeping._thread.hand_over = handed_over  # type: ignore[method-assign]
    assert threads() == []

    request_started.send(type(default))
    assert threads() == []  # In a test of a site, a thread would work on the test's database.
    monkeypatch.delattr(mail, "outbox")
    request_started.send(type(default))

    processes.wait_until(lambda: all(map(folded, sessions)), "it is folded")
    assert not any(map(folded, others))


def test_requests_are_carried_out(default: ConversationMemory) -> None:
    append_until_due(default, "a")
    processes.wait_until(lambda: models.Summary.objects.filter(session__key="a").count() == 1, "it is folded")

    assert default.request_rebuild("a")

    processes.wait_until(lambda: models.Summary.objects.filter(session__key="a").count() > 1, "it is folded")


def test_a_request_is_refused_when_too_many_wait(default: ConversationMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    append_until_due(default, "a")
    monkeypatch.setattr(sweeping, "_HANDED_OVER", 0)

    assert not default.request_rebuild("a")
    assert default.append("a", ChatMessage.human("An append does not mind.")).due


def test_an_error_does_not_end_the_thread(
    default: ConversationMemory, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.CONVMEMORY = {
        "bad": alias_settings(scripted(replies=[ValueError("a fault of the backend")]), THREAD),
        "default": alias_settings(scheduler=THREAD),
    }
    append_until_due(memories["bad"], "a")
    processes.wait_until(lambda: "could not be folded in the background" in caplog.text, "the error is logged")

    append_until_due(memories["default"], "b")

    processes.wait_until(lambda: models.Summary.objects.filter(session__key="b").exists(), "it is folded")
    assert len(threads()) == 1


# What the second request of a process does: the first one makes the memories.
REQUESTS = """
import time
from django.core.signals import request_started
from django_convmemory import models
from django_convmemory.memory import memories

assert memories["default"].scheduler
request_started.send(None)
while models.Session.objects.due().exists():
    time.sleep(0.1)  # The thread folds meanwhile.
"""


@pytest.mark.slow
def test_a_new_process_folds_what_is_left_and_ends(tmp_path: pathlib.Path, settings: Any) -> None:
    settings.CONVMEMORY = {"default": alias_settings()}
    sessions = due(memories["default"], *"abc")

    process = processes.start(
        tmp_path,
        *("django", "shell", "--verbosity", "0", "--command", REQUESTS),
        CONVMEMORY={"default": alias_settings(scheduler=THREAD)},
    )

    assert process.wait(processes.PATIENCE) == 0
    assert all(map(folded, sessions))
    assert list(integrity.check(models.Session.objects.all())) == []
