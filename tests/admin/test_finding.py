"""A phrase is found in a session, with what became of it."""

from __future__ import annotations

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
from django_convmemory.admin.finding import Finding
from django_convmemory.admin.phrases import MAX_PHRASE, Match, Phrase
from django_convmemory.conversation import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.admin.test_sessions import LIST, staff
from tests.settings import LOOKUPS

EVIL = "<script>alert(1)</script>"
FILLER = "We talked about the weather, which was fine, and about nothing else. " * 3


@pytest.fixture
def anna(db: None) -> User:
    return User.objects.create_user("anna")


@pytest.fixture
def chat(anna: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A conversation with five versions. Version 1 has what was said at 2, version 4 has not."""
    session = memories["default"].session("main", owner=anna)
    session.append(ChatMessage.system("Never mention rhubarb."), ChatMessage.human("Jonas must not eat shellfish."))
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


def row_of(chat: SessionHandle) -> models.Session:
    return models.Session.objects.get(name_hash=chat.session_name.name_hash)


def found(chat: SessionHandle, phrase: str) -> Finding:
    page = Phrase.of(phrase)
    assert page is not None
    return Finding(row_of(chat), page, chat.load(), "default")


def told(chat: SessionHandle, phrase: str) -> list[str]:
    """Return what became of each message that is shown, as a line."""
    groups = found(chat, phrase).groups
    return [" · ".join(step.text for step in hit.steps) for _heading, hits in groups for hit in hits]


def positions(chat: SessionHandle, phrase: str) -> dict[str, list[int]]:
    return {str(heading): [hit.message.position for hit in hits] for heading, hits in found(chat, phrase).groups}


def open_page(chat: SessionHandle, client: Client, **parameters: str) -> Any:
    return client.get(f"{LIST}{row_of(chat).pk}/change/", parameters)


def test_one_line_says_what_became_of_a_fact(chat: SessionHandle) -> None:
    line = "message 2 · folded into version 1 · last in version 3 · dropped in version 4"
    assert told(chat, "eat shellfish") == [line]
    answer = open_page(chat, staff("view_session"), find="EAT  shellfish")
    text = answer.content.decode()
    assert line in strip_tags(text)
    assert "<mark>eat shellfish</mark>" in text
    # Each part leads to its place.
    [steps] = [hit.steps for _heading, hits in answer.context["page"].finding.groups for hit in hits]
    addresses = [step.url for step in steps]
    assert addresses[0] == "?find=EAT+shellfish&before=13#m2"
    assert addresses[1:] == [f"?find=EAT+shellfish&version={number}#convmemory-summaries" for number in (1, 3, 4)]
    client = staff("view_session")
    path = f"{LIST}{row_of(chat).pk}/change/"
    assert 'id="m2"' in client.get(path + addresses[0].partition("#")[0]).content.decode()
    assert client.get(path + addresses[2].partition("#")[0]).context["page"].versions[0].summary.version == 3


def test_what_was_not_taken_over_what_is_still_there_and_what_is_not_folded(
    chat: SessionHandle, convmemory: ScriptedMemories
) -> None:
    assert told(chat, "which ferry") == [f"message {row_of(chat).last_position} · verbatim in the context"]
    assert told(chat, "rhubarb") == ["message 1 · pinned: in every context"]
    chat.append(ChatMessage.human("The password of the safe is 4471."), ChatMessage.human("Anna has a blue umbrella."))
    fold(chat, convmemory, "The safe's password is 4471.")
    lines = told(chat, "password 4471") + told(chat, "blue umbrella")
    assert [re.sub(r"message \d+", "said", line) for line in lines] == [
        "said · folded into version 6 · still in version 6, the current one",
        "said · folded into version 6 · some of the words are not in it",
    ]


def test_the_versions_are_named_that_have_the_words(chat: SessionHandle) -> None:
    runs = [(run.first, run.last, run.whole) for run in found(chat, "must not eat shellfish").runs]
    assert runs == [(1, 1, True)]
    runs = [(run.first, run.last, run.whole) for run in found(chat, "eat shellfish").runs]
    assert runs == [(1, 3, True)]
    # What only a summary says is found as well.
    assert positions(chat, "640 euros") == {}
    assert [(run.first, run.last) for run in found(chat, "640 euros").runs] == [(3, 5)]
    text = strip_tags(open_page(chat, staff("view_session"), find="640 euros").content.decode())
    assert "No message was found." in text
    assert re.search(r"All its words are in these versions of the summary:\s*3–5", text)


def test_the_phrase_comes_before_its_words_and_these_before_others(chat: SessionHandle) -> None:
    chat.append(
        ChatMessage.human("A museum with tiles, and another one about ships."),
        ChatMessage.human("Tiles are in the museum of the navy."),
        ChatMessage.human("Ships only."),
        ChatMessage.human("I like the TILE museum."),
    )
    last = row_of(chat).last_position
    assert positions(chat, "tile museum") == {"The phrase itself": [last], "All its words": [last - 3, last - 2]}
    [(heading, others)] = positions(chat, "museum ships and a cathedral").items()
    assert (heading, sorted(others)) == ("Some of its words", [last - 3, last - 2, last - 1, last])
    assert others[0] == last - 3  # It has two of the words.


def test_more_messages_than_are_shown_are_counted(anna: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "READ", 60)
    session = memories["default"].session("often", owner=anna)
    session.append(*[ChatMessage.human("The ferry again.") for _ in range(150)])
    result = found(session, "ferry")
    [(_heading, hits)] = result.groups
    assert [hit.message.position for hit in hits] == [*range(1, 11), *range(141, 151)]
    assert result.hidden == 130
    [note] = result.notes
    assert note.startswith("The index lists 150 messages with all the words. Only the first 30 and the last 30")
    text = open_page(session, staff("view_session"), find="ferry").content.decode()
    assert "130 more messages have all the words and are not shown." in text


def test_what_the_index_does_not_have_is_read(anna: User) -> None:
    session = memories["default"].session("new", owner=anna)
    session.append(ChatMessage.human("To be or not to be."), ChatMessage.human("The first ferry."))
    session.append(*[ChatMessage.human(f"m{number}") for number in range(600)])
    assert row_of(session).indexed_position == 0
    assert positions(session, "first FERRY") == {"The phrase itself": [2]}
    [note] = found(session, "first ferry").notes
    assert note.startswith("The messages after position 0 are not in the index yet.")
    assert positions(session, "be or not") == {"The phrase itself": [1]}
    [note] = found(session, "be or not").notes
    assert note.startswith("The index has none of these words")


def test_what_was_redacted_is_not_found(chat: SessionHandle) -> None:
    chat.redact(2)
    assert positions(chat, "eat shellfish") == {}
    assert found(chat, "eat shellfish").runs == []


def test_a_rebuild_folds_the_messages_into_a_new_version(chat: SessionHandle, convmemory: ScriptedMemories) -> None:
    convmemory.reply("Jonas must not eat shellfish, and the hotel costs 640 euros.")
    assert chat.rebuild() == "published"
    newest = row_of(chat).current_version
    assert told(chat, "eat shellfish") == [
        f"message 2 · folded into version {newest} · still in version {newest}, the current one"
    ]
    assert [(run.first, run.last) for run in found(chat, "eat shellfish").runs] == [(1, 3), (newest, newest)]


def test_a_session_without_its_alias_and_one_without_messages(chat: SessionHandle, anna: User, settings: Any) -> None:
    empty = memories["default"].session("empty", owner=anna)
    empty.append(ChatMessage.human("shellfish"))
    empty.clear()
    client = staff("view_session")
    assert "No message was found." in open_page(empty, client, find="shellfish").content.decode()
    url = f"{LIST}{row_of(chat).pk}/change/"
    settings.CONVMEMORY = {"other": settings.CONVMEMORY["default"]}
    answer = client.get(url, {"find": "shellfish"})
    assert (answer.status_code, ">message 2</a>" in answer.content.decode()) == (200, True)


def test_calls_of_tools_are_found(chat: SessionHandle) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "K\\u00f6ln Messe"}'}}
    chat.append(ChatMessage.ai(tool_calls=[call]), ChatMessage.tool('{"found": "Deutz"}', "c1"))
    last = row_of(chat).last_position
    assert positions(chat, "köln messe") == {"The phrase itself": [last - 1]}
    assert positions(chat, "deutz") == {"The phrase itself": [last]}


def test_content_and_phrases_are_escaped(chat: SessionHandle) -> None:
    chat.append(ChatMessage.human(f"before {EVIL} after"))
    models.Summary.objects.update(text=f"They said {EVIL}.")
    text = open_page(chat, staff("view_session"), find=EVIL).content.decode()
    assert EVIL not in text
    assert "<mark>&lt;script&gt;alert(1)&lt;/script&gt;</mark>" in text
    for hostile in (
        '"><b>',
        "a\x00b",
        "%",
        "_",
        "\\",
        "'; DROP TABLE",
        "x" * 5000,
        "{{ 7|add:7 }}",
        "\u202e",
        "?!",
        " ",
    ):
        answer = open_page(chat, staff("view_session"), find=hostile)
        assert answer.status_code == 200, hostile
        assert "<b>" not in answer.content.decode()
    assert positions(chat, "100%") == positions(chat, "_") == {}


def test_the_number_of_statements_does_not_grow(chat: SessionHandle, convmemory: ScriptedMemories, anna: User) -> None:
    long = memories["default"].session("long", owner=anna)
    long.append(ChatMessage.human("Jonas must not eat shellfish."))
    for number in range(12):
        long.append(*[ChatMessage.human(FILLER + "shellfish") for _ in range(60)])
        convmemory.reply(*[f"summary {number}, eat shellfish"] * 20)
        convmemory.run()
    convmemory.allow_unused_replies = True
    assert row_of(long).current_version >= 12
    client = staff("view_session")
    for phrase in ("eat shellfish", "not"):
        taken = []
        for session in (chat, long):
            open_page(session, client)
            with CaptureQueriesContext(connection) as without:
                open_page(session, client)
            with CaptureQueriesContext(connection) as captured:
                assert open_page(session, client, find=phrase).status_code == 200
            taken.append(len(captured) - len(without))
        # Messages without words that are indexed are read as they are. Only the first session has a pinned message.
        assert taken == ([3 + LOOKUPS] * 2 if phrase != "not" else [3, 2])


def test_only_staff_who_may_see_sessions_may_look(chat: SessionHandle, anna: User) -> None:
    assert open_page(chat, staff(), find="shellfish").status_code == 403
    assert open_page(chat, staff("view_message", "view_summary"), find="shellfish").status_code == 403
    client = Client()
    client.force_login(anna)
    assert open_page(chat, client, find="shellfish").status_code == 302


def test_a_form_goes_to_a_position(chat: SessionHandle) -> None:
    client, last = staff("view_session"), row_of(chat).last_position
    address = f"{LIST}{row_of(chat).pk}/change/"
    for position, before in ((3, 14), (last, last + 1), (10**17, last + 1), (0, 12)):
        answer = client.get(address, {"at": str(position), "find": "a b", "version": "2"})
        nearest = min(max(position, 1), last)
        assert (answer.status_code, answer["Location"]) == (302, f"?find=a+b&version=2&before={before}#m{nearest}")
    assert client.get(address, {"at": "x"}).status_code == 200
    page = client.get(address, {"before": 14})
    assert 3 in [bubble.position for bubble in page.context["page"].timeline]


def test_a_form_goes_to_a_version(chat: SessionHandle) -> None:
    text = open_page(chat, staff("view_session"), before="9", find="x y").content.decode()
    form = re.search(r'<form method="get" action="#convmemory-summaries".*?</form>', text, re.DOTALL)
    assert form
    assert 'name="version" min="1" max="5"' in form[0]
    assert 'name="before" value="9"' in form[0]
    assert 'name="find" value="x y"' in form[0]


@pytest.mark.parametrize(
    ("phrase", "text", "match"),
    [
        ("Rust", "they spoke of RUST.", Match.PHRASE),
        ("of  rust", "they spoke of\nrust", Match.PHRASE),
        ("art", "a party", Match.LESS),
        ("art", "a party of artists", Match.PHRASE),
        ("4471", "LC4471", Match.PHRASE),
        ("costs 64", "it costs 640 euros, not 64", Match.WORDS),
        ("costs 64", "it costs 640 euros", Match.LESS),
        ("museums", "the museum", Match.WORDS),
        ("must not eat shellfish", "shellfish he must eat", Match.WORDS),
        ("过敏", "我对花生过敏", Match.PHRASE),
        ("花生过敏", "过敏:花生", Match.LESS),
        ("?!", "what?!", Match.PHRASE),
        ("?!", "what", Match.LESS),
    ],
)
def test_what_matches(phrase: str, text: str, match: Match) -> None:
    typed = Phrase.of(phrase)
    assert typed is not None
    assert typed.match(text) == match


def test_a_phrase_is_what_is_left_of_what_was_typed() -> None:
    assert Phrase.of(" \x00 ") is None
    assert Phrase.of(" a \n b ") == Phrase("a b")
    long = Phrase.of("x" * 999)
    assert long is not None
    assert len(long.text) == MAX_PHRASE
    passage = Phrase("needle").passage("hay " * 500 + "Needle" + " hay" * 500)
    assert [piece.text for piece in passage if piece.marked] == ["Needle"]
    assert sum(len(piece.text) for piece in passage) < 260
