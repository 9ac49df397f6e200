"""Addresses that do not exist, or lack their slash: the response is a problem document, and no page of the site."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse
from django.urls import include, path
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.conversation import SessionHandle
from tests.api.conftest import ROOT, messages_body, row_of, url_of
from tests.api.test_hard_input import assert_problem


def page(request: Any, **kwargs: Any) -> HttpResponse:
    return HttpResponse("the site's own")


class Root:
    """A site with the API at its root, and pages of its own after it."""

    urlpatterns = [path("", include("django_convmemory.api.urls")), path("about/", page)]


class Tenants:
    """A site with the API below a parameter, and pages of its own after it."""

    urlpatterns = [path("<slug:tenant>/", include("django_convmemory.api.urls")), path("pages/about/", page)]


class Prefix:
    """A site with an address of its own below the prefix of the API."""

    urlpatterns = [
        path("api/sessions/<uuid:session_id>/reply/", page),
        path("api/", include("django_convmemory.api.urls")),
        path("about/", page),
    ]


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete", "options"])
@pytest.mark.parametrize(
    "address", ["", "nonsense/", "nonsense", "sessions/{id}/nonsense/", "sessions/{id}/messages/1/x", "search/x/"]
)
def test_an_unknown_address_has_a_problem_document(
    api: APIClient, chat: SessionHandle, address: str, method: str
) -> None:
    address = ROOT.removesuffix("sessions/") + address.replace("{id}", str(row_of(chat).public_id))
    assert_problem(getattr(api, method)(address), 404, "not_found")


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize("append_slash", [True, False])
def test_a_post_without_its_slash_is_not_redirected(
    api: APIClient, chat: SessionHandle, settings: Any, append_slash: bool, debug: bool
) -> None:
    settings.APPEND_SLASH, settings.DEBUG = append_slash, debug
    url = url_of(chat, "messages/")
    response = api.post(url.removesuffix("/"), messages_body("hello"), format="json")
    assert_problem(response, 404, "not_found")
    assert response.json()["detail"].endswith(f": {url}")
    assert_problem(api.post(ROOT.removesuffix("/"), {}, format="json"), 404, "not_found")
    assert (models.Session.objects.count(), row_of(chat).last_position) == (1, 2)


def test_a_read_without_its_slash_is_redirected_if_the_site_does_so(
    api: APIClient, chat: SessionHandle, settings: Any
) -> None:
    url = url_of(chat, "messages/")
    for method in ("get", "head"):
        redirected = getattr(api, method)(f"{url.removesuffix('/')}?limit=1")
        assert (redirected.status_code, redirected["Location"]) == (301, f"{url}?limit=1")
    settings.APPEND_SLASH = False
    assert_problem(api.get(url.removesuffix("/")), 404, "not_found")


@pytest.mark.django_db
def test_an_unknown_address_tells_nobody_more_than_a_known_one() -> None:
    known, unknown = APIClient().get(ROOT), APIClient().get(f"{ROOT}1/nonsense/")
    assert (unknown.status_code, unknown.content) == (known.status_code, known.content) == (403, known.content)


@pytest.mark.parametrize(
    ("urlconf", "prefix", "own"),
    [(Root, "/", "/about/"), (Tenants, "/acme/", "/pages/about/"), (Prefix, "/api/", "/about/")],
)
def test_the_pages_of_a_site_are_left_alone(
    api: APIClient, chat: SessionHandle, settings: Any, urlconf: Any, prefix: str, own: str
) -> None:
    settings.ROOT_URLCONF = urlconf
    for address in (own, own.removesuffix("/")):
        assert api.get(address, follow=True).content == b"the site's own"
    assert_problem(api.post(f"{prefix}sessions", {}, format="json"), 404, "not_found")
    assert_problem(api.get(f"{prefix}sessions/{row_of(chat).public_id}/nonsense/"), 404, "not_found")
    assert api.get(f"{prefix}sessions/").status_code == 200
    nonsense = api.get(f"{prefix}nonsense/")
    assert (nonsense.status_code, "problem" in nonsense["Content-Type"]) == (404, urlconf is Prefix)


def test_an_address_of_the_site_before_the_api_is_its_own(api: APIClient, chat: SessionHandle, settings: Any) -> None:
    settings.ROOT_URLCONF = Prefix
    url = f"/api/sessions/{row_of(chat).public_id}/reply"
    assert api.post(f"{url}/").content == b"the site's own"
    assert api.get(url)["Location"] == f"{url}/"
    # The prefix itself without its slash is an address of the site.
    assert "problem" not in api.post("/api")["Content-Type"]
