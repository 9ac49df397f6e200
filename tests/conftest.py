from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest
from django.test import TransactionTestCase

from tests import servers, settings, tiers

if TYPE_CHECKING:
    from pytest_django import DjangoDbBlocker

    from django_convmemory.store import Store
    from tests import projects
    from tests.openai_server import OpenAIServer

pytest_plugins = ["django_convmemory.testing"]

# No deadline: a slow machine is not a failure. The blob that is printed replays a failed example.
# In CI, the examples depend on the commit only, so that a change does not fail because of an old defect.
hypothesis.settings.register_profile("usual", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("usual"), max_examples=1000)
# For the quick tier.
hypothesis.settings.register_profile("few", hypothesis.settings.get_profile("usual"), max_examples=20)
hypothesis.settings.load_profile("usual")


_why_absent = functools.cache(servers.why_absent)


def pytest_report_header() -> str:
    return f"database: {settings.DATABASE}{f', {settings.PARTITIONS} partitions' if settings.PARTITIONS else ''}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, default=tiers.RELEASE, help="see tests/tiers.py")


def pytest_configure(config: pytest.Config) -> None:
    for marker in tiers.MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("tier") == tiers.QUICK and not config.getoption("hypothesis_profile"):
        hypothesis.settings.load_profile("few")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what another tier or another database runs."""
    tier = config.getoption("tier")
    chosen = {item: tiers.runs(_needs(item), tier, settings.DATABASE) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not chosen[item]])
    items[:] = [item for item in items if chosen[item]]


def _needs(item: pytest.Item) -> tiers.Needs:
    only_on = item.get_closest_marker("only_on")
    return tiers.Needs(
        database=_uses_database(item),
        only_on=only_on.args if only_on else (),
        slow=item.get_closest_marker("slow") is not None
        or not tiers.SLOW_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())),
        vendors=item.get_closest_marker("vendors") is not None,
        release=item.get_closest_marker("release") is not None,
    )


def _uses_database(item: pytest.Item) -> bool:
    return (
        item.get_closest_marker("django_db") is not None
        or not {"db", "transactional_db"}.isdisjoint(getattr(item, "fixturenames", ()))
        or issubclass(getattr(item, "cls", None) or object, TransactionTestCase)
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    measured = [row for report in terminalreporter.stats.get("passed", []) for row in report.user_properties]
    if measured:
        terminalreporter.section("measured")
        for name, value in measured:
            terminalreporter.line(f"{name}: {value}")
    if absent := os.environ.get(servers.ABSENT):
        terminalreporter.section("not available, so not tested on", sep="=", yellow=True, bold=True)
        terminalreporter.line(absent)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Partition the messages of the test database, if the tests are to run on partitions."""
    if settings.PARTITIONS:
        from django.core.management import call_command

        with django_db_blocker.unblock():
            call_command("convmemory_partition", partitions=settings.PARTITIONS, verbosity=0)


@pytest.fixture(params=list(servers.BROKERS))
def broker_url(request: pytest.FixtureRequest) -> str:
    """The URL of each message broker in turn. Tests run in parallel, so the name of a queue must be unique."""
    reason = _why_absent(request.param)
    if reason and servers.REQUIRED:
        pytest.fail(f"{request.param} is required but not available: {reason}")
    if reason:
        pytest.skip(f"{request.param} is not available: {reason}")
    return servers.BROKERS[request.param]


@pytest.fixture(params=["orm", "in_memory"])
def store(request: pytest.FixtureRequest, db: None) -> Store:
    """Each of the two stores in turn."""
    from django_convmemory.store import in_memory, orm

    return orm.ORMStore() if request.param == "orm" else in_memory.InMemoryStore()


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    """A provider's server that does what the test tells it."""
    from tests.openai_server import OpenAIServer

    with OpenAIServer() as started:
        yield started


@pytest.fixture
def patient_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the broker a minute for each step that a request allows less than a second: this machine may be busy.

    After a failure the broker is left alone until the test moves the clock.
    """
    from tests import processes

    for name in ("BROKER_TIMEOUT", "LONGEST_SEND"):
        monkeypatch.setattr(f"django_convmemory.sender.{name}", processes.PATIENCE)
    monkeypatch.setattr("django_convmemory.sender.BREAKER_SECONDS", 60 * processes.PATIENCE)


@pytest.fixture
def hanging_broker(patient_broker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for a broker that never answers."""
    monkeypatch.setattr("django_convmemory.sender.BROKER_TIMEOUT", 0.1)


@pytest.fixture
def site(broker_url: str, patient_broker: None) -> Iterator[projects.Project]:
    """A project on a real broker."""
    from tests import projects

    with projects.project(broker_url, real=broker_url) as made:
        yield made


@pytest.fixture
def local_site(patient_broker: None) -> Iterator[projects.Project]:
    """A project whose broker is this process."""
    from tests import projects

    with projects.project("memory://") as made:
        yield made
