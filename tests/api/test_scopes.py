"""Visitors, teams, and the ways in which a site finds out who is asking."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api.scopes import VISITOR, UserScope
from django_convmemory.handles import SessionHandle
from django_convmemory.memory import memories
from tests.api.conftest import ROOT, client_of, row_of, said, url_of

ROOT_FOLDER = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture
def visitors(settings: Any) -> None:
    settings.CONVMEMORY_API = {"SCOPE": "django_convmemory.api.scopes.UserOrVisitorScope"}


@pytest.mark.django_db
@pytest.mark.usefixtures("visitors")
def test_a_visitor_has_conversations_until_the_cookie_goes() -> None:
    browser, other = APIClient(), APIClient()
    assert browser.get(ROOT).json()["results"] == []
    assert not browser.cookies  # Who only reads gets none.
    made = browser.post(ROOT, {"key": "main"}, format="json")
    assert made.status_code == 201
    assert models.Session.objects.get().visitor == browser.session[VISITOR]
    assert browser.post(f"{made['Location']}messages/", said("hello"), format="json").status_code == 201
    assert [one["key"] for one in browser.get(ROOT).json()["results"]] == ["main"]
    assert other.get(made["Location"]).status_code == 404
    # Another visitor may use the same key.
    assert other.post(ROOT, {"key": "main"}, format="json").status_code == 201


@pytest.mark.usefixtures("visitors")
def test_at_login_the_conversations_are_claimed(anna: User) -> None:
    browser = APIClient()
    made = browser.post(ROOT, {"key": "main"}, format="json")
    visitor = browser.session[VISITOR]
    browser.force_login(anna)
    assert browser.get(made["Location"]).status_code == 404
    memories.claim(visitor, anna)
    assert browser.get(made["Location"]).json()["key"] == "main"


@pytest.mark.django_db
@pytest.mark.usefixtures("visitors")
@pytest.mark.parametrize("method", ["post", "patch", "delete"])
def test_another_site_cannot_speak_for_a_visitor(method: str) -> None:
    browser = APIClient(enforce_csrf_checks=True)
    browser.get("/admin/login/")
    token = browser.cookies["csrftoken"].value
    made = browser.post(ROOT, {}, format="json", headers={"X-CSRFToken": token})
    assert made.status_code == 201
    refused = getattr(browser, method)(ROOT if method == "post" else made["Location"], {}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf_failed")
    allowed = getattr(browser, method)(
        ROOT if method == "post" else made["Location"], {}, format="json", headers={"X-CSRFToken": token}
    )
    assert allowed.status_code < 300


@pytest.mark.usefixtures("visitors")
def test_without_the_sites_sessions_there_are_no_visitors(anna: User, settings: Any) -> None:
    left_out = ("django.contrib.sessions", "django.contrib.auth", "django.contrib.messages")
    settings.MIDDLEWARE = [one for one in settings.MIDDLEWARE if not one.startswith(left_out)]
    assert APIClient().get(ROOT).status_code == 403
    client = APIClient()
    client.force_authenticate(anna)
    assert client.get(ROOT).status_code == 200


class TeamScope(UserScope):
    """The sessions of everybody who is in a group with the user."""

    def sessions(self) -> models.SessionQuerySet:
        team = User.objects.filter(groups__in=self.user.groups.all())
        return models.Session.objects.filter(owner__in=team)


def test_a_team_shares_its_sessions(anna: User, chat: SessionHandle, settings: Any) -> None:
    settings.CONVMEMORY_API = {"SCOPE": "tests.api.test_scopes.TeamScope"}
    berta, carla = (User.objects.create_user(name) for name in ("berta", "carla"))
    for name in ("support", "sales"):
        Group.objects.create(name=name).user_set.add(anna, berta)
    theirs = client_of(berta)
    assert [one["key"] for one in theirs.get(ROOT).json()["results"]] == ["main"]
    assert theirs.post(url_of(chat, "messages/"), said("me too"), format="json").status_code == 201
    assert row_of(chat).last_position == 3
    assert theirs.patch(url_of(chat), {"title": "Ours"}, format="json").status_code == 200
    copy = theirs.post(url_of(chat, "fork/"), {"at": 2, "key": "hers"}, format="json")
    assert copy.status_code == 201
    assert models.Session.objects.get(key="hers").owner == berta
    assert client_of(carla).get(url_of(chat)).status_code == 404
    assert theirs.delete(url_of(chat)).status_code == 204


def test_a_site_adds_what_must_hold_beside(api: APIClient, settings: Any) -> None:
    settings.CONVMEMORY_API = {"PERMISSION_CLASSES": ["rest_framework.permissions.IsAdminUser"]}
    refused = api.get(ROOT)
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")


def test_the_sites_own_defaults_change_nothing() -> None:
    plain, hostile = (
        subprocess.run(
            [sys.executable, "-m", "tests.api.walk", *options],
            cwd=ROOT_FOLDER,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for options in ([], ["--hostile"])
    )
    assert [one if isinstance(one, int) else one[0] for one in json.loads(plain)] == [
        *(201, 200, 200, 200, 201, 400, 200, 200, 200, 200, 200, 400, 404, 405, 406, 200, 403)
    ]
    assert json.loads(hostile) == json.loads(plain)


def test_json_web_tokens(anna: User, settings: Any) -> None:
    from rest_framework_simplejwt.tokens import AccessToken

    tokens = "rest_framework_simplejwt.authentication.JWTAuthentication"
    settings.CONVMEMORY_API = {"AUTHENTICATION_CLASSES": [tokens]}
    settings.SIMPLE_JWT = {"SIGNING_KEY": "of at least thirty-two bytes in length"}
    client = APIClient()
    refused = client.get(ROOT)
    assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")
    assert refused["WWW-Authenticate"].startswith("Bearer")
    client.credentials(HTTP_AUTHORIZATION="Bearer nonsense")
    assert (client.get(ROOT).status_code, client.get(ROOT).json()["code"]) == (401, "token_not_valid")
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {AccessToken.for_user(anna)}")
    assert client.post(ROOT, {}, format="json").status_code == 201
    assert models.Session.objects.get().owner == anna


def test_the_sites_own_sessions_need_its_token_against_forgery(anna: User) -> None:
    browser = APIClient(enforce_csrf_checks=True)
    browser.force_login(anna)
    assert browser.post(ROOT, {}, format="json").status_code == 403
    assert models.Session.objects.count() == 0


def test_basic_authentication_for_this_api_alone(anna: User, settings: Any) -> None:
    settings.CONVMEMORY_API = {"AUTHENTICATION_CLASSES": ["rest_framework.authentication.BasicAuthentication"]}
    anna.set_password("pw")
    anna.save()
    client = APIClient()
    client.force_login(anna)  # which is not looked at
    assert client.get(ROOT).status_code == 401
    client.credentials(HTTP_AUTHORIZATION="Basic YW5uYTpwdw==")
    assert client.get(ROOT).status_code == 200


@pytest.mark.parametrize("user", [None, AnonymousUser()])
def test_nobody_is_nobody_in_any_form(user: Any) -> None:
    class Request:
        pass

    request: Any = Request()
    request.user = user
    assert not UserScope(request).admits()
