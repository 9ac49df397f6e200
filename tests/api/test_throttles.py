"""Throttles: exactly as many requests pass as the rate says, also if they come at the same time."""

from __future__ import annotations

import collections
import http.client
import threading
import uuid
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from pytest_django.live_server_helper import LiveServer
from rest_framework.test import APIClient

from django_convmemory.api.throttles import FixedWindowThrottle
from django_convmemory.operations.handles import SessionHandle
from tests import servers
from tests.api.conftest import ROOT, url_of
from tests.test_changes_at_once import InThread

AT_ONCE, RATE = 16, 5
# The login is "anna:pw".
LOGIN = {"Authorization": "Basic YW5uYTpwdw=="}


def limit(settings: Any, rate: str) -> None:
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": {"convmemory_create": rate}}


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(FixedWindowThrottle, "timer", staticmethod(lambda: seconds))


@pytest.fixture(params=["redis", "locmem"])
def counting_cache(request: pytest.FixtureRequest, settings: Any) -> None:
    """A cache whose ``incr`` is atomic."""
    entry = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    if request.param == "redis":
        reason = servers.why_absent("redis")
        if reason and not servers.REQUIRED:
            pytest.skip(f"redis is not available: {reason}")
        entry = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": servers.REDIS}
    settings.CACHES = {"default": entry | {"KEY_PREFIX": uuid.uuid4().hex}}


@pytest.mark.only_on("sqlite")
@pytest.mark.usefixtures("counting_cache")
def test_of_sixteen_requests_at_once_five_pass(
    live_server: LiveServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.CONVMEMORY_API = {"AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"]}
    limit(settings, f"{RATE}/min")
    set_clock(monkeypatch, 6_000_030.0)
    User.objects.create_user("anna", password="pw")
    barrier = threading.Barrier(AT_ONCE)

    def create() -> tuple[int, str | None]:
        connection = http.client.HTTPConnection(urlsplit(live_server.url).netloc)
        connection.connect()
        barrier.wait()
        connection.request("POST", ROOT, "{}", LOGIN | {"Content-Type": "application/json"})
        response = connection.getresponse()
        connection.close()
        return response.status, response.getheader("Retry-After")

    answers = [request.result() for request in [InThread(create) for _ in range(AT_ONCE)]]
    assert collections.Counter(answers) == {(201, None): RATE, (429, "30"): AT_ONCE - RATE}


def test_a_window_begins_with_the_full_minute(api: APIClient, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(settings, "2/min")
    statuses = []
    for seconds in (6_000_000.0, 6_000_059.9, 6_000_059.9, 6_000_060.0, 6_000_119.0, 6_000_119.5):
        set_clock(monkeypatch, seconds)
        response = api.post(ROOT, {})
        statuses.append((response.status_code, response.get("Retry-After")))
    created = (201, None)
    assert statuses == [created, created, (429, "1"), created, created, (429, "1")]


@pytest.mark.parametrize(
    ("path", "most", "rates"),
    [("messages/", 2, {"convmemory_append": "2/min"}), ("compact/", 30, {}), ("rebuild/", 30, {}), ("turns/", 20, {})],
)
def test_each_rate_limits_its_requests(
    api: APIClient,
    chat: SessionHandle,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    most: int,
    rates: Any,
) -> None:
    set_clock(monkeypatch, 6_000_000.0)  # No window ends in between.
    settings.CONVMEMORY_API = {"RESPONDER": f"{__name__}.limit"}
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": rates}
    codes = [api.post(url_of(chat, path), {}).status_code for _ in range(most + 1)]
    assert [code == 429 for code in codes] == [False] * most + [True]
    assert api.get(url_of(chat)).status_code == 200


def test_a_cache_that_is_emptied_forgets_what_it_counted(api: APIClient, settings: Any) -> None:
    limit(settings, "1/day")
    for _ in range(2):
        assert api.post(ROOT, {}).status_code == 201
        cache.clear()


# MariaDB would commit the transaction of the test when it creates the table of the cache.
@pytest.mark.only_on("sqlite", "postgresql")
@pytest.mark.parametrize("backend", ["dummy.DummyCache", "db.DatabaseCache"])
def test_another_cache_works_too(backend: str, api: APIClient, settings: Any, db: None) -> None:
    settings.CACHES = {"default": {"BACKEND": f"django.core.cache.backends.{backend}", "LOCATION": "throttle_cache"}}
    limit(settings, "1/day")
    if backend == "db.DatabaseCache":
        from django.core.management import call_command

        call_command("createcachetable", verbosity=0)
    statuses = [api.post(ROOT, {}).status_code for _ in range(2)]
    assert statuses == [201, 429 if backend == "db.DatabaseCache" else 201]
