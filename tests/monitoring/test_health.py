"""Whether a process can serve, and whether the workers keep up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from django_convmemory import models
from django_convmemory.contrib.monitoring import views
from django_convmemory.memory import memories
from django_convmemory.rules.pause import Reason
from tests.monitoring.test_metrics import due
from tests.outages import pause_alias

pytestmark = pytest.mark.django_db

READY = {"ready": True, "reasons": []}


def asked(client: Client, address: str, **headers: Any) -> tuple[int, Any]:
    response = client.get(f"/convmemory/{address}", **headers)
    return response.status_code, json.loads(response.content)


def codes(reasons: list[views.NotReady]) -> list[tuple[str, str]]:
    return [(reason.code, reason.alias) for reason in reasons]


def test_a_process_with_its_database_is_ready(client: Client, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        assert asked(client, "health/") == (200, READY)


def test_a_model_that_is_down_takes_no_web_process_out(client: Client, authorized: dict[str, Any]) -> None:
    pause_alias(memories["default"].store, Reason.OUTAGE, "secret of the provider")

    assert asked(client, "health/") == (200, READY)
    status, answer = asked(client, "health/workers/", **authorized)
    assert (status, answer["ready"]) == (503, False)
    assert answer["reasons"] == [
        {"code": "paused", "message": "memories['default'] is paused: outage.", "alias": "default"}
    ]


def test_a_missing_migration_makes_a_process_unready(client: Client, authorized: dict[str, Any]) -> None:
    MigrationRecorder(connection).migration_qs.filter(app="convmemory", name="0001_tables").delete()

    assert asked(client, "health/") == (503, {"ready": False, "reasons": [{"code": "migrations"}]})
    _, answer = asked(client, "health/", **authorized)
    assert answer["reasons"][0]["message"].endswith("lacks 0001_tables. Run manage.py migrate.")
    assert asked(client, "health/workers/", **authorized)[0] == 503


def test_a_migration_of_a_later_release_matters_to_nobody(client: Client) -> None:
    MigrationRecorder(connection).record_applied("convmemory", "9999_later")
    assert asked(client, "health/") == (200, READY)


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_a_database_that_does_not_answer_is_named_to_nobody(
    client: Client, authorized: dict[str, Any], kind: type[Exception]
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise kind("connection to server at 10.1.2.3, user app, failed")

    known = Client()
    known.force_login(User.objects.create_user("anna"))
    with connection.execute_wrapper(refuse):
        for address in ("health/", "health/workers/"):
            assert asked(client, address) == (503, {"ready": False, "reasons": [{"code": "database"}]})
        assert "10.1.2.3" not in str(views.of_process())
        for response in (client.get("/convmemory/metrics/", **authorized), known.get("/convmemory/metrics/")):
            assert response.status_code == 503
            assert f"({kind.__name__})" in response.content.decode()
            assert "10.1.2.3" not in response.content.decode()
        assert client.get("/convmemory/metrics/").status_code == 403


def test_sessions_that_wait_too_long_are_a_reason(settings: Any) -> None:
    settings.CONVMEMORY_MONITORING = {"MAX_DUE_SECONDS": 300}
    due("a", 200)
    assert codes(views.of_work()) == []
    due("b", 400)
    assert codes(views.of_work()) == [("overdue", "default")]


def test_a_rate_limit_is_no_reason_and_a_wrong_key_is_one() -> None:
    pause_alias(memories["default"].store, Reason.RATE_LIMIT, "slow down")
    pause_alias(memories["other"].store, Reason.MISCONFIGURED, "wrong key", alias="other")
    assert codes(views.of_work()) == [("paused", "other")]


def test_neither_a_session_that_always_fails_nor_one_of_a_removed_memory_is_a_reason() -> None:
    due("a", 100_000, attempts=9)
    assert codes(views.of_work()) == []
    models.Session.objects.update(alias="gone", attempts=0)
    assert codes(views.of_work()) == []
