"""The search of the list finds titles, keys and what was said."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_convmemory import models
from django_convmemory.admin import finding, lists
from django_convmemory.admin.finding import TextSearch
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.admin.test_sessions import LIST, Sites, staff

pytestmark = pytest.mark.vendors

EVIL = "<script>alert(1)</script>"


def say(key: str, *texts: str, title: str = "", **scope: Any) -> models.Session:
    memories["default"].session(key, **scope).append(*map(ChatMessage.human, texts))
    models.Session.objects.filter(key=key).update(title=title)
    return models.Session.objects.get(key=key)


def keys(client: Client, term: str) -> list[str]:
    """Return the keys of the sessions in the list."""
    return sorted(session.key for session in client.get(LIST, {"q": term}).context["cl"].result_list)


def search(client: Client, term: str, **parameters: str) -> TextSearch:
    found: TextSearch = client.get(LIST, {"q": term, **parameters}).context["found"]
    return found


def said(found: TextSearch) -> list[tuple[str, int]]:
    return [(session.key, hit.position) for session, hit, _before in found.hits]


def test_titles_and_keys_of_the_newest_sessions_are_found(anna: User, monkeypatch: pytest.MonkeyPatch) -> None:
    say("old-trip", "hello", title="Lisbon by train", owner=anna)
    say("trip-7", "hello", title="Portugal in May", owner=anna)
    say("k3", "hello", title="100% of it", visitor="v1")
    client = staff("view_session")
    assert keys(client, "PORTUGAL in") == ["trip-7"]
    assert keys(client, "trip") == ["old-trip", "trip-7"]
    assert keys(client, "trip-7") == ["trip-7"]
    assert keys(client, "%") == ["k3"]
    assert keys(client, "in_May") == []
    monkeypatch.setattr(lists, "NEWEST", 2)
    assert keys(client, "trip") == ["trip-7"]
    assert keys(client, "anna/old-trip") == ["old-trip"]


def test_any_text_can_be_searched_for_and_any_alias_chosen(anna: User, client: Client) -> None:
    say("first", "x" * 300, title="x", owner=anna)
    # SQLite refuses patterns of 50,000 bytes, and PostgreSQL the character NUL.
    for term in ("x" * 60_000, "anna/" + "x" * 60_000, "(" * 60_000):
        assert keys(client, term) == []
    for alias, count in (("default", 1), ("nobody", 0), ("\x00", 0), ("a\x00b", 0), ("x" * 60_000, 0)):
        assert len(client.get(LIST, {"alias": alias}).context["cl"].result_list) == count


def test_what_was_said_in_the_newest_sessions_is_found(anna: User, monkeypatch: pytest.MonkeyPatch) -> None:
    say("first", "Jonas must not eat shellfish.", owner=anna)
    say("second", "hello", "No Shellfish  for Jonas, please.", visitor="v1")
    client = staff("view_session")
    assert sorted(said(search(client, "eat shellfish"))) == [("first", 1), ("second", 2)]
    text = client.get(LIST, {"q": "shellfish", "alias": "default"}).content.decode()
    assert "Jonas must not eat <mark>shellfish</mark>." in text
    assert "Searched in the newest 2 sessions." in text
    page = f"{LIST}{models.Session.objects.get(key='second').pk}/change/?find=shellfish&amp;before=3"
    assert f'href="{page}#m2"' in text
    assert f'<a href="{page}#convmemory-find">What became of it?</a>' in text
    assert "No session matches." in text
    assert "No session matches." not in client.get(LIST).content.decode()
    assert "Nothing was found." in client.get(LIST, {"q": "ello"}).content.decode()
    monkeypatch.setattr(finding, "SESSIONS", 1)
    assert said(search(client, "shellfish")) == [("second", 2)]


def test_neighbours_of_what_was_found_are_not_taken_for_more(anna: User, client: Client) -> None:
    # Each message that has the word brings two neighbours on each side.
    say("first", *[f"line {number}" if number % 5 else "ferry" for number in range(25)], owner=anna)
    assert len(said(search(client, "ferry"))) == 5
    assert "There may be more." not in client.get(LIST, {"q": "ferry"}).content.decode()


def test_all_sessions_of_a_person_are_searched(anna: User, monkeypatch: pytest.MonkeyPatch, client: Client) -> None:
    say("first", "We like the museum of tiles.", "Tiles? The museum has them.", owner=anna)
    say("second", "A museum with tiles", owner=User.objects.create_user("ben"))
    say("third", "The tiles", visitor="v1")
    assert sorted(said(search(client, "anna/museums of tiles"))) == [("first", 1), ("first", 2)]
    assert "Searched in 1 session of this person." in client.get(LIST, {"q": "anna/tiles"}).content.decode()
    assert said(search(client, "v1/tile")) == [("third", 1)]
    # A slash after what is no person's name is a part of the phrase.
    say("fourth", "They come and/or leave", owner=anna)
    assert said(search(client, "leave/or")) == [("fourth", 1)]


def test_the_page_says_that_not_all_messages_were_searched(anna: User) -> None:
    memories["default"].session("long", owner=anna).append(*[ChatMessage.human("ferry")] * 600)
    answer = staff("view_session").get(LIST, {"q": "ferry"})
    assert len(said(answer.context["found"])) == finding.SHOWN
    text = answer.content.decode()
    assert "Only 20 messages are shown. There may be more." in text
    assert "Not all of their messages were searched, because some are not indexed yet" in text


def test_the_form_of_the_search_keeps_the_filters(anna: User) -> None:
    say("first", "hello", owner=anna)
    text = staff("view_session").get(LIST, {"q": "a b", "alias": "default"}).content.decode()
    form = text.partition('<form id="changelist-search"')[2].partition("</form>")[0]
    assert re.search(r'<input type="text"[^>]* name="q" value="a b"', form)
    assert re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form) == [("alias", "default")]


def test_no_search_without_a_phrase(anna: User, client: Client) -> None:
    say("first", "hello", owner=anna)
    assert client.get(LIST).context["found"] is None
    assert client.get(LIST, {"q": " \x00 "}).context["found"] is None
    assert b"Found in messages" not in client.get(LIST).content
    # Nobody says a public id.
    assert client.get(LIST, {"q": str(models.Session.objects.get().public_id)}).context["found"] is None


def test_the_filters_of_the_list_hold_for_what_was_said(anna: User, settings: Any, client: Client) -> None:
    settings.CONVMEMORY = settings.CONVMEMORY | {"support": settings.CONVMEMORY["default"]}
    say("first", "The ferry leaves.", owner=anna)
    memories["support"].session("second", owner=anna).append(ChatMessage.human("Our ferry is late."))
    assert sorted(said(search(client, "ferry"))) == [("first", 1), ("second", 1)]
    assert said(search(client, "ferry", alias="default")) == [("first", 1)]
    assert said(search(client, "anna/ferry", alias="support")) == [("second", 1)]


def test_nothing_is_found_that_the_admin_hides(anna: User, settings: Any, client: Client) -> None:
    settings.ROOT_URLCONF = Sites
    say("s1", "The ferry leaves.", owner=anna)
    say("other", "The ferry is cancelled.", title="ferry", owner=anna)
    path = LIST.replace("/admin/", "/support/", 1)
    for term in ("ferry", "anna/ferry"):
        answer = client.get(path, {"q": term})
        assert said(answer.context["found"]) == [("s1", 1)]
        assert "cancelled" not in answer.content.decode()
        assert "/admin/convmemory" not in answer.content.decode()
    assert list(client.get(path, {"q": "ferry"}).context["cl"].result_list) == []


def test_what_is_found_is_escaped(anna: User, client: Client) -> None:
    say("first", f"see {EVIL} here", title=EVIL, owner=anna)
    for term in (EVIL, f"anna/{EVIL}", 'x" onclick="', "anna/'; DROP TABLE", "\\", "a/\x00", "/", "anna/"):
        answer = client.get(LIST, {"q": term})
        assert answer.status_code == 200, term
        assert EVIL not in answer.content.decode()
        assert ' onclick="' not in answer.content.decode()
    assert "&lt;<mark>script</mark>&gt;<mark>alert" in client.get(LIST, {"q": EVIL}).content.decode()


def test_a_search_takes_a_fixed_number_of_statements(anna: User) -> None:
    client, taken = staff("view_session"), []
    say("first", "The ferry leaves.", title="ferry", owner=anna)
    client.get(LIST)
    for count in (0, 70):
        for number in range(count):
            say(f"k{number}", "The ferry.", "And another ferry.", title="ferry", owner=anna)
        for term in ("ferry", "anna/ferry", "nothing there"):
            with CaptureQueriesContext(connection) as captured:
                client.get(LIST, {"q": term})
            assert "COUNT(" not in " ".join(query["sql"] for query in captured.captured_queries)
            taken.append(len(captured))
    assert taken[:3] == taken[3:]
    assert max(taken) < 20
