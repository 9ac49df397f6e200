"""What people see while an alias is paused: in the admin, the API, the statistics and the checks."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from django_convmemory import exceptions, models
from django_convmemory.admin import waiting
from django_convmemory.admin.overview import Overview
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.clock import Clock
from django_convmemory.fold import chunk
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.pause import Pause
from django_convmemory.templatetags import convmemory as convmemory_tags
from django_convmemory.testing import ScriptedMemories
from tests.admin.test_sessions import LIST, staff
from tests.api.conftest import ROOT, client_of

pytestmark = pytest.mark.django_db

OVERVIEW = f"{LIST}overview/"
WRONG_KEY = exceptions.ModelMisconfigured("<b>401</b> Incorrect API key")


@pytest.fixture
def anna(db: None) -> User:
    return User.objects.create_user("anna")


def due(*keys: str, alias: str = "default", **whose: Any) -> list[models.Session]:
    """Make sessions due, and return them."""
    for key in keys:
        session = memories[alias].session(key, **whose)
        while not session.append(ChatMessage.human("word " * 20), ChatMessage.ai("word " * 20)).due:
            pass
    return [row(key) for key in keys]


def row(key: str) -> models.Session:
    return models.Session.objects.with_clock().get(key=key)


def fold(session: models.Session) -> str:
    """Do what a worker does that nobody asked to ignore a pause."""
    return str(memories[session.alias].compact_id(session.pk).outcome)


@pytest.fixture
def wrong_key(convmemory: ScriptedMemories, anna: User) -> list[models.Session]:
    """Six due sessions. The first was tried with a wrong key. The others wait since then."""
    sessions = due(*"abcdef", owner=anna)
    convmemory.reply(WRONG_KEY)
    assert [fold(session) for session in sessions] == ["stalled"] * 6
    assert len(convmemory.requests) == 1
    return [row(key) for key in "abcdef"]


@pytest.fixture
def outage(convmemory: ScriptedMemories) -> list[models.Session]:
    """Five due sessions. Three were tried during an outage. The others wait since then."""
    sessions = due(*"abcde")
    convmemory.reply(*[exceptions.ModelUnavailable("503 down")] * 3)
    assert [fold(session) for session in sessions] == ["stalled"] * 5
    assert len(convmemory.requests) == 3
    return [row(key) for key in "abcde"]


def end_pause() -> None:
    """Let the time of the next call come."""
    models.AliasState.objects.update(paused_until=Clock(-1))


def text_of(client: Any, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200
    content: str = answer.content.decode()
    return content


# States.


def test_sessions_that_only_wait_for_the_model_are_paused(wrong_key: list[models.Session]) -> None:
    assert [session.state for session in wrong_key] == ["failing", *["paused"] * 5]
    rows = models.Session.objects.with_clock()
    states = ("idle", "due", "compacting", "failing", "paused")
    assert [rows.in_state(state).count() for state in states] == [0, 0, 0, 1, 5]


def test_they_stay_paused_until_the_model_answers(outage: list[models.Session], convmemory: ScriptedMemories) -> None:
    end_pause()
    assert row("e").state == "paused"
    convmemory.reply("They spoke.")
    assert fold(outage[4]) == "published"
    assert row("d").state == "due"
    assert row("e").state == "idle"


def test_a_rate_limit_pauses_only_for_its_time(convmemory: ScriptedMemories) -> None:
    first, _second = due("a", "b")
    convmemory.reply(exceptions.RateLimited("429 slow down", retry_after=30.0))
    assert fold(first) == "stalled"
    assert row("b").state == "paused"
    end_pause()
    assert row("b").state == "due"
    assert list(models.AliasState.objects.paused()) == []


def test_other_aliases_are_not_paused(settings: Any, convmemory: ScriptedMemories) -> None:
    settings.CONVMEMORY = settings.CONVMEMORY | {"other": settings.CONVMEMORY["default"]}
    (first,) = due("a")
    due("b", alias="other")
    convmemory.reply(WRONG_KEY)
    fold(first)
    assert row("b").state == "due"
    assert [pause.state.alias for pause in waiting.pauses(models.Session.objects.all(), memories)] == ["default"]


# The admin.


@pytest.mark.parametrize("page", ["list", "overview", "session"])
def test_each_page_says_which_memory_is_paused_since_when_why_and_how_many_wait(
    wrong_key: list[models.Session], page: str
) -> None:
    url = {"list": LIST, "overview": OVERVIEW, "session": f"{LIST}{wrong_key[3].pk}/change/"}[page]
    answer = staff("view_session").get(url)
    (pause,) = answer.context["pauses"]
    text = answer.content.decode()
    assert "The memory “default” is paused: the model is misconfigured." in text
    assert "6 due sessions wait." in text
    assert "ModelMisconfigured: &lt;b&gt;401&lt;/b&gt; Incorrect API key" in text
    assert timezone.now() - dt.timedelta(minutes=1) < pause.state.since <= pause.state.now < pause.next_call
    assert f"in {pause.seconds_left} s</time>" in text
    assert 30 < pause.seconds_left <= 75
    assert "Meanwhile, the fallback model folds" not in text


def test_after_the_pause_the_next_task_or_sweep_calls_the_model(wrong_key: list[models.Session]) -> None:
    client = staff("view_session")
    assert "with the next task or sweep" not in text_of(client, OVERVIEW)
    end_pause()
    assert "with the next task or sweep" in text_of(client, OVERVIEW)


def test_a_memory_that_makes_no_summaries_any_more_is_not_paused(
    wrong_key: list[models.Session], settings: Any
) -> None:
    buffer = {"MEMORY": "django_convmemory.memory.ConversationBufferMemory"}
    settings.CONVMEMORY = {"default": buffer}
    assert "is paused" not in text_of(staff("view_session"), OVERVIEW)
    settings.CONVMEMORY = {"other": buffer}
    assert "is paused" not in text_of(staff("view_session"), f"{LIST}{wrong_key[0].pk}/change/")


def test_the_notice_says_when_the_fallback_stands_in(outage: list[models.Session]) -> None:
    memory = memories["default"]
    client = staff("view_session")
    models.AliasState.objects.update(since=Clock(-memory.options.fallback_after - 60))
    assert "Meanwhile, the fallback model folds" not in text_of(client, OVERVIEW)
    memory.fallback = ScriptedChatModel([])
    assert "Meanwhile, the fallback model folds those that have waited long enough." in text_of(client, OVERVIEW)
    models.AliasState.objects.update(since=Clock(-60))
    assert "Meanwhile, the fallback model folds" not in text_of(client, OVERVIEW)


def test_the_overview_lists_the_first_that_are_stuck_and_does_not_count_all(
    wrong_key: list[models.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convmemory_tags, "MOST_COUNTED", 4)
    answer = staff("view_session").get(OVERVIEW)
    figures = answer.context["overview"]
    assert (len(figures.due), len(figures.stuck)) == (5, 5)
    assert [(session.key, session.state) for session in figures.waiting] == [
        ("a", "failing"),
        *[(key, "paused") for key in "bcde"],
    ]
    text = answer.content.decode()
    assert text.count('<span class="convmemory-state paused">paused</span>') == 4
    assert "4+ due sessions wait." in text


def test_the_list_filters_by_paused(wrong_key: list[models.Session]) -> None:
    answer = staff("view_session").get(f"{LIST}?state=paused")
    assert {session.key for session in answer.context["cl"].result_list} == set("bcdef")
    assert "?state=paused" in text_of(staff("view_session"), LIST)


def test_a_sessions_page_never_shows_a_next_attempt_in_the_past(wrong_key: list[models.Session]) -> None:
    url = f"{LIST}{wrong_key[0].pk}/change/"
    client = staff("view_session")
    models.Session.objects.update(next_attempt_at=Clock(-600))
    answer = client.get(url)
    assert answer.context["page"].status.next_attempt_at == answer.context["page"].pause.next_call
    models.Session.objects.update(next_attempt_at=Clock(600))
    page = client.get(url).context["page"]
    assert page.status.next_attempt_at == page.session.next_attempt_at
    models.Session.objects.update(next_attempt_at=Clock(-600))
    end_pause()
    answer = client.get(url)
    assert answer.context["page"].status.next_attempt_at is None
    assert "the next with a task or a sweep" in answer.content.decode()


def test_a_pause_costs_the_same_however_many_sessions_wait(
    convmemory: ScriptedMemories, wrong_key: list[models.Session]
) -> None:
    client, taken = staff("view_session"), []
    client.get(OVERVIEW)
    for number in range(2):
        with CaptureQueriesContext(connection) as captured:
            text_of(client, OVERVIEW)
        taken.append(len(captured))
        due(*[f"{number} {key}" for key in range(20)])
    # One counts the sessions that wait.
    assert taken == [15, 15]


def test_compact_now_says_that_the_memory_is_paused(
    wrong_key: list[models.Session], convmemory: ScriptedMemories
) -> None:
    url = f"{LIST}{wrong_key[2].pk}/compact/"
    client = staff("view_session", "change_session")
    text = client.post(url, follow=True).content.decode()
    assert "The memory is paused. A worker was asked to compact the session all the same." in text
    convmemory.allow_unused_replies = True
    convmemory.reply(*["They spoke."] * 6)
    assert "published" in convmemory.run()
    (session,) = due("again")
    text = client.post(f"{LIST}{session.pk}/compact/", follow=True).content.decode()
    assert "A worker was asked to compact the session." in text
    assert "is paused" not in text


def test_retry_tries_a_paused_model_with_one_session(
    wrong_key: list[models.Session], convmemory: ScriptedMemories
) -> None:
    convmemory._queue.clear()
    client = staff("view_session", "change_session")
    text = client.post(f"{LIST}retry/", follow=True).content.decode()
    assert "A worker was asked to compact 1 session." in text
    assert "5 sessions wait, because their memory is paused" in text
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(wrong_key[0].pk)]
    convmemory.reply(WRONG_KEY)
    # It was called once, though it had just failed.
    assert convmemory.run() == ["stalled"]
    assert len(convmemory.requests) == 2


def test_retry_asks_for_all_for_which_the_fallback_stands_in(
    outage: list[models.Session], convmemory: ScriptedMemories
) -> None:
    memory = memories["default"]
    memory.fallback = ScriptedChatModel([])
    models.AliasState.objects.update(since=Clock(-memory.options.fallback_after - 60))
    models.Session.objects.exclude(key="e").update(due_since=Clock(-memory.options.fallback_after - 60))
    text = staff("view_session", "change_session").post(f"{LIST}retry/", follow=True).content.decode()
    assert "Workers were asked to compact 4 sessions." in text
    assert "1 session waits, because its memory is paused" in text


def test_who_may_not_see_the_overview_is_told_only_of_pauses_of_own_sessions(
    wrong_key: list[models.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_convmemory.admin.SessionAdmin.has_overview_permission", lambda self, request: False)
    client = staff("view_session")
    assert "6 due sessions wait." in text_of(client, LIST)
    models.Session.objects.update(due_since=None)
    assert "is paused" not in text_of(client, LIST)


# What stands in, and what is not finished.


def test_sessions_that_wait_for_a_rebuild_are_counted(
    outage: list[models.Session], convmemory: ScriptedMemories
) -> None:
    assert Overview("default").to_be_rebuilt == []
    assert "to be rebuilt" not in text_of(staff("view_session"), OVERVIEW)
    memory = memories["default"]
    memory.fallback = ScriptedChatModel(["They spoke."] * 2)
    models.AliasState.objects.update(since=Clock(-memory.options.fallback_after - 60))
    assert fold(outage[3]) == "stalled"
    models.Session.objects.update(due_since=Clock(-memory.options.fallback_after - 60))
    assert [fold(session) for session in outage[3:]] == ["published"] * 2
    assert len(Overview("default").to_be_rebuilt) == 2
    text = text_of(staff("view_session"), OVERVIEW)
    assert "2 summaries wait to be rebuilt" in text
    page = text_of(staff("view_session"), f"{LIST}{outage[4].pk}/change/")
    assert ">by the fallback model</span>" in page
    assert ">stands in</span>" in page


def test_a_version_that_was_carried_over_is_marked(convmemory: ScriptedMemories, anna: User) -> None:
    session = memories["default"].session("s", owner=anna)
    while not session.append(ChatMessage.human("… !? " * 20)).due:
        pass
    fold(row("s"))
    summary = models.Summary.objects.get()
    page = text_of(staff("view_session"), f"{LIST}{row('s').pk}/change/")
    assert ">carried over</span>" in page
    assert "no text yet" in page
    assert "redacted" not in page
    shown = _api_summary(anna, "s", summary.version)
    assert [shown[name] for name in ("carried", "cut", "part", "stand_in", "building")] == [True, *[False] * 4]


def _api_summary(user: User, key: str, version: int) -> dict[str, Any]:
    answer = client_of(user).get(f"{ROOT}{row(key).public_id}/summaries/{version}/")
    shown: dict[str, Any] = answer.json()
    return shown


def test_a_message_that_was_cut_and_its_parts_are_marked(
    convmemory: ScriptedMemories, anna: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk, "MAX_PARTS", 3)
    entry = settings.CONVMEMORY["default"]
    options = {"max_token_limit": 200, "max_chunk_tokens": 200}
    settings.CONVMEMORY = {"default": entry | {"OPTIONS": options}}
    session = memories["default"].session("s", owner=anna)
    session.append(ChatMessage.human("word " * 3000))
    while not session.append(ChatMessage.human("word " * 20)).due:
        pass
    convmemory.reply("One part.", "Two parts.")
    convmemory.reply(exceptions.BadModelOutput("nothing"))
    assert fold(row("s")) == "stalled"
    client = staff("view_session")
    url = f"{LIST}{row('s').pk}/change/"
    page = text_of(client, url)
    assert ">part</span>" in page
    assert ">not finished</span>" in page
    shown = _api_summary(anna, "s", 2)
    assert (shown["part"], shown["building"], shown["cut"]) == (True, True, False)
    convmemory.reply("As much of it as was read.")
    memories["default"].compact(row("s"))
    page = text_of(client, f"{url}?version=3")
    assert ">cut</span>" in page
    assert ">not finished</span>" not in page
    assert _api_summary(anna, "s", 3)["cut"] is True
    # The parts are not shown, though nothing more will come.
    assert ">part</span>" in text_of(client, f"{url}?version=2")


# The API.


def test_the_status_says_that_the_session_is_paused_and_why(wrong_key: list[models.Session], anna: User) -> None:
    client = client_of(anna)
    status = _status(client, wrong_key[1])
    assert (status["state"], status["pause"], status["last_error"]) == ("paused", "misconfigured", "")
    status = _status(client, wrong_key[0])
    assert (status["state"], status["pause"], status["last_error"]) == (
        "failing",
        "misconfigured",
        "ModelMisconfigured",
    )
    assert "API key" not in json.dumps(status)
    keys = [session["key"] for session in client.get(f"{ROOT}?state=paused").json()["results"]]
    assert sorted(keys) == list("bcdef")


def _status(client: APIClient, session: models.Session) -> dict[str, Any]:
    status: dict[str, Any] = client.get(f"{ROOT}{session.public_id}/status/").json()
    return status


def test_the_end_of_a_pause_changes_the_entity_tag(
    wrong_key: list[models.Session], anna: User, convmemory: ScriptedMemories
) -> None:
    client = client_of(anna)
    for session, state in ((wrong_key[0], "failing"), (wrong_key[1], "due")):
        url = f"{ROOT}{session.public_id}/status/"
        models.AliasState.objects.update(paused_until=Clock(60))
        before = client.get(url)
        assert client.get(url, headers={"If-None-Match": before["ETag"]}).status_code == 304
        memories["default"].store.change_pause("default", Pause.answered)
        after = client.get(url, headers={"If-None-Match": before["ETag"]})
        assert (after.status_code, after.json()["state"], after.json()["pause"]) == (200, state, None)
        models.AliasState.objects.update(reason="misconfigured")
