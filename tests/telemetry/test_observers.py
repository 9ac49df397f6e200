"""Observers: what they are told, and that a broken one harms nobody."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from django_convmemory import observers
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.conf import from_settings
from django_convmemory.contrib.telemetry.observer import NAME, TelemetryOptions
from django_convmemory.messages import ChatMessage
from django_convmemory.observers import ModelCall, Observer, Run, Search
from tests import processes
from tests.folding import build, session, talk


@contextlib.contextmanager
def added(*added: Observer) -> Iterator[None]:
    for observer in added:
        observers.add(observer)
    try:
        yield
    finally:
        for observer in added:
            observers.remove(observer)


class Broken(Observer):
    """Raises an error wherever it can."""

    def folding(self, run: Run) -> contextlib.AbstractContextManager[object]:
        raise RuntimeError("at the beginning")

    @contextlib.contextmanager
    def calling(self, call: ModelCall) -> Iterator[None]:
        yield
        raise RuntimeError("at the end")

    def searching(self, search: Search) -> contextlib.AbstractContextManager[object]:
        raise RuntimeError("at the beginning")

    def loaded(self, alias: str, omitted: int) -> None:
        raise RuntimeError("in the middle")

    def headers(self) -> Mapping[str, str]:
        raise RuntimeError("in the middle")


@pytest.mark.django_db
def test_an_observer_that_fails_is_logged_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    memory = build(ScriptedChatModel(["They talked."]))
    memory.append("s", ChatMessage.human("I like parrots."))
    talk(memory, 10)

    # An observer that does nothing can be told everything.
    with added(Broken(), Observer()):
        assert memory.compact("s") == "published"
        assert memory.load("s").summary is not None
        assert memory.search("parrots", session="s")[0].position == 1
        assert observers.headers() == {}
    assert [record.name for record in caplog.records if "observer" in record.message] == [
        "django_convmemory.observers"
    ] * 5


@pytest.mark.django_db
def test_an_observer_that_swallows_errors_swallows_none_of_ours() -> None:
    class Swallowing(Observer):
        def calling(self, call: ModelCall) -> contextlib.AbstractContextManager[object]:
            return contextlib.suppress(BaseException)

    memory = build(ScriptedChatModel([KeyboardInterrupt]))
    talk(memory, 10)
    with added(Swallowing()), pytest.raises(KeyboardInterrupt):
        memory.compact("s")


class Recording(Observer):
    """Notes what begins and what ends."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextlib.contextmanager
    def calling(self, call: ModelCall) -> Iterator[None]:
        self.notes.append("begins")
        try:
            yield
        finally:
            self.notes.append("ends")


class Stopping(Observer):
    """Is interrupted by what stops the process, ``at`` the beginning or the end of a call."""

    def __init__(self, at: str, kind: type[BaseException]) -> None:
        self.at, self.kind = at, kind

    @contextlib.contextmanager
    def calling(self, call: ModelCall) -> Iterator[None]:
        if self.at == "beginning":
            raise self.kind
        yield
        raise self.kind


@pytest.mark.django_db
@pytest.mark.parametrize("at", ["beginning", "end"])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_stop_within_an_observer_stops_the_fold_and_ends_what_the_others_began(
    at: str, kind: type[BaseException]
) -> None:
    first, last, stopping = Recording(), Recording(), Stopping(at, kind)
    memory = build(ScriptedChatModel(["They talked."] * 2))
    talk(memory, 10)
    with added(first, stopping, last), pytest.raises(kind):
        memory.compact("s")
    assert first.notes == ["begins", "ends"]
    assert last.notes == ([] if at == "beginning" else ["begins", "ends"])
    # The lease was given back.
    assert session().lease_expires_at is None
    assert memory.compact("s") == "published"


@pytest.mark.slow
def test_a_site_without_telemetry_does_not_import_opentelemetry() -> None:
    # The libraries of this environment may use it. So only our own modules count.
    program = """
import sys, types
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("opentelemetry", "prometheus_client"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refused())
import django
from django.conf import settings
django.setup()
from django.core.management import call_command
call_command("check")
from django_convmemory.memory import memories
from django_convmemory import tasks
from django_convmemory.contrib.monitoring import views
memories["default"]
print([name for name in sys.modules if name.startswith(("opentelemetry", "django_convmemory.contrib.telemetry"))])
"""
    assert processes.output_of([sys.executable, "-c", program]).splitlines()[-1] == "[]"


def test_the_app_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "django_convmemory.contrib.telemetry.observer", raising=False)
    monkeypatch.delattr("django_convmemory.contrib.telemetry.observer", raising=False)
    config = AppConfig.create("django_convmemory.contrib.telemetry")

    with pytest.raises(ImproperlyConfigured, match=r"django-convmemory\[otel\]"):
        config.ready()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "must be a dict"),
        ({"SPANS": True}, "unknown key 'SPANS'"),
        ({"CONTENT": "yes"}, "CONTENT"),
        ({"CHAT_SPANS": "auto"}, "CHAT_SPANS"),
        ({"GAUGES": 1}, "GAUGES"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, wrong: Any, message: str) -> None:
    settings.CONVMEMORY_TELEMETRY = wrong
    with pytest.raises(ImproperlyConfigured, match=message):
        from_settings(TelemetryOptions, NAME)
