"""``manage.py convmemory_sweep``, once and watching."""

from __future__ import annotations

import contextlib
import io
import logging
import pathlib
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_convmemory import clock, exceptions, models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from tests import processes
from tests.openai_server import Behaviour, OpenAIServer
from tests.outages import skip
from tests.projects import TURN, Project, append_until_due, asking, configured, scripted
from tests.test_celery import PreparedModel
from tests.test_changes_at_once import InThread

pytestmark = pytest.mark.django_db(transaction=True)

NULL = {"BACKEND": "django_convmemory.scheduling.NullScheduler"}
CELERY = {"BACKEND": "django_convmemory.tasks.CeleryScheduler"}


def alias_settings(model: dict[str, Any] | None = None, scheduler: dict[str, Any] = NULL) -> dict[str, Any]:
    """Return the settings of a memory that is due after few messages."""
    return {
        "OPTIONS": {"max_token_limit": 200},
        "CHAT_MODEL": model or {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
        "FALLBACK_CHAT_MODEL": None,
        "SCHEDULER": scheduler,
    }


def due(memory: ConversationMemory, *keys: str) -> list[models.Session]:
    """Make sessions due. The first of them is due longest."""
    for age, key in enumerate(reversed(keys)):
        append_until_due(memory, key)
        models.Session.objects.filter(alias=memory.alias, key=key).update(due_since=clock.Clock(-60 * age))
    return [models.Session.objects.get(alias=memory.alias, key=key) for key in keys]


def folded(session: models.Session) -> bool:
    return models.Summary.objects.filter(session=session).exists()


def sweep(**options: Any) -> str:
    out = io.StringIO()
    call_command("convmemory_sweep", stdout=out, **options)
    return out.getvalue()


@pytest.fixture
def default(settings: Any) -> ConversationMemory:
    """The memory ``default``, which only the sweep folds."""
    settings.CONVMEMORY = {"default": alias_settings()}
    return memories["default"]


# A single sweep.


def test_a_sweep_folds_the_due_sessions_and_prints_their_number(default: ConversationMemory) -> None:
    sessions = due(default, "a", "b")

    memory = "Memories: 0 paused, 0 ended early."
    assert sweep() == f"Sessions: 0 sent, 2 folded, 0 left, 0 stalled, 0 failed. {memory}\n"
    assert all(map(folded, sessions))
    assert sweep() == f"Sessions: 0 sent, 0 folded, 0 left, 0 stalled, 0 failed. {memory}\n"


def test_verbosity_0_prints_nothing(default: ConversationMemory) -> None:
    due(default, "a")

    assert sweep(verbosity=0) == ""


def test_with_a_limit_the_sessions_that_are_due_longest_are_folded(default: ConversationMemory) -> None:
    first, second, third = due(default, "a", "b", "c")

    sweep(limit=2)

    assert folded(first)
    assert folded(second)
    assert not folded(third)


def test_a_sweep_ignores_hints_but_not_the_time_of_the_next_attempt(default: ConversationMemory) -> None:
    hinted, waiting, leased = due(default, "a", "b", "c")
    rows = models.Session.objects
    rows.filter(pk=hinted.pk).update(queued_at=clock.Clock())
    rows.filter(pk=waiting.pk).update(next_attempt_at=clock.Clock(60))
    rows.filter(pk=leased.pk).update(lease_expires_at=clock.Clock(60))

    sweep()

    assert folded(hinted)
    assert not folded(waiting)
    assert not folded(leased)


def test_a_session_that_fails_does_not_stop_the_others(
    settings: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    defect, busy = ZeroDivisionError("a defect"), exceptions.ModelUnavailable("busy")
    settings.CONVMEMORY = {"default": alias_settings(scripted(replies=[defect, busy, "They spoke of a cat."]))}
    sessions = due(memories["default"], "a", "b", "c")

    with pytest.raises(CommandError) as raised:
        call_command("convmemory_sweep")

    assert raised.value.returncode == 1
    assert "1 folded, 0 left, 1 stalled, 1 failed" in capsys.readouterr().out
    assert [folded(session) for session in sessions] == [False, False, True]
    assert any(f"session {sessions[0].pk} failed" in record.getMessage() for record in caplog.records)


def test_a_paused_alias_is_left_alone(settings: Any) -> None:
    model = scripted(replies=[exceptions.ModelMisconfigured("no such key"), "They spoke of a cat."])
    settings.CONVMEMORY = {"default": alias_settings(model)}
    sessions = due(memories["default"], "a", "b")

    for _ in range(2):
        with pytest.raises(CommandError):
            call_command("convmemory_sweep", verbosity=0)

    assert not any(map(folded, sessions))
    assert models.Attempt.objects.count() == 1


@pytest.mark.parametrize(("scheduler", "inline", "prepared"), [(NULL, False, 1), (CELERY, True, 1), (CELERY, False, 0)])
def test_the_models_are_prepared_if_the_command_folds(
    scheduler: dict[str, Any], inline: bool, prepared: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PreparedModel, "prepared", 0)
    settings.CONVMEMORY = {"default": alias_settings({"BACKEND": "tests.test_celery.PreparedModel"}, scheduler)}

    call_command("convmemory_sweep", inline=inline, verbosity=0)

    assert PreparedModel.prepared == prepared


def test_an_alias_can_be_chosen(settings: Any) -> None:
    settings.CONVMEMORY = {"default": alias_settings(), "support": alias_settings(), "sales": alias_settings()}
    [default], [support], [sales] = (due(memories[name], "a") for name in ("default", "support", "sales"))

    sweep(alias=["support", "sales"])

    assert [folded(session) for session in (default, support, sales)] == [False, True, True]


def test_aliases_take_turns(settings: Any) -> None:
    settings.CONVMEMORY = {"default": alias_settings(), "support": alias_settings()}
    for name in ("default", "support"):
        due(memories[name], "a", "b")

    sweep()

    order = models.Attempt.objects.order_by("pk").values_list("alias", flat=True)
    assert list(order) == ["default", "support", "default", "support"]


@pytest.mark.parametrize(("name", "error"), [("removed", "no alias"), ("window", "makes no summaries and no index")])
def test_an_alias_that_cannot_be_swept_is_an_error(name: str, error: str, settings: Any) -> None:
    window = {
        "MEMORY": "django_convmemory.memory.ConversationWindowMemory",
        "SCHEDULER": NULL,
        "OPTIONS": {"index": False},
    }
    settings.CONVMEMORY = {"default": alias_settings(), "window": window}

    with pytest.raises(CommandError, match=error) as raised:
        sweep(alias=[name])

    assert raised.value.returncode == 2
    sweep()  # A sweep of all aliases leaves out those without summaries.


@pytest.mark.parametrize("option", ["--limit=0", "--interval=0", "--interval=soon"])
def test_an_option_out_of_range_is_refused(option: str) -> None:
    with pytest.raises(CommandError):
        call_command("convmemory_sweep", option)


def test_with_celery_a_sweep_sends_tasks(default: ConversationMemory, local_site: Project, settings: Any) -> None:
    sessions = due(default, "a", "b")
    skip(60)
    configured(settings, local_site)

    assert sweep().startswith("Sessions: 2 sent, 0 folded")
    assert local_site.depth() == 2
    assert not any(map(folded, sessions))
    assert sweep().startswith("Sessions: 0 sent")


@pytest.mark.usefixtures("default")
def test_inline_folds_in_this_process_even_with_celery(local_site: Project, settings: Any) -> None:
    [session] = due(configured(settings, local_site), "a")
    assert local_site.depth() == 1

    sweep(inline=True)

    assert folded(session)
    assert local_site.depth() == 1


def test_a_sweep_without_a_broker_fails(
    default: ConversationMemory, local_site: Project, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    due(default, "a")
    skip(60)
    configured(settings, local_site)
    local_site.app.conf.update(broker_url="amqp://127.0.0.1:1//")

    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("convmemory_sweep", stdout=out)

    assert "0 failed. Memories: 0 paused, 1 ended early." in out.getvalue()
    assert any(record.levelno == logging.WARNING and "broker" in record.getMessage() for record in caplog.records)


def test_a_long_session_is_folded_to_the_end(settings: Any) -> None:
    settings.CONVMEMORY = {
        "default": {**alias_settings(), "OPTIONS": {"max_token_limit": 200, "max_chunk_tokens": 150}}
    }
    memory = memories["default"]
    memory.append("a", *[ChatMessage.human(TURN) for _ in range(30)])

    sweep()

    session = models.Session.objects.get()
    assert session.due_since is None
    assert session.last_version > 5


def test_two_sweeps_at_once_fold_each_session_once(default: ConversationMemory) -> None:
    sessions = due(default, *"abcdefgh")

    sweeps = [InThread(sweep) for _ in range(2)]
    for each in sweeps:
        each.result()

    assert [list(session.convmemory_summaries.values_list("version", flat=True)) for session in sessions] == [[1]] * 8


# Sweeping with --watch.


@contextlib.contextmanager
def watching(folder: pathlib.Path, memory: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that sweeps until it gets a signal. It must end well."""
    command = ("django", "convmemory_sweep", "--watch", "--interval", "0.1")
    process = processes.start(folder, *command, CONVMEMORY={"default": memory})
    try:
        yield process
    finally:
        assert processes.stop(process) == 0
    assert "Traceback" not in (folder / "output").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_watching_folds_due_sessions_until_a_signal_stops_it(
    number: signal.Signals, default: ConversationMemory, tmp_path: pathlib.Path
) -> None:
    [first] = due(default, "a")
    with watching(tmp_path, alias_settings()) as process:
        processes.wait_until(lambda: folded(first), "the first session is folded")
        [second] = due(default, "b")
        processes.wait_until(lambda: folded(second), "the second session is folded")
        process.send_signal(number)

        assert process.wait(processes.PATIENCE) == 0
    assert (tmp_path / "output").read_text().count("1 folded") == 2


@pytest.mark.slow
def test_a_signal_during_a_model_call_keeps_the_calls_summary(
    server: OpenAIServer, settings: Any, tmp_path: pathlib.Path
) -> None:
    server.default = Behaviour(latency=1.0)
    long = {**alias_settings(asking(server)), "OPTIONS": {"max_token_limit": 200, "max_chunk_tokens": 150}}
    settings.CONVMEMORY = {"default": long}
    memories["default"].append("a", *[ChatMessage.human(TURN) for _ in range(30)])
    [other] = due(memories["default"], "b")
    with watching(tmp_path, long):
        # At the end it gets a signal.
        assert server.wait_for(lambda log: len(log) == 1, processes.PATIENCE)

    session = models.Session.objects.get(key="a")
    assert session.last_version == len(server.log) == 1
    assert session.due_since is not None
    assert session.lease_token == ""
    assert session.last_error == ""
    assert not folded(other)


@pytest.mark.slow
def test_watching_continues_after_a_failure(
    server: OpenAIServer, default: ConversationMemory, tmp_path: pathlib.Path
) -> None:
    server.queue(Behaviour("raw", status=500, body="down"))
    [session] = due(default, "a")
    with watching(tmp_path, alias_settings(asking(server))) as process:
        assert server.wait_for(lambda log: len(log) == 1, processes.PATIENCE)
        processes.wait_until(lambda: folded(session), "the session is folded when its next attempt is due")
        assert process.poll() is None
