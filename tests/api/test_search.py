"""Search over HTTP: in one session, and in all sessions that the request reaches."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from rest_framework.permissions import BasePermission
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.search.searching import MAX_HITS
from tests.api.conftest import client_of, row_of, url_of
from tests.api.test_hard_input import assert_problem

pytestmark = pytest.mark.vendors

ALL = "/api/memory/search/"


def session_of(owner: User | None = None, *texts: str, key: str = "talk", **scope: Any) -> SessionHandle:
    """A conversation in which ``texts`` were said, by the user and the assistant in turns."""
    session = memories["default"].session(key, **({"owner": owner} if owner else scope))
    session.append(*[ChatMessage.ai(text) if n % 2 else ChatMessage.human(text) for n, text in enumerate(texts)])
    return session


def texts_of(response: Any) -> list[str]:
    """The excerpts of the hits, as a page would show them."""
    assert response.status_code == 200, response.content
    return ["".join(piece["text"] for piece in hit["excerpt"]) for hit in response.json()["results"]]


@pytest.fixture
def allergy(anna: User) -> SessionHandle:
    texts = (
        "Hello.",
        "Hello, Anna.",
        "My sister has an allergy to peanuts 🥜, says the doctor.",
        "I will remember it.",
    )
    return session_of(anna, *texts)


def test_a_hit_says_where_a_message_is_and_which_words_match(api: APIClient, allergy: SessionHandle) -> None:
    row = row_of(allergy)
    models.Session.objects.update(title="Food")
    found = api.get(url_of(allergy, "search/"), {"q": "Who has allergies? A doctor?", "limit": "1"}).json()
    [hit] = found["results"]
    assert hit == {
        "position": 3,
        "created_at": allergy.history()[2].created_at.isoformat().replace("+00:00", "Z"),
        "role": "user",
        "excerpt": [
            {"text": "My sister has an ", "marked": False},
            {"text": "allergy", "marked": True},
            {"text": " to peanuts 🥜, says the ", "marked": False},
            {"text": "doctor", "marked": True},
            {"text": ".", "marked": False},
        ],
        "session": {
            "id": str(row.public_id),
            "url": f"http://testserver{url_of(allergy)}",
            "title": "Food",
            "archived": False,
        },
        "neighbours": [],
    }
    assert (found["complete"], found["previous"]) == (True, None)
    everywhere = api.get(ALL, {"q": "allergies doctor", "limit": "1"}).json()
    assert everywhere["results"] == found["results"]


def test_positions_bound_a_search(api: APIClient, anna: User) -> None:
    session = session_of(anna, *[f"heron {number}" for number in range(1, 8)])
    found = api.get(url_of(session, "search/"), {"q": "heron", "after": "2", "before": "6"}).json()
    assert sorted(hit["position"] for hit in found["results"]) == [3, 4, 5]


def test_neighbours_come_if_asked_for(api: APIClient, allergy: SessionHandle) -> None:
    allergy.redact(2)
    found = api.get(url_of(allergy, "search/"), {"q": "peanuts", "neighbours": "1"}).json()
    [hit] = [hit for hit in found["results"] if hit["position"] == 3]
    stored = {message["position"]: message for message in api.get(url_of(allergy, "messages/")).json()["results"]}
    for neighbour in hit["neighbours"]:
        left_out = {"id", "usage", "format", "item"}
        message = stored[neighbour["position"]]
        assert neighbour == {name: value for name, value in message.items() if name not in left_out}
    assert [(neighbour["position"], neighbour["redacted"]) for neighbour in hit["neighbours"]] == [
        (2, True),
        (4, False),
    ]


def test_pages_have_every_hit_once_and_lead_back(api: APIClient, anna: User) -> None:
    session = session_of(anna, *[f"heron {number}" for number in range(45)])
    whole = [hit["position"] for hit in api.get(url_of(session, "search/"), {"q": "heron"}).json()["results"]]
    assert len(whole) == 45
    seen: list[int] = []
    page = api.get(url_of(session, "search/"), {"q": "heron", "limit": "20"}).json()
    assert page["previous"] is None
    pages = [page]
    while page["next"]:
        page = api.get(page["next"]).json()
        pages.append(page)
    seen = [hit["position"] for page in pages for hit in page["results"]]
    assert [len(page["results"]) for page in pages] == [20, 20, 5]
    assert seen == whole
    assert api.get(pages[2]["previous"]).json()["results"] == pages[1]["results"]
    assert api.get(pages[1]["previous"]).json() == pages[0]


def test_a_search_returns_the_best_hits_only(api: APIClient, anna: User) -> None:
    session = session_of(anna, *["heron"] * (MAX_HITS + 20))
    first = api.get(url_of(session, "search/"), {"q": "heron", "limit": str(MAX_HITS - 1)}).json()
    second = api.get(first["next"]).json()
    assert (len(first["results"]), len(second["results"]), second["next"]) == (MAX_HITS - 1, 1, None)
    assert api.get(url_of(session, "search/"), {"q": "heron", "limit": "200"}).json()["next"] is None


def test_a_page_reads_no_more_messages_with_neighbours(api: APIClient, anna: User, settings: Any) -> None:
    settings.CONVMEMORY_API = {"MAX_PAGE_SIZE": 30}
    session = session_of(anna, *["heron"] * 50)
    page = api.get(url_of(session, "search/"), {"q": "heron", "neighbours": "5"}).json()
    assert len(page["results"]) == 2
    assert page["next"] is not None


def test_an_empty_cursor_is_the_first_page(api: APIClient, allergy: SessionHandle) -> None:
    assert texts_of(api.get(ALL, {"q": "peanuts", "cursor": ""}))


# Whose messages are found.


@pytest.mark.parametrize("scope", ["TeamScope", "DistinctScope"])
def test_a_team_finds_what_the_team_has_said(anna: User, settings: Any, scope: str) -> None:
    settings.CONVMEMORY_API = {"SCOPE": f"tests.api.test_scopes.{scope}"}
    berta, carla = (User.objects.create_user(name) for name in ("berta", "carla"))
    for group in ("support", "sales"):
        Group.objects.create(name=group).user_set.add(anna, berta)
    for owner in (anna, berta, carla):
        session_of(owner, f"The heron of {owner.username}.")
    found = texts_of(client_of(berta).get(ALL, {"q": "heron"}))
    assert sorted(found) == ["The heron of anna.", "The heron of berta."]
    assert texts_of(client_of(carla).get(ALL, {"q": "heron"})) == []


class NotThePrivateOnes(BasePermission):
    """Nobody reads a session with this title through the API."""

    def has_object_permission(self, request: Any, view: Any, obj: Any) -> bool:
        return bool(obj.title != "private")


def test_a_session_that_a_permission_class_hides_is_not_searched(api: APIClient, anna: User, settings: Any) -> None:
    settings.CONVMEMORY_API = {"PERMISSION_CLASSES": ["tests.api.test_search.NotThePrivateOnes"]}
    session_of(anna, "The heron of anna.")
    session_of(anna, "A private heron.", key="private").update(title="private")
    assert texts_of(api.get(ALL, {"q": "heron"})) == ["The heron of anna."]


def test_one_memory_is_searched(api: APIClient, anna: User, settings: Any) -> None:
    settings.CONVMEMORY = dict.fromkeys(("default", "support", "hidden"), settings.CONVMEMORY["default"])
    for alias in ("default", "support", "hidden"):
        memories[alias].append(memories[alias].session("main", owner=anna), ChatMessage.human(f"The heron of {alias}."))
    assert texts_of(api.get(ALL, {"q": "heron"})) == ["The heron of default."]
    assert texts_of(api.get(ALL, {"q": "heron", "alias": "support"})) == ["The heron of support."]
    settings.CONVMEMORY_API = {"ALIASES": ["support"]}
    assert texts_of(api.get(ALL, {"q": "heron"})) == ["The heron of support."]
    for alias in ("default", "hidden"):
        assert_problem(api.get(ALL, {"q": "heron", "alias": alias}), 400, "unknown_alias", "/alias")
