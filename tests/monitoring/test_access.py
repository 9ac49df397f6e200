"""Who may see what."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from django_convmemory.contrib.monitoring import conf
from tests.admin.test_sessions import staff
from tests.monitoring.conftest import TOKEN

pytestmark = pytest.mark.django_db

PROTECTED = ["/convmemory/metrics/", "/convmemory/health/workers/"]


@pytest.mark.parametrize("address", PROTECTED)
@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"bearer{TOKEN}", "Bearer ünï", f"Bearer {TOKEN}x"],
)
def test_a_stranger_sees_no_figures(client: Client, address: str, authorization: str) -> None:
    response = client.get(address, headers={"Authorization": authorization})
    assert response.status_code == 403
    assert b"default" not in response.content


@pytest.mark.parametrize("address", PROTECTED)
def test_only_staff_who_may_view_sessions_see_figures(client: Client, address: str) -> None:
    client.force_login(User.objects.create_user("visitor"))
    for browser, status in ((staff("view_session"), 200), (staff(), 403), (client, 403)):
        assert browser.get(address).status_code == status


@pytest.mark.parametrize("address", PROTECTED)
def test_without_a_token_in_the_settings_no_token_opens_anything(client: Client, address: str, settings: Any) -> None:
    settings.CONVMEMORY_MONITORING = {}
    for authorization in ("Bearer None", "Bearer ", "Bearer"):
        assert client.get(address, headers={"Authorization": authorization}).status_code == 403


@pytest.mark.parametrize("address", [*PROTECTED, "/convmemory/health/"])
def test_the_views_only_read_and_are_not_cached(client: Client, address: str, authorized: dict[str, Any]) -> None:
    assert client.post(address, **authorized).status_code == 405
    assert "no-store" in client.get(address, **authorized)["Cache-Control"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "must be a dict"),
        ({"TOKENS": "x"}, "unknown key 'TOKENS'"),
        ({"TOKEN": "short-secret"}, "at least 16"),
        ({"TOKEN": 12345678901234567890}, "TOKEN"),
        ({"MAX_DUE_SECONDS": 0}, "at least 1"),
        ({"MAX_DUE_SECONDS": "15m"}, "MAX_DUE_SECONDS"),
    ],
)
def test_wrong_settings_are_refused_without_the_token(settings: Any, wrong: Any, message: str) -> None:
    settings.CONVMEMORY_MONITORING = wrong
    with pytest.raises(ImproperlyConfigured, match=message) as error:
        conf.options()
    assert [message.id for message in checks.run_checks(tags=["convmemory"])] == ["convmemory.E014"]
    assert "short-secret" not in str(error.value)
    assert "1234567" not in str(error.value)
