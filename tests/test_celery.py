"""The Celery tasks and their scheduler: which tasks are sent, when, and what the sweep does."""

from __future__ import annotations

import datetime as dt
import pathlib
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import worker_init
from django.db import transaction

from django_convmemory import clock, exceptions, models, tasks
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.scheduling import NullScheduler
from django_convmemory.sender import sender
from tests.outages import skip
from tests.ports import Port
from tests.projects import TURN, Project, append_until_due, change, configured, project, row, scripted, warnings_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("patient_broker")]


# The tasks by themselves.


@pytest.mark.parametrize("task", [tasks.compact, tasks.rebuild])
def test_a_task_for_an_alias_that_is_gone_is_dropped(task: Any, caplog: pytest.LogCaptureFixture) -> None:
    task("gone", 1)

    [warning] = warnings_of(caplog)
    assert "no alias 'gone'" in warning


def test_the_soft_limit_in_the_models_call_leaves_the_session_due(settings: Any) -> None:
    memory = configured(settings, None, model=scripted(replies=[SoftTimeLimitExceeded()]))
    session = append_until_due(memory)

    with pytest.raises(SoftTimeLimitExceeded):
        tasks.compact("default", session.pk)

    assert row(session).due_since is not None
    assert row(session).lease_expires_at is None


def test_the_limits_of_a_task_leave_a_run_its_time(settings: Any) -> None:
    memory = configured(settings, None, model=scripted(deadline=60.0))

    assert tasks.time_limits(memory) == (tasks.compact.soft_time_limit, tasks.compact.time_limit) == (450, 480)
    assert memory.options.max_run_seconds + 3 * 60 < 450


class PreparedModel(ScriptedChatModel):
    """A chat model that counts how often it was prepared."""

    prepared = 0

    def prepare(self) -> None:
        type(self).prepared += 1


class UnpreparedModel(ScriptedChatModel):
    def prepare(self) -> None:
        raise ImportError("openai")


def test_a_worker_prepares_the_models_of_all_aliases(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PreparedModel, "prepared", 0)
    prepared = {"BACKEND": f"{__name__}.PreparedModel"}
    settings.CONVMEMORY = {
        "wrong": {"MEMORY": "no.such.Memory"},
        "unprepared": {"CHAT_MODEL": {"BACKEND": f"{__name__}.UnpreparedModel"}},
        "window": {"MEMORY": "django_convmemory.memory.ConversationWindowMemory"},
        "scripted": {"CHAT_MODEL": scripted(), "FALLBACK_CHAT_MODEL": None},
        "both": {"CHAT_MODEL": prepared, "FALLBACK_CHAT_MODEL": prepared},
    }

    worker_init.send(sender=None)

    assert PreparedModel.prepared == 2
    assert [record.args for record in caplog.records if record.name == tasks.__name__] == [("wrong",), ("unprepared",)]


# Sending.


def test_what_is_rolled_back_sends_nothing(site: Project, settings: Any) -> None:
    memory = configured(settings, site)

    with transaction.atomic():
        append_until_due(memory)
        transaction.set_rollback(True)
    assert site.depth() == 0

    with transaction.atomic():
        append_until_due(memory)
        assert site.depth() == 0
    assert site.depth() == 1


def test_a_task_expires_by_the_brokers_clock_when_the_sweep_would_send_it_again(site: Project, settings: Any) -> None:
    memory = configured(settings, site)

    memory.scheduler.schedule(memory, 7, delay=2.0)

    message = site.take()
    assert message.payload[0] == ["default", 7]
    assert message.headers["timelimit"] == list(reversed(tasks.time_limits(memory)))
    assert message.headers["eta"]
    assert message.headers["expires"] is None
    assert message.properties["expiration"] == "302000"
    assert message.headers["ignore_result"]


def test_a_long_delay_is_left_to_the_sweep(local_site: Project, settings: Any) -> None:
    memory = configured(settings, local_site)

    memory.scheduler.schedule(memory, 7, delay=301.0)

    assert local_site.depth() == 0


def test_the_filesystem_can_be_the_broker(tmp_path: pathlib.Path, settings: Any) -> None:
    folders = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), str(tmp_path))
    with project("filesystem://", broker_transport_options=folders) as site:
        append_until_due(configured(settings, site))

        assert site.depth() == 1


# The sweep.


def test_the_sweep_leaves_what_is_leased_waits_or_was_just_queued(local_site: Project, settings: Any) -> None:
    memory = configured(settings, None)
    leased, waiting, queued = (append_until_due(memory, key) for key in "abc")
    skip(500)
    append_until_due(memory, "new")
    change(leased, lease_expires_at=clock.Clock(60))
    change(waiting, next_attempt_at=clock.Clock(60))
    change(queued, queued_at=clock.Clock(-200))

    configured(settings, local_site)
    tasks.sweep()

    assert local_site.depth() == 0


def test_the_sweep_sends_less_when_workers_do_not_keep_up(local_site: Project, settings: Any) -> None:
    memory = configured(settings, None)
    waiting = [append_until_due(memory, key) for key in "ab"]
    for key in "cde":
        append_until_due(memory, key)
    skip(100)
    for session in waiting:
        change(session, queued_at=clock.Clock(-61))
    configured(settings, local_site)

    tasks.sweep(limit=2)
    assert local_site.depth() == 0

    change(waiting[0], lease_expires_at=clock.Clock(60))  # A worker took it.
    tasks.sweep(limit=2)
    tasks.sweep(limit=2)
    assert local_site.depth() == 2


WINDOW: dict[str, Any] = {
    "MEMORY": "django_convmemory.memory.ConversationWindowMemory",
    "CHAT_MODEL": None,
    "OPTIONS": {},
}


@pytest.mark.parametrize(("changes", "count"), [({}, 20), (WINDOW, 300)], ids=["folded", "indexed"])
def test_a_swept_session_that_was_folded_or_indexed_has_the_next_one_sent(
    changes: dict[str, Any], count: int, local_site: Project, settings: Any
) -> None:
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], **changes}}
    memory = configured(settings, None)
    for key in "abc":
        memory.append(
            key, *[ChatMessage.human(f"Remark {number} about the cat and the sea") for number in range(count)]
        )
    first, second, _ = models.Session.objects.order_by("pk")
    skip(60)
    configured(settings, local_site)
    tasks.sweep(limit=1)
    assert local_site.take().payload[0] == ["default", first.pk]

    tasks.compact("default", first.pk, swept=True)
    assert local_site.take().payload[:2] == [["default", second.pk], {"swept": True}]
    tasks.compact("default", first.pk, swept=True)
    assert local_site.depth() == 0  # There was nothing to do.
    tasks.compact("default", second.pk)
    assert local_site.depth() == 0  # It was not swept.
    assert list(models.Session.objects.order_by("pk").values_list("due_since", flat=True))[:2] == [None, None]


def test_the_sweep_sends_for_a_memory_that_schedules_nothing(local_site: Project, settings: Any) -> None:
    append_until_due(configured(settings, None))
    assert isinstance(memories["default"].scheduler, NullScheduler)
    local_site.queue = "convmemory"

    tasks.sweep()

    assert local_site.depth() == 1


@pytest.mark.usefixtures("hanging_broker")
def test_a_sweep_without_a_broker_fails_and_leaves_all_but_one_for_the_next(settings: Any) -> None:
    memory = configured(settings, None)
    for key in "abc":
        append_until_due(memory, key)
    skip(60)
    with Port() as port, project(port.url("amqp")) as site:
        memory = configured(settings, site)
        with pytest.raises(exceptions.BrokerUnavailable):
            list(tasks.send_due(memory, limit=100))

    assert models.Session.objects.filter(queued_at__isnull=True).count() == 2


# Eager.


@pytest.mark.parametrize("propagates", [False, True])
def test_eager_tasks_fold_inside_append(propagates: bool, settings: Any) -> None:
    with project("memory://", task_always_eager=True, task_eager_propagates=propagates) as site:
        memory = configured(settings, site)

        while not memory.append("user-1", ChatMessage.human(TURN)).due:
            pass

        assert memory.load("user-1").summary is not None
        assert site.depth() == 0


@pytest.mark.parametrize("propagates", [False, True])
def test_an_eager_task_that_fails_does_not_fail_the_append(propagates: bool, settings: Any) -> None:
    with project("memory://", task_always_eager=True, task_eager_propagates=propagates) as site:
        memory = configured(settings, site, model=scripted(replies=[ZeroDivisionError()]))

        session = append_until_due(memory)

        assert "ZeroDivisionError" in row(session).last_error
        assert row(session).due_since is not None
        assert not sender().broken


@pytest.mark.parametrize("redelivered", [True, False])
def test_a_task_that_comes_back_to_the_lease_of_the_dead_is_sent_again(
    redelivered: bool, local_site: Project, settings: Any
) -> None:
    memory = configured(settings, None)
    session = append_until_due(memory)
    change(session, lease_token="a" * 32, lease_expires_at=clock.Clock(60))
    configured(settings, local_site)

    tasks.compact.push_request(delivery_info={"redelivered": redelivered})
    began = dt.datetime.now(dt.UTC)
    try:
        tasks.compact.run("default", session.pk)
    finally:
        tasks.compact.pop_request()

    assert local_site.depth() == redelivered
    ended = dt.datetime.now(dt.UTC)
    if redelivered:
        eta = dt.datetime.fromisoformat(local_site.take().headers["eta"])
        delay = dt.timedelta(seconds=memories["default"].lease_seconds + tasks._CLOCK_SKEW)
        assert began + delay <= eta <= ended + delay


# Requests by a person.


def test_what_is_asked_for_is_sent_and_done(local_site: Project, settings: Any) -> None:
    memory = configured(settings, None, model=scripted(replies=["one", "anew"]))
    session = append_until_due(memory)
    change(session, next_attempt_at=clock.Clock(600), attempts=1)
    memory.scheduler = tasks.CeleryScheduler(local_site.queue)

    assert memory.request_compaction("user-1")
    assert local_site.take().payload[:2] == [["default", session.pk], {"asked": True}]
    tasks.compact("default", session.pk)
    assert row(session).current_version == 0  # A task waits for the time of the next attempt.
    tasks.compact("default", session.pk, asked=True)
    assert row(session).current_version == 1  # A request by a person does not wait.

    assert memory.request_rebuild("user-1")
    message = local_site.take()
    assert message.headers["task"] == "convmemory.rebuild"
    assert message.payload[:2] == [["default", session.pk], {}]
    tasks.rebuild("default", session.pk)
    assert memory.load("user-1").summary == "anew"


def test_nothing_is_sent_for_a_session_that_is_not_there(local_site: Project, settings: Any) -> None:
    memory = configured(settings, local_site)
    assert not memory.request_compaction("nobody")
    assert not memory.request_rebuild("nobody")
    assert local_site.depth() == 0


@pytest.mark.usefixtures("hanging_broker")
def test_who_asks_is_told_that_the_broker_is_away(settings: Any) -> None:
    with Port() as port, project(port.url("redis")) as away:
        memory = configured(settings, away)
        append_until_due(memory)
        sender().close()
        assert not memory.request_rebuild("user-1")


def test_with_eager_tasks_what_is_asked_for_is_done_here(local_site: Project, settings: Any) -> None:
    memory = configured(settings, None, model=scripted(replies=["one", "anew"]))
    append_until_due(memory)
    memory.scheduler = tasks.CeleryScheduler(local_site.queue)
    local_site.app.conf.task_always_eager = True

    assert memory.request_compaction("user-1")
    assert memory.load("user-1").summary == "one"
    assert memory.request_rebuild("user-1")
    assert memory.load("user-1").summary == "anew"
