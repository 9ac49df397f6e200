"""A phrase is found in a session, with what became of it."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import strip_tags

from django_convmemory import models
from django_convmemory.admin import finding
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.search import tokenizer
from django_convmemory.testing import ScriptedMemories
from tests.admin.test_sessions import LIST, row_of, staff

EVIL = "<script>alert(1)</script>"
FILLER = "We talked about the weather, which was fine, and about nothing else. " * 3


@pytest.fixture
def chat(anna: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A conversation with five versions. Version 1 has what was said at 2, version 4 has not."""
    session = memories["default"].session("main", owner=anna)
    session.append(ChatMessage.system("Be kind."), ChatMessage.human("Jonas must not eat shellfish."))
    for reply in (
        "Jonas must not eat shellfish.",
        "Jonas cannot eat any shellfish. The hotel is booked.",
        "No shellfish to eat for Jonas. The hotel costs 640 euros.",
        "The hotel costs 640 euros.",
        "The hotel in Baixa costs 640 euros.",
    ):
        fold(session, convmemory, reply)
    session.append(ChatMessage.human("Which ferry do we take?"))
    return session


def fold(session: SessionHandle, convmemory: ScriptedMemories, reply: str) -> None:
    """Append messages until the session is due, and fold it once."""
    while not convmemory.queued:
        session.append(ChatMessage.human(FILLER))
    convmemory.reply(reply)
    assert convmemory.run() == ["published"]


def open_page(chat: SessionHandle, client: Client | None = None, **parameters: str) -> Any:
    return (client or staff("view_session")).get(f"{LIST}{row_of(chat).pk}/change/", parameters)


def found(chat: SessionHandle, phrase: str) -> tuple[list[str], list[str]]:
    """Return what the page says about each message that it finds, and its other sentences about the phrase."""
    text = open_page(chat, find=phrase).content.decode()
    section = text.partition('id="convmemory-find"')[2].partition("</section>")[0]
    paragraphs = [
        (attributes, " ".join(strip_tags(content).split()))
        for attributes, content in re.findall(r"<p([^>]*)>(.*?)</p>", section, re.DOTALL)
    ]
    fates = [content for attributes, content in paragraphs if "fate" in attributes]
    return fates, [content for attributes, content in paragraphs if not re.search("fate|passage", attributes)]


IN_VERSIONS = "All its words are in these versions of the summary: "
IN_NONE = "No version of the summary has all its words. A summary may say it in other words."


def test_one_line_says_what_became_of_a_fact(chat: SessionHandle) -> None:
    line = "message 2 · folded into version 1 · last in version 3 · dropped in version 4"
    assert found(chat, "EAT  shellfish") == ([line], [f"{IN_VERSIONS}1–3"])
    text = open_page(chat, find="eat shellfish", version="5").content.decode()
    assert "<mark>eat</mark> <mark>shellfish</mark>" in text
    # Each part leads to its place.
    fate = text.partition('class="convmemory-fate"')[2].partition("</p>")[0]
    message, *versions = [address.replace("&amp;", "&") for address in re.findall('href="(.*?)"', fate)]
    assert message == "?find=eat+shellfish&before=13#m2"
    assert versions == [f"?find=eat+shellfish&version={number}#convmemory-summaries" for number in (1, 3, 4)]
    assert 'id="m2"' in open_page(chat, before="13").content.decode()


def test_what_was_not_taken_over_what_is_still_there_and_what_is_not_folded(
    chat: SessionHandle, convmemory: ScriptedMemories
) -> None:
    assert found(chat, "which ferry") == (
        [f"message {row_of(chat).last_position} · verbatim in the context"],
        [IN_NONE],
    )
    # What only a summary says is found as well.
    assert found(chat, "640 euros") == ([], ["No message was found.", f"{IN_VERSIONS}3–5"])
    chat.append(ChatMessage.human("The password of the safe is 4471."), ChatMessage.human("Anna has a blue umbrella."))
    fold(chat, convmemory, "The safe's password is 4471.")
    lines = found(chat, "password 4471")[0] + found(chat, "blue umbrella")[0]
    assert [re.sub(r"message \d+", "said", line) for line in lines] == [
        "said · folded into version 6 · still in version 6, the current one",
        "said · folded into version 6 · some of the words are not in it",
    ]


def test_the_messages_are_those_of_a_search_in_its_order(chat: SessionHandle) -> None:
    chat.append(
        ChatMessage.human("A museum with tiles, and another one about ships."),
        ChatMessage.human("Ships only."),
        ChatMessage.human("I like the TILE museum."),
    )
    hits = chat.search("tile museum of ships", limit=finding.READ)
    expected = [hit.position for hit in hits if hit.marks]
    assert len(expected) == 3
    assert [int(line.split()[1]) for line in found(chat, "tile museum of ships")[0]] == expected


@pytest.mark.parametrize("phrase", ["3 May 2024", "el 3 de mayo de 2024"])
def test_a_date_alone_finds_what_was_said_on_it(anna: User, phrase: str) -> None:
    session = memories["default"].session("new", owner=anna)
    for day in (2, 3, 4):
        at = dt.datetime(2024, 5, day, 12, tzinfo=dt.UTC)
        session.append(ChatMessage.human("Ships only."), created_at=at)
    assert [line.split()[1] for line in found(session, phrase)[0]] == ["2"]
    searched = finding.TextSearch(models.Session.objects.all(), phrase, User.objects.all())
    assert [hit.position for _session, hit, _before in searched.hits] == [2]


def test_the_page_says_what_was_left_out(
    anna: User, monkeypatch: pytest.MonkeyPatch, convmemory: ScriptedMemories
) -> None:
    session = memories["default"].session("new", owner=anna)
    session.append(*[ChatMessage.human("The ferry again.") for _ in range(600)])
    lines, sentences = found(session, "ferry")
    assert len(lines) == finding.SHOWN == 20
    assert sentences == [
        "Only 20 messages are shown. There may be more.",
        "Not all messages were searched, because some are not indexed yet. A worker was asked to index them.",
    ]
    assert found(session, "to be or not")[1][1].startswith("Words like “the” and “not” are too common to be found.")
    monkeypatch.setattr(finding, "VERSIONS", 1)
    convmemory.allow_unused_replies = True
    convmemory.reply(*["The ferry."] * 20)
    convmemory.run()
    assert "Only the newest 1 versions of the summary were searched." in found(session, "ferry")[1]


def test_what_was_redacted_is_not_found(chat: SessionHandle) -> None:
    chat.redact(2)
    assert found(chat, "eat shellfish") == ([], ["No message was found.", IN_NONE])


def test_a_rebuild_folds_the_messages_into_a_new_version(chat: SessionHandle, convmemory: ScriptedMemories) -> None:
    convmemory.reply("Jonas must not eat shellfish, and the hotel costs 640 euros.")
    assert chat.rebuild() == "published"
    new = row_of(chat).current_version
    line = f"message 2 · folded into version {new} · still in version {new}, the current one"
    assert found(chat, "eat shellfish") == ([line], [f"{IN_VERSIONS}1–3, {new}"])
    models.Summary.objects.filter(version=new).update(text="")
    assert found(chat, "eat shellfish")[0] == [
        f"message 2 · folded into version {new} · the text of this version was removed"
    ]


def test_nothing_is_found_in_a_session_without_messages_or_without_its_alias(
    chat: SessionHandle, settings: Any
) -> None:
    url = f"{LIST}{row_of(chat).pk}/change/"
    chat.clear()
    assert found(chat, "shellfish")[0] == []
    settings.CONVMEMORY = {"other": settings.CONVMEMORY["default"]}
    answer = staff("view_session").get(url, {"find": "shellfish"})
    assert (answer.status_code, b"convmemory-find" in answer.content) == (200, False)


def test_content_and_phrases_are_escaped(chat: SessionHandle, client: Client) -> None:
    chat.append(ChatMessage.human(f"before {EVIL} after"))
    models.Summary.objects.update(text=f"They said {EVIL}.")
    text = open_page(chat, client, find=EVIL).content.decode()
    assert EVIL not in text
    assert "&lt;<mark>script</mark>&gt;<mark>alert" in text
    hostile = ('"><b>', "a\x00b", "%", "_", "\\", "'; DROP TABLE", "x" * 5000, "{{ 7|add:7 }}", "\u202e", "?!", " ")
    for phrase in hostile:
        answer = open_page(chat, client, find=phrase)
        assert answer.status_code == 200, phrase
        assert "<b>" not in answer.content.decode()


def test_the_number_of_statements_does_not_grow(chat: SessionHandle, convmemory: ScriptedMemories, anna: User) -> None:
    long = memories["default"].session("long", owner=anna)
    long.append(ChatMessage.system("Be kind."))
    convmemory.allow_unused_replies = True
    for number in range(12):
        long.append(*[ChatMessage.human(FILLER + "shellfish") for _ in range(60)])
        convmemory.reply(*[f"summary {number}, eat shellfish"] * 20)
        convmemory.run()
    assert row_of(long).current_version >= 12
    client, taken = staff("view_session"), []
    for session in (chat, long):
        open_page(session, client)
        with CaptureQueriesContext(connection) as captured:
            assert open_page(session, client, find="eat shellfish").status_code == 200
        taken.append(len(captured))
    assert taken[0] == taken[1]


def test_the_forms_go_to_a_position_and_to_a_version(chat: SessionHandle) -> None:
    client, last = staff("view_session"), row_of(chat).last_position
    for position, before in ((3, 14), (last, last + 1), (10**17, last + 1), (0, 12)):
        answer = open_page(chat, client, at=str(position), find="a b", version="2")
        nearest = min(max(position, 1), last)
        assert (answer.status_code, answer["Location"]) == (302, f"?find=a+b&version=2&before={before}#m{nearest}")
    assert open_page(chat, client, at="x").status_code == 200
    text = open_page(chat, client, before="9", find="x y").content.decode()
    form = re.search(r'<form method="get" action="#convmemory-summaries".*?</form>', text, re.DOTALL)
    assert form
    for field in ('name="version" min="1" max="5"', 'name="before" value="9"', 'name="find" value="x y"'):
        assert field in form[0]


@pytest.mark.parametrize(
    ("phrase", "text", "has"),
    [
        ("paints a castle", "Castles were painted.", True),
        ("paints a castle", "A castle.", False),
        ("640 euros", "It costs 640 euros.", True),
        ("64", "It costs 640 euros.", False),
        ("学习", "我喜欢学习", True),
        ("学", "我喜欢学习", True),
        ("学", "我喜欢茶", False),
        ("the", "the", False),
    ],
)
def test_a_version_has_a_phrase_if_it_has_its_words_in_any_form(phrase: str, text: str, has: bool) -> None:
    assert finding.has_words(text, tokenizer.query(phrase)) == has
