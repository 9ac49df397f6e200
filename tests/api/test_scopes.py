"""Scopes: users, visitors, teams and tenants, and how a site authenticates them."""

from __future__ import annotations

import datetime as dt
import os
import sys
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.backends.db import SessionStore
from django.test import RequestFactory
from django.urls import include, path
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api.scopes import VISITOR, UserOrVisitorScope, UserScope, adopt_at_login
from django_convmemory.operations.handles import SessionHandle
from tests import processes
from tests.api.conftest import FIRST, ROOT, SECOND, client_of, messages_body, row_of, url_of
from tests.api.test_hard_input import assert_problem
from tests.api.test_page import names_of


@pytest.fixture
def visitors(settings: Any) -> None:
    settings.CONVMEMORY_API = {"SCOPE": "django_convmemory.api.scopes.UserOrVisitorScope"}


@pytest.mark.django_db
@pytest.mark.usefixtures("visitors")
def test_a_visitor_keeps_conversations_as_long_as_the_cookie() -> None:
    browser, other = APIClient(), APIClient()
    assert browser.get(ROOT).json()["results"] == []
    assert not browser.cookies  # A visitor who only reads gets no cookie.
    created = browser.post(ROOT, {"key": "main"})
    assert created.status_code == 201
    assert models.Session.objects.get().visitor == browser.session[VISITOR]
    assert browser.post(f"{created['Location']}messages/", messages_body("hello")).status_code == 201
    assert [session["key"] for session in browser.get(ROOT).json()["results"]] == ["main"]
    assert other.get(created["Location"]).status_code == 404
    # Another visitor may use the same key.
    assert other.post(ROOT, {"key": "main"}).status_code == 201


@pytest.mark.usefixtures("visitors")
def test_at_login_the_user_adopts_the_visitors_sessions(anna: User) -> None:
    browser = APIClient()
    created = browser.post(ROOT, {"key": "main"})
    user_logged_in.connect(adopt_at_login)
    try:
        browser.force_login(anna)
        APIClient().force_login(anna)  # a client that was never a visitor
    finally:
        user_logged_in.disconnect(adopt_at_login)
    assert browser.get(created["Location"]).json()["key"] == "main"
    assert VISITOR not in browser.session


@pytest.mark.django_db
@pytest.mark.usefixtures("visitors")
def test_several_first_requests_of_a_visitor_get_the_same_id(rf: RequestFactory) -> None:
    stored = SessionStore()
    stored.create()
    scopes = []
    for _ in range(2):
        request: Any = rf.post("/")
        request.session = SessionStore(stored.session_key)
        request.user = AnonymousUser()
        scopes.append(UserOrVisitorScope(Request(request)))
    assert scopes[0].whose() == scopes[1].whose()


class Device:
    """An authentication class for machines may return such an object instead of a user."""

    is_authenticated = True

    def __init__(self, pk: int) -> None:
        self.pk = pk


def test_an_object_that_is_not_a_user_reaches_no_sessions(anna: User, chat: SessionHandle) -> None:
    client = APIClient()
    client.force_authenticate(Device(anna.pk))  # type: ignore[arg-type]
    assert client.get(ROOT).status_code == 403
    assert client.delete(url_of(chat)).status_code == 403


class OnlyOwners(BasePermission):
    """Everybody in the team may read a session, and only its owner may change it."""

    def has_object_permission(self, request: Any, view: Any, obj: Any) -> bool:
        return bool(request.method == "GET" or obj.owner == request.user)


def test_permission_classes_see_the_session(anna: User, chat: SessionHandle, settings: Any) -> None:
    settings.CONVMEMORY_API = {
        "SCOPE": "tests.api.test_scopes.TeamScope",
        "PERMISSION_CLASSES": ["tests.api.test_scopes.OnlyOwners"],
    }
    berta = User.objects.create_user("berta")
    Group.objects.create(name="support").user_set.add(anna, berta)
    assert client_of(berta).get(url_of(chat)).status_code == 200
    assert_problem(client_of(berta).delete(url_of(chat)), 403, "permission_denied")
    assert client_of(berta).patch(url_of(chat), {"title": "x"}).status_code == 403
    assert client_of(anna).patch(url_of(chat), {"title": "x"}).status_code == 200


class DistinctScope(UserScope):
    """A scope with a join, and distinct rows."""

    def sessions(self) -> models.SessionQuerySet:
        return models.Session.objects.filter(owner__groups__in=self.user.groups.all()).distinct()


def test_a_session_is_listed_once(anna: User, chat: SessionHandle, settings: Any) -> None:
    settings.CONVMEMORY_API = {"SCOPE": "tests.api.test_scopes.DistinctScope"}
    for name in ("support", "sales", "board"):
        Group.objects.create(name=name).user_set.add(anna)
    assert [session["key"] for session in client_of(anna).get(ROOT).json()["results"]] == ["main"]


def test_a_forged_address_does_not_evade_throttles(settings: Any, visitors: None, db: None) -> None:
    settings.REST_FRAMEWORK = settings.REST_FRAMEWORK | {"DEFAULT_THROTTLE_RATES": {"convmemory_create": "2/min"}}
    codes = [
        APIClient().post(ROOT, {}, headers={"X-Forwarded-For": f"10.0.0.{number}" * 100}).status_code
        for number in range(3)
    ]
    assert codes == [201, 201, 429]


@pytest.mark.django_db
@pytest.mark.usefixtures("visitors")
@pytest.mark.parametrize("method", ["post", "patch", "delete"])
def test_another_site_cannot_speak_for_a_visitor(method: str) -> None:
    browser = APIClient(enforce_csrf_checks=True)
    browser.get("/admin/login/")
    token = browser.cookies["csrftoken"].value
    created = browser.post(ROOT, {}, headers={"X-CSRFToken": token})
    assert created.status_code == 201
    assert_problem(getattr(browser, method)(ROOT if method == "post" else created["Location"], {}), 403, "csrf_failed")
    allowed = getattr(browser, method)(
        ROOT if method == "post" else created["Location"], {}, headers={"X-CSRFToken": token}
    )
    assert allowed.status_code < 300


@pytest.mark.usefixtures("visitors")
def test_without_session_middleware_visitors_are_refused(anna: User, settings: Any) -> None:
    left_out = ("django.contrib.sessions", "django.contrib.auth", "django.contrib.messages")
    settings.MIDDLEWARE = [path for path in settings.MIDDLEWARE if not path.startswith(left_out)]
    assert APIClient().get(ROOT).status_code == 403
    client = APIClient()
    client.force_authenticate(anna)
    assert client.get(ROOT).status_code == 200


# The sessions of all users who share a group with the user.
TeamScope = names_of(5)["TeamScope"]


def test_a_team_shares_its_sessions(anna: User, chat: SessionHandle, settings: Any) -> None:
    settings.CONVMEMORY_API = {"SCOPE": "tests.api.test_scopes.TeamScope"}
    berta, carla = (User.objects.create_user(name) for name in ("berta", "carla"))
    for name in ("support", "sales"):
        Group.objects.create(name=name).user_set.add(anna, berta)
    theirs = client_of(berta)
    assert [session["key"] for session in theirs.get(ROOT).json()["results"]] == ["main"]
    assert theirs.post(url_of(chat, "messages/"), messages_body("me too")).status_code == 201
    assert row_of(chat).last_position == 3
    assert theirs.patch(url_of(chat), {"title": "Ours"}).status_code == 200
    copy = theirs.post(url_of(chat, "fork/"), {"at": SECOND, "key": "hers"})
    assert copy.status_code == 201
    assert models.Session.objects.get(key="hers").owner == berta
    assert client_of(carla).get(url_of(chat)).status_code == 404
    assert theirs.delete(url_of(chat)).status_code == 204


class TenantScope(UserScope):
    """The sessions of the tenant that the address names."""

    def sessions(self) -> models.SessionQuerySet:
        assert self.request.resolver_match is not None
        tenant = self.request.resolver_match.kwargs["tenant"]
        return super().sessions().filter(metadata__tenant=tenant)


class Tenants:
    urlpatterns = [
        path("<slug:tenant>/memory/", include("django_convmemory.api.urls")),
        path(
            "<slug:tenant>/<str:version>/<int:position>/", include(("django_convmemory.api.urls", "v"), namespace="v")
        ),
    ]


def test_addresses_may_begin_with_parameters_of_the_site(api: APIClient, chat: SessionHandle, settings: Any) -> None:
    models.Session.objects.update(metadata={"tenant": "acme"})
    settings.ROOT_URLCONF = Tenants
    settings.CONVMEMORY_API = {"SCOPE": "tests.api.test_scopes.TenantScope"}
    (session,) = api.get("/acme/memory/sessions/").json()["results"]
    assert session["url"] == f"http://testserver/acme/memory/sessions/{session['id']}/"
    assert api.get(session["url"]).status_code == 200
    assert api.get(f"{session['url']}messages/{FIRST}/").status_code == 200
    assert api.get(f"/other/memory/sessions/{session['id']}/").status_code == 404
    for tenant, found in (("acme", {session["url"]}), ("other", set())):
        hits = api.get(f"/{tenant}/memory/search/?q=Rust").json()["results"]
        assert {hit["session"]["url"] for hit in hits} == found
    # The site's parameters may have the same names as those of the API.
    [session] = api.get("/acme/v2/7/sessions/").json()["results"]
    assert session["url"] == f"http://testserver/acme/v2/7/sessions/{session['id']}/"
    assert api.get(session["url"]).status_code == 200
    assert api.post(f"{session['url']}messages/", messages_body("a")).status_code == 201


def test_times_are_right_on_a_site_without_time_zones(api: APIClient, settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Tokyo"
    created = api.post(ROOT, {"key": "now"}).json()
    api.post(f"{ROOT}{created['id']}/messages/", messages_body("hello"))
    (message,) = api.get(f"{ROOT}{created['id']}/messages/").json()["results"]
    now = dt.datetime.now(dt.UTC)
    for time in (created["created_at"], created["updated_at"], message["created_at"]):
        assert abs(now - dt.datetime.fromisoformat(time)) < dt.timedelta(minutes=5)
    before, after = ((now + dt.timedelta(minutes=each)).strftime("%Y-%m-%dT%H:%M:%SZ") for each in (-5, 5))
    assert len(api.get(f"{ROOT}?created_after={before}&created_before={after}").json()["results"]) == 1
    assert api.get(f"{ROOT}?created_after={after}").json()["results"] == []
    assert api.get(f"{ROOT}?created_before={before}").json()["results"] == []
    for edge in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"):
        assert api.get(f"{ROOT}?created_before={edge}").status_code in (200, 400)


@pytest.mark.slow
def test_the_sites_drf_settings_change_nothing() -> None:
    # DRF reads some of its settings at import, so this takes a process of its own.
    files = [f"tests/api/test_{name}.py" for name in ("context", "hard_input", "messages", "owners", "sessions")]
    options = ["-q", "-n0", "--tier=quick", "--ds=tests.api.hostile_settings"]
    processes.output_of(
        [sys.executable, "-m", "pytest", *options, *files],
        environment={**os.environ, "CONVMEMORY_TEST_DATABASE": "sqlite"},
    )


def test_json_web_tokens(anna: User, settings: Any) -> None:
    from rest_framework_simplejwt.tokens import AccessToken

    tokens = "rest_framework_simplejwt.authentication.JWTAuthentication"
    settings.CONVMEMORY_API = {"AUTHENTICATION_CLASSES": [tokens]}
    settings.SIMPLE_JWT = {"SIGNING_KEY": "of at least thirty-two bytes in length"}
    client = APIClient()
    client.force_login(anna)  # session authentication is not used
    refused = client.get(ROOT)
    assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")
    assert refused["WWW-Authenticate"].startswith("Bearer")
    client.credentials(HTTP_AUTHORIZATION="Bearer nonsense")
    assert (client.get(ROOT).status_code, client.get(ROOT).json()["code"]) == (401, "token_not_valid")
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {AccessToken.for_user(anna)}")
    assert client.post(ROOT, {}).status_code == 201
    assert models.Session.objects.get().owner == anna
