"""Who may do what: every address of the admin, for everybody, as docs/reference/admin.md says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.admin.test_sessions import LIST, staff

NAME = "convmemory_session"
# The members of the staff, by their permissions, and others. None: a superuser.
STAFF: dict[str, tuple[str, ...] | None] = {
    "nothing": (),
    "other models": ("view_message", "view_summary", "view_attempt"),
    "view": ("view_session",),
    "change": ("change_session",),
    "delete": ("delete_session",),
    "all but delete": ("view_session", "change_session", "add_session"),
    "all but change": ("view_session", "delete_session", "add_session"),
    "redact": ("change_message",),
    "view and redact": ("view_session", "change_message"),
    "superuser": None,
}
SEE = {"view", "change", "all but delete", "all but change", "view and redact", "superuser"}
CHANGE = {"change", "all but delete", "superuser"}
DELETE = {"delete", "all but change", "superuser"}
REDACT = {"view and redact", "superuser"}
EVERYBODY = set(STAFF)


class Address(NamedTuple):
    """What an address answers to the staff in ``may``. Others of the staff get 403."""

    path: str
    may: set[str]
    get: int
    post: int


# By the name of the address. A 405 stands where the method is refused.
ADDRESSES = {
    f"{NAME}_changelist": Address("", SEE, 200, 200),
    f"{NAME}_add": Address("add/", set(), 200, 200),
    f"{NAME}_overview": Address("overview/", SEE, 200, 200),
    f"{NAME}_retry": Address("retry/", CHANGE, 405, 302),
    f"{NAME}_change": Address("{pk}/change/", SEE, 200, 405),
    f"{NAME}_history": Address("{pk}/history/", SEE, 200, 200),
    f"{NAME}_export": Address("{pk}/export/", SEE, 200, 200),
    f"{NAME}_compact": Address("{pk}/compact/", CHANGE, 405, 302),
    f"{NAME}_rebuild": Address("{pk}/rebuild/", CHANGE, 405, 302),
    # These ask first.
    f"{NAME}_clear": Address("{pk}/clear/", DELETE, 405, 200),
    f"{NAME}_redact": Address("{pk}/redact/1/", REDACT, 405, 200),
    # Django's own deletion is not used: it fetches every message.
    f"{NAME}_delete": Address("{pk}/delete/", DELETE, 405, 200),
    # Django's old address of the page redirects to it.
    None: Address("{pk}/", EVERYBODY, 302, 302),
}


@pytest.fixture
def session(db: None) -> models.Session:
    handle = memories["default"].session("main", owner=User.objects.create_user("anna"))
    handle.append(ChatMessage.human("I like parrots."), ChatMessage.ai("Good."))
    models.Session.objects.update(title="Parrots")
    return models.Session.objects.get()


def client_of(person: str) -> Client:
    permissions = STAFF[person]
    if permissions is not None:
        return staff(*permissions)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def answers(client: Client, session: models.Session, method: str) -> Iterator[tuple[str | None, Address, Any]]:
    for name, address in ADDRESSES.items():
        yield name, address, getattr(client, method)(LIST + address.path.format(pk=session.pk))


def stored() -> list[Any]:
    return [list(model._default_manager.order_by("pk").values()) for model in (models.Session, models.Message)]


def test_every_address_is_in_the_table() -> None:
    names = [pattern.name for pattern in admin.site.get_model_admin(models.Session).get_urls()]
    assert sorted(map(str, set(names))) == sorted(map(str, ADDRESSES))
    ours = [model for model in admin.site._registry if model._meta.app_label == "convmemory"]
    assert ours == [models.Session]


@pytest.mark.parametrize("person", STAFF)
@pytest.mark.parametrize("method", ["get", "post"])
def test_who_may_do_what(session: models.Session, person: str, method: str) -> None:
    client = client_of(person)
    for name, address, answer in answers(client, session, method):
        expected = getattr(address, method) if person in address.may else 403
        assert answer.status_code == expected, (person, method, name)
        if expected == 403:
            content = answer.content.decode()
            assert "Parrots" not in content, (person, method, name)
            assert "anna" not in content, (person, method, name)


def test_nothing_is_changed_by_another_method_or_by_those_who_may_only_look(session: models.Session) -> None:
    before = stored()
    for person, methods in (("superuser", ("get", "put", "patch", "delete")), ("view", ("post",))):
        client = client_of(person)
        for method in methods:
            list(answers(client, session, method))
    chosen = {"action": "delete_selected", "_selected_action": [session.pk], "post": "yes", "confirmed": "yes"}
    for address in ADDRESSES.values():
        client.post(LIST + address.path.format(pk=session.pk), chosen | {"key": "x"})
    assert stored() == before


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("logged_in", [False, True])
def test_everybody_else_is_asked_to_log_in(session: models.Session, method: str, logged_in: bool) -> None:
    client = Client()
    if logged_in:
        client.force_login(User.objects.get(username="anna"))
    before = stored()
    for name, address, answer in answers(client, session, method):
        path = LIST + address.path.format(pk=session.pk)
        assert (answer.status_code, answer.headers["Location"]) == (302, f"/admin/login/?next={path}"), name
    assert stored() == before


def test_a_request_that_another_site_forges_is_refused(session: models.Session) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("root"))
    before = stored()
    for name, _address, answer in answers(client, session, "post"):
        assert answer.status_code == 403, name
    assert stored() == before
