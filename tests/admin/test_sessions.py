"""Sessions in the admin: the list, the page, the actions, and their permissions."""

from __future__ import annotations

import datetime as dt
import functools
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from django.contrib import admin
from django.contrib.admin import AdminSite, register
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path as at, reverse
from pytest_django.asserts import assertRedirects

from django_convmemory import clock, models
from django_convmemory.admin import SessionAdmin
from django_convmemory.admin.actions import WORK
from django_convmemory.admin.page import PART_LABELS, SessionPage
from django_convmemory.context.assembly import PartName
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.operations.load import Load
from django_convmemory.operations.turns import Turn
from django_convmemory.testing import ScriptedMemories
from tests.conversations import call

pytestmark = pytest.mark.vendors

LIST = "/admin/convmemory/session/"
EVIL = "<script>alert(1)</script> {{ 7|add:7 }} \u202e <b>bold</b>"


def staff(*permissions: str) -> Client:
    """Return the client of a member of the staff with these permissions."""
    user = User.objects.create_user(f"staff{User.objects.count()}", is_staff=True)
    granted = Permission.objects.filter(content_type__app_label="convmemory", codename__in=permissions)
    assert granted.count() == len(permissions)
    user.user_permissions.set(granted)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def chat(anna: User, convmemory: ScriptedMemories) -> SessionHandle:
    """A conversation that was folded twice and ends with a tool call."""
    convmemory.allow_unused_replies = True
    convmemory.reply("They spoke of Rust.", "They spoke of Rust and of ownership.")
    session = memories["default"].session("main", owner=anna)
    session.append(ChatMessage.system("Be kind."))
    for number in range(2):
        session.append(*[ChatMessage.human(f"turn {number} {index} " + "word " * 20) for index in range(12)])
        convmemory.run()
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "<i>"}'}}
    image = {"type": "image_url", "image_url": {"url": "http://evil.example/pixel.png", "detail": "low"}}
    session.append(
        ChatMessage.human([{"type": "text", "text": EVIL}, image]),
        ChatMessage.ai(tool_calls=[call]),
        ChatMessage.tool("found", "c1"),
    )
    return session


def row_of(chat: SessionHandle) -> models.Session:
    return models.Session.objects.get(name_hash=chat.session_name.name_hash)


def url_of(chat: SessionHandle, path: str = "change/") -> str:
    return f"{LIST}{row_of(chat).pk}/{path}"


# The list.


def test_the_list_has_pages_without_a_count(anna: User, client: Client) -> None:
    for number in range(120):
        memories["default"].session(f"k{number}", owner=anna).append(ChatMessage.human("hello"))
    keys = []
    for page in (1, 2, 3):
        with CaptureQueriesContext(connection) as captured:
            answer = client.get(f"{LIST}?p={page}&alias=default")
        assert "COUNT(" not in " ".join(query["sql"] for query in captured.captured_queries)
        assert len(captured) < 15
        keys += [session.key for session in answer.context["cl"].result_list]
        text = answer.content.decode()
        assert (f"p={page + 1}" in text, "alias=default" in text) == (page < 3, True)
    assert keys == [f"k{number}" for number in reversed(range(120))]
    for refused in ("0", "-1", "9999999999"):
        assertRedirects(client.get(f"{LIST}?p={refused}"), f"{LIST}?e=1")
    # What is not a number is the first page, and a page after the last has no sessions.
    for accepted, count in (("x", 50), ("4", 0)):
        assert len(client.get(f"{LIST}?p={accepted}").context["cl"].result_list) == count


def test_the_filters(chat: SessionHandle, convmemory: ScriptedMemories, client: Client) -> None:
    memories["default"].session("idle", visitor="v1").append(ChatMessage.human("hello"))
    models.Session.objects.filter(key="main").update(due_since="2026-01-01T00:00:00Z", last_error="BadModelOutput: x")

    def keys(query: str) -> list[str]:
        return sorted(session.key for session in client.get(f"{LIST}?{query}").context["cl"].result_list)

    assert keys("") == ["idle", "main"]
    assert keys("state=failing") == ["main"]
    assert keys("state=due") == keys("state=compacting") == []
    assert keys("alias=default") == ["idle", "main"]


def test_a_session_that_is_archived_or_starred_says_so(chat: SessionHandle) -> None:
    client, tag = staff("view_session"), re.compile(r'<span class="convmemory-tag"[^>]*>(archived|starred)</span>')
    addresses = (LIST, url_of(chat))
    assert [tag.findall(client.get(address).content.decode()) for address in addresses] == [[], []]
    chat.update(archived=True, starred=True)
    shown = [tag.findall(client.get(address).content.decode()) for address in addresses]
    assert shown == [["archived"], ["archived", "starred"]]


def test_the_search_finds_sessions_by_exact_names(chat: SessionHandle, anna: User, client: Client) -> None:
    memory = memories["default"]
    memory.append("nobodys", ChatMessage.human("hello"))
    memory.session("theirs", visitor="v1").append(ChatMessage.human("hello"))

    def keys(term: str) -> list[str]:
        return sorted(session.key for session in client.get(LIST, {"q": term}).context["cl"].result_list)

    assert keys(str(row_of(chat).public_id)) == keys(str(row_of(chat).pk)) == ["main"]
    assert keys("anna") == keys("anna/main") == keys(" anna ") == ["main"]
    assert keys("v1") == keys("v1/theirs") == ["theirs"]
    assert keys("nobodys") == ["nobodys"]
    assert keys("main") == ["main"]
    assert keys("anna/other") == keys("%") == keys("'; DROP TABLE") == []
    assert keys("") == ["main", "nobodys", "theirs"]
    assert client.get(LIST, {"q": "a\0b"}).status_code == 200


# The page.


def test_the_page_says_what_became_of_each_message(chat: SessionHandle, anna: User) -> None:
    answer = staff("view_session").get(url_of(chat))
    page, context = answer.context["page"], chat.load()
    dispositions = {bubble.row.position: bubble.explained.disposition for bubble in page.timeline}
    assert list(dispositions) == list(range(17, 29))
    for before in (17, 5):
        earlier = SessionPage(row_of(chat), before=before).timeline
        dispositions |= {bubble.row.position: bubble.explained.disposition for bubble in earlier}
    assert len(dispositions) == 28
    assert dispositions[1] == "pinned"
    assert dispositions[2] == "folded"
    assert {dispositions[position] for position in (26, 27, 28)} == {"verbatim"}
    assert page.context == context
    assert sum(piece.tokens for piece in page.parts) == context.tokens
    text = answer.content.decode()
    for expected in (
        "They spoke of Rust",
        "<ins>",
        "look_up",
        "answers 27",
        "folded into",
        "[an image: http://evil.example/pixel.png]",
        # The owner is linked if the admin has users.
        reverse("admin:auth_user_change", args=(anna.pk,)),
    ):
        assert expected in text, expected


def test_every_part_of_a_context_has_a_label_and_a_colour() -> None:
    assert set(PART_LABELS) == set(get_args(PartName))
    styles = (Path(models.__file__).parent / "static/convmemory/admin.css").read_text()
    for name in PART_LABELS:
        assert all(f".{place} .{name}" in styles for place in ("convmemory-bar", "convmemory-legend")), name


def test_the_page_shows_what_is_recalled(chat: SessionHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Load, "load", functools.partialmethod(Load.load, recall="turn 0 1"))
    answer = staff("view_session").get(url_of(chat))
    assert "recalled" in {part.name for part in answer.context["page"].parts}
    assert '<li class="recalled">recalled: ' in answer.content.decode()


def test_the_page_shows_what_is_said_in_any_form(anna: User) -> None:
    session = memories["default"].session("forms", owner=anna)
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "Ships <b>sail</b>."},
    }
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    session.append(
        ChatMessage.human([document, image]),
        ChatMessage.ai(extra={"refusal": "I cannot."}),
        ChatMessage.ai(extra={"audio": {"id": "a", "transcript": "I say so."}}),
    )
    text = staff("view_session").get(url_of(session)).content.decode()
    for expected in ("Ships &lt;b&gt;sail", "[an image: data:image/png;base64,iVBOR", "I cannot.", "I say so."):
        assert expected in text, expected


def test_the_page_shows_the_turns(anna: User, client: Client) -> None:
    session = memories["default"].session("turns", owner=anna)

    def ask(turn: Turn) -> Iterator[str]:
        turn.append(ChatMessage.ai(tool_calls=[{"id": "c", "type": "function", "function": {"name": "find"}}]))
        turn.append(turn.open_calls[0].result("found"))
        yield "Hel"
        yield "lo"

    stream = session.stream_answer("Hi", ask)
    pieces = iter(stream)
    assert next(pieces) == "Hel"
    opened = client.get(url_of(session)).content.decode()
    for expected in ("the question at position 1. If its process was killed", "A reply is on its way."):
        assert expected in opened
    stream.close()
    text = client.get(url_of(session)).content.decode()
    for ended in ("Being answered", "A reply is on its way."):
        assert ended not in text
    heads = re.findall(r'<div class="convmemory-line">(.+?)</div>', text, re.DOTALL)
    assert ["answers 1" in head for head in heads] == [False, True, False, True]
    assert "answers 2" in heads[2]
    assert "cut off: the reader left" in heads[3]


def test_the_page_says_why_the_model_is_sent_these_messages(
    chat: SessionHandle, anna: User, settings: Any, convmemory: ScriptedMemories, client: Client
) -> None:
    covered = chat.load().covered
    stands = f"Version 2 of the summary stands for the messages through position {covered}."
    assert f"{stands} All later messages are sent as they are." in client.get(url_of(chat)).content.decode()
    short = memories["default"].session("short", owner=anna)
    short.append(ChatMessage.human("hello"))
    assert "<p>All messages are sent as they are.</p>" in client.get(url_of(short)).content.decode()
    chat.append(*[ChatMessage.human("word " * 200)] * 40)
    assert chat.load().omitted
    assert f"{stands} Of the later messages, only the newest are sent." in client.get(url_of(chat)).content.decode()
    window = {"MEMORY": "django_convmemory.memory.ConversationWindowMemory", "OPTIONS": {"window_size": 2}}
    settings.CONVMEMORY = settings.CONVMEMORY | {"window": window}
    last = memories["window"].session("last", owner=anna)
    last.append(*[ChatMessage.human("hello"), ChatMessage.ai("hi")] * 3)
    assert "<p>Only the newest messages are sent, as they are.</p>" in client.get(url_of(last)).content.decode()


def test_content_is_escaped(chat: SessionHandle) -> None:
    models.Session.objects.update(title=EVIL, last_error=EVIL)
    models.Summary.objects.update(text=EVIL)
    text = staff("view_session", "change_session", "change_message").get(url_of(chat)).content.decode()
    assert "<script>alert(1)</script>" not in text
    assert "<b>bold</b>" not in text
    assert "{{ 7|add:7 }}" in text
    assert "&lt;script&gt;" in text
    assert 'src="http://evil.example' not in text
    assert " style=" not in text.partition('<div id="content"')[2]
    assert "onclick" not in text


def test_the_number_of_statements_does_not_grow_with_the_conversation(
    chat: SessionHandle, anna: User, convmemory: ScriptedMemories
) -> None:
    long = memories["default"].session("long", owner=anna)
    long.append(ChatMessage.system("Be kind."))
    convmemory.reply(*["many words"] * 60)
    for _ in range(4):
        long.append(*[ChatMessage.human("word " * 20) for _ in range(250)])
        convmemory.run()
    client, taken = staff("view_session"), []
    client.get(url_of(chat))  # fills Django's caches
    for session in (chat, long):
        with CaptureQueriesContext(connection) as captured:
            assert client.get(url_of(session)).status_code == 200
        taken.append(len(captured))
    assert taken[0] == taken[1] <= 15


def test_the_chart_shows_what_was_sent_at_each_position(anna: User, convmemory: ScriptedMemories) -> None:
    long = memories["default"].session("long", owner=anna)
    pinned = long.append(ChatMessage.system("word " * 20)).tokens
    while models.Summary.objects.filter(session__key="long").count() < 20:
        long.append(*[ChatMessage.human("word " * 20) for _ in range(6)])
        if convmemory.queued:
            convmemory.reply("many words")
            convmemory.run()
    page = SessionPage(models.Session.objects.with_clock().get(key="long"))
    assert page.chart
    summaries = list(models.Summary.objects.filter(session=page.session).order_by("version"))
    for position, history, sent in page.chart.rows:
        message = page.session.convmemory_messages.get(position=position)
        made = [
            summary
            for summary in summaries
            if summary.created_at <= message.created_at and summary.last_position < position
        ]
        uncapped = history - made[-1].covered_tokens + made[-1].tokens if made else history
        assert (history, sent) == (message.tokens_through + pinned, min(uncapped, page.budget or uncapped))
    assert len({sent for _, _, sent in page.chart.rows}) > 2
    text = staff("view_session").get(url_of(long)).content.decode()
    assert "context, reconstructed" in text
    assert "reconstructed from the times of messages and summaries" in text
    # Each message names the version that folds it.
    early = SessionPage(page.session, before=30)
    assert all(bubble.explained.version for bubble in early.timeline)


def test_pages_of_a_long_conversation(anna: User, client: Client) -> None:
    long = memories["default"].session("long", owner=anna)
    long.append(*[ChatMessage.human(f"m{number}") for number in range(1, 131)])

    def positions(query: str) -> list[int]:
        page = client.get(url_of(long) + query).context["page"]
        return [page.timeline[0].row.position, page.timeline[-1].row.position, page.earlier, page.later]

    assert positions("") == [119, 130, 119, None]
    assert positions("?before=81") == [69, 80, 69, 93]
    assert positions("?before=13") == [1, 12, None, 25]
    for query in ("?before=0", "?before=x", "?before=-3", f"?before={9**40}", "?version=x", f"?version={9**40}"):
        assert client.get(url_of(long) + query).status_code == 200


def test_pages_of_the_summaries(anna: User, convmemory: ScriptedMemories, client: Client) -> None:
    long = memories["default"].session("long", owner=anna)
    for number in range(5):
        convmemory.reply(f"word {number}")
        long.append(*[ChatMessage.human("word " * 20) for _ in range(10)])
        convmemory.run()

    def versions(query: str) -> tuple[int | None, int | None, int | None]:
        page = client.get(url_of(long) + query).context["page"]
        return page.shown_version and page.shown_version.summary.version, page.older, page.newer

    newest = row_of(long).current_version
    assert newest >= 5
    assert versions("") == (newest, newest - 1, None)
    assert versions(f"?version={newest - 2}") == (newest - 2, newest - 3, newest - 1)
    assert versions("?version=1") == (1, None, 2)
    assert versions("?version=0") == (None, None, 1)
    assert versions("?version=999") == (newest, newest - 1, None)
    # A message links to the version that folds it. Messages and versions have separate pages.
    text = client.get(url_of(long) + "?before=9&version=4").content.decode()
    assert '?version=1&amp;before=9#convmemory-summaries"' in text
    assert '?version=2&amp;before=9#convmemory-summaries"' in text
    assert '&amp;version=4#timeline"' in text
    # A version may be deleted. No link leads to it, and its child is shown without a comparison.
    models.Summary.objects.filter(session__key="long", version__in=(3, 4)).delete()
    assert versions("?version=2") == (2, 1, 5)
    assert versions("?version=5") == (5, 2, None if newest == 5 else 6)


def test_a_session_without_messages_and_a_session_without_its_alias(anna: User, chat: SessionHandle) -> None:
    empty = memories["default"].session("empty", owner=anna)
    empty.append(ChatMessage.human("hello"))
    empty.clear()
    client = staff("view_session")
    assert client.get(url_of(empty)).status_code == 200
    url = url_of(chat)
    models.Session.objects.update(alias="gone")
    answer = client.get(url)
    assert (answer.status_code, b"is not in the setting CONVMEMORY" in answer.content) == (200, True)
    client = staff("view_session", "change_session", "delete_session", "change_message")
    for path in (*(f"{name}/" for name in WORK if name != "delete"), "redact/26/"):
        answer = client.post(url_of(chat, path), {"confirmed": "yes"}, follow=True)
        assert "Add it there, or delete the session" in answer.content.decode(), path
    assert (row_of(chat).last_position, LogEntry.objects.count()) == (28, 0)
    pk = row_of(chat).pk
    client.post(url_of(chat, "delete/"), {"confirmed": "yes"})
    assert not models.Session.objects.filter(pk=pk).exists()


def test_only_the_beginning_of_a_large_message_is_read_and_shown(anna: User) -> None:
    large, small = ("data:image/png;base64," + "A" * length for length in (700_000, 8000))
    images = [{"type": "image_url", "image_url": {"url": url}} for url in (large, small)]
    function = {"name": "look", "arguments": "long " * 5_000}
    session = memories["default"].session("large", owner=anna)
    session.append(
        ChatMessage.human("word " * 20_000),
        *[ChatMessage.human([image]) for image in images],
        ChatMessage.human([{"type": "text", "text": f"part {number}"} for number in range(5000)]),
        ChatMessage.ai(tool_calls=[{**call("a"), "function": function}]),
    )
    answer = staff("view_session").get(url_of(session))
    text, image, thumbnail, parts, calls = answer.context["page"].timeline
    assert ([len(part) for part in text.texts], text.cut) == ([20_000], True)
    assert (image.texts, image.cut) == ([], True)
    assert (thumbnail.texts, thumbnail.cut) == ([f"[an image: {small[:100]}]"], False)
    assert (len(parts.texts), parts.cut) == (100, True)
    assert ([len(arguments) for _id, _name, arguments in calls.calls], calls.cut) == ([20_000], True)
    assert answer.content.decode().count("Only a part of this message is shown.") == 4


# The actions.


@pytest.mark.parametrize("work", list(WORK))
def test_each_action_takes_its_permission_and_is_logged(
    chat: SessionHandle, work: str, convmemory: ScriptedMemories
) -> None:
    url, needed = url_of(chat, f"{work}/"), WORK[work].permission
    client = staff("view_session", f"{needed}_session")
    if WORK[work].warning:
        asked = client.post(url)
        assert (asked.status_code, b"for good" in asked.content) == (200, True)
        assert b'name="csrfmiddlewaretoken"' in asked.content.partition(b'id="content"')[2]
        assert LogEntry.objects.count() == 0
    assert row_of(chat).last_position == 28
    assert client.post(url, {"confirmed": "yes"}).status_code == 302
    assert LogEntry.objects.get().change_message == str(WORK[work].label)
    if work == "clear":
        assert row_of(chat).last_position == 0
    elif work == "delete":
        assert not models.Session.objects.exists()
    elif work == "rebuild":
        convmemory.reply("word made anew", "and more words")
        assert convmemory.run()[0] == "published"
        assert models.Summary.objects.filter(text="word made anew").exists()
    else:
        assert [job.session_id for job in convmemory.queued] == [row_of(chat).pk]


def test_a_message_is_redacted(chat: SessionHandle) -> None:
    url = url_of(chat, "redact/26/")
    client = staff("view_session", "change_message")
    asked = client.post(url).content.decode()
    assert "is emptied" in asked
    # It shows the message, escaped.
    assert html.escape(EVIL) in asked
    assert EVIL not in asked
    assert "[an image: http://evil.example/pixel.png]" in asked
    assert "turn 1" not in asked
    assert models.Message.objects.get(position=26).redacted_at is None
    assert client.post(url, {"confirmed": "yes"}).status_code == 302
    assert models.Message.objects.get(position=26).redacted_at is not None
    assert "position 26" in LogEntry.objects.get().change_message
    # A position without a message cannot be redacted.
    for position in (0, 29, 10**18 - 1):
        answer = client.post(url_of(chat, f"redact/{position}/"), {"confirmed": "yes"}, follow=True)
        assert answer.status_code == 200
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize("folded", [False, True])
def test_after_a_redaction_the_admin_says_whether_a_request_may_be_on_its_way(
    folded: bool, chat: SessionHandle
) -> None:
    if folded:
        until = clock.Clock() + dt.timedelta(minutes=5)
        models.Session.objects.filter(pk=row_of(chat).pk).update(lease_expires_at=until)
    client = staff("view_session", "change_message")
    answer = client.post(url_of(chat, "redact/26/"), {"confirmed": "yes"}, follow=True)
    [notice] = map(str, answer.context["messages"])
    assert notice.startswith("The message was redacted.")
    assert ("may still reach the provider" in notice) == folded


@pytest.mark.parametrize("pk", ["²", "9" * 30, "9" * 5000, "-1", "x"])
def test_an_address_of_no_session(pk: str, db: None) -> None:
    assert staff("view_session").get(f"{LIST}{pk}/change/").status_code == 404


def test_an_export_and_the_history(chat: SessionHandle, client: Client) -> None:
    answer = client.get(url_of(chat, "export/"))
    record = json.loads(b"".join(answer.streaming_content))  # type: ignore[attr-defined]
    assert (record["key"], len(record["messages"])) == ("main", 28)
    history = client.get(url_of(chat, "history/")).context["action_list"]
    assert (history.paginator.count, history.paginator.num_pages) == (0, 1)


def test_the_actions_of_the_list(anna: User, convmemory: ScriptedMemories) -> None:
    for number in range(3):
        memories["default"].session(f"k{number}", owner=anna).append(ChatMessage.human("hello"))
    first, second, gone = models.Session.objects.order_by("key")
    models.Session.objects.filter(pk=gone.pk).update(alias="gone")
    chosen = {"_selected_action": [first.pk, second.pk, gone.pk]}
    looks, changes = staff("view_session"), staff("view_session", "change_session")
    for action in ("compact", "delete_selected"):
        assert b"No action selected." in looks.post(LIST, chosen | {"action": action}, follow=True).content
    deletion = chosen | {"action": "delete_selected", "post": "yes"}
    assert b"No action selected." in changes.post(LIST, deletion, follow=True).content
    assert models.Session.objects.count() == 3
    assert (convmemory.queued, LogEntry.objects.count()) == ([], 0)

    answer = changes.post(LIST, chosen | {"action": "compact"}, follow=True).content.decode()
    assert "Workers were asked to compact 2 sessions." in answer
    assert "No worker could be asked to compact 1 session." in answer
    assert {job.session_id for job in convmemory.queued} == {first.pk, second.pk}
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(first.pk), str(second.pk)}

    sent = looks.post(LIST, chosen | {"action": "export"})
    records = b"".join(sent.streaming_content).splitlines()  # type: ignore[attr-defined]
    assert [json.loads(record)["key"] for record in records] == ["k0", "k1", "k2"]
    # An action on the sessions of all pages is refused.
    for action in ("compact", "export"):
        everything = {"action": action, "select_across": "1", "_selected_action": [first.pk]}
        assert "Select the sessions page by page." in changes.post(LIST, everything, follow=True).content.decode()
    assert len(convmemory.queued) == 2


def test_a_notice_says_that_no_worker_could_be_asked(chat: SessionHandle) -> None:
    from django_convmemory.scheduling import NullScheduler

    memories["default"].scheduler = NullScheduler()
    answer = staff("view_session", "change_session").post(url_of(chat, "rebuild/"), follow=True)
    assert b"The broker cannot be reached" in answer.content


support = AdminSite(name="support")


@register(models.Session, site=support)
class SupportAdmin(SessionAdmin):
    """An admin of some sessions, on a second admin site. So it has no overview unless it says so."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Session]:
        return super().get_queryset(request).filter(key__startswith="s")


class Sites:
    urlpatterns = [at("admin/", admin.site.urls), at("support/", support.urls)]


def test_each_admin_site_links_to_its_own_pages(chat: SessionHandle, anna: User, settings: Any) -> None:
    settings.ROOT_URLCONF = Sites
    memories["default"].session("s1", owner=anna).append(ChatMessage.human("hello"))
    client = staff("view_session", "change_session", "delete_session", "change_message")
    theirs = LIST.replace("/admin/", "/support/", 1)
    answer = client.get(theirs)
    assert [session.key for session in answer.context["cl"].result_list] == ["s1"]
    assert b"overview" not in answer.content
    own = models.Session.objects.get(key="s1").pk
    page = client.get(f"{theirs}{own}/change/").content.decode()
    assert '"/support/convmemory/session/"' in page
    assert "/admin/" not in page.replace("/static/admin/", "")
    other = row_of(chat).pk
    for work in ("change/", "export/"):
        assert client.get(f"{theirs}{other}/{work}").status_code == 404
    for work in (*(f"{name}/" for name in WORK), "redact/2/"):
        assert client.post(f"{theirs}{other}/{work}", {"confirmed": "yes"}).status_code == 404
    assert client.get(f"{theirs}overview/").status_code == 403
    assert client.post(f"{theirs}retry/").status_code == 403
    assert client.post(f"{theirs}{own}/clear/", {"confirmed": "yes"})["Location"] == f"{theirs}{own}/change/"
    assert b"for good" in client.post(f"{theirs}{own}/delete/").content
    assert client.post(f"{theirs}{own}/delete/", {"confirmed": "yes"})["Location"] == theirs
    assert client.get(f"{LIST}999999/change/").status_code == 404
