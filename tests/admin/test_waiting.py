"""Why a session waits: on the overview, and on the session's page, which asks for its state again."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest

from django_convmemory import models
from django_convmemory.admin.overview import Overview
from django_convmemory.admin.waiting import Status, WaitReason
from django_convmemory.clock import Clock
from django_convmemory.exceptions import ModelUnavailable
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.templatetags import convmemory as convmemory_tags
from django_convmemory.testing import ScriptedMemories
from tests.admin.test_sessions import LIST, staff

pytestmark = pytest.mark.django_db
OVERVIEW = f"{LIST}overview/"


def due(key: str, memory: str = "default", **columns: Any) -> models.Session:
    """Make a session due, and set ``columns``."""
    session = memories[memory].session(key)
    while not session.append(ChatMessage.human("word " * 20), ChatMessage.ai("word " * 20)).due:
        pass
    models.Session.objects.filter(key=key).update(**columns)
    return models.Session.objects.with_clock().get(key=key)


def pause(alias: str = "default", reason: str = "outage", seconds: float = 45, **columns: Any) -> None:
    models.AliasState.objects.update_or_create(
        alias=alias, defaults={"since": Clock(-600), "paused_until": Clock(seconds), "reason": reason} | columns
    )


def why(session: models.Session) -> str:
    """Return the sentences on the session's page that say why it waits."""
    text = staff("view_session").get(f"{LIST}{session.pk}/change/").content.decode()
    found = re.search(r'<p id="convmemory-why">(.*?)</p>', text, re.DOTALL)
    assert found
    return " ".join(found[1].split())


@pytest.mark.parametrize(
    ("columns", "reason", "sentence"),
    [
        ({"queued_at": None}, WaitReason.DUE, "It waits for its task, or for a sweep: "),
        ({"queued_at": Clock(-60)}, WaitReason.DUE, "It waits for its task, or for a sweep: "),
        (
            {"due_since": Clock(-60), "queued_at": Clock(-5)},
            WaitReason.SENT,
            "If no worker takes it within five minutes, a sweep sends another one.",
        ),
        ({"last_error": "Boom", "next_attempt_at": None}, WaitReason.FAILING, "The next task or sweep tries it again."),
        ({"last_error": "Boom", "next_attempt_at": Clock(60)}, WaitReason.FAILING, "The first task or sweep after "),
        ({"lease_expires_at": Clock(60)}, WaitReason.COMPACTING, "A worker works on it now."),
        ({"due_since": None}, WaitReason.UNMARKED, "It exceeds the limit, but is not marked as due."),
        ({"alias": "gone"}, WaitReason.GONE, "Nothing happens until its alias is in the settings again."),
    ],
)
def test_the_page_says_why_a_session_waits(
    convmemory: ScriptedMemories, columns: dict[str, Any], reason: WaitReason, sentence: str
) -> None:
    session = due("a", **columns)
    assert Status(session).reason == reason
    assert sentence in why(session)


def test_an_idle_session_waits_for_nothing_or_for_a_rebuild(convmemory: ScriptedMemories) -> None:
    memories["default"].append("a", ChatMessage.human("hello"))
    session = models.Session.objects.get()
    assert why(session) == "Nothing is due."
    models.Session.objects.update(rebuild_after=Clock(-60))
    assert "Its summary waits to be rebuilt" in why(session)


def test_a_memory_without_a_model_waits_for_its_index(settings: Any) -> None:
    settings.CONVMEMORY = {"default": {"MEMORY": "django_convmemory.memory.ConversationBufferMemory"}}
    memories["default"].append("a", ChatMessage.human("hello"))
    models.Session.objects.update(due_since=Clock(-60))
    assert "New messages wait to be indexed for searches." in why(models.Session.objects.get())


def test_the_page_says_when_a_pause_ends(convmemory: ScriptedMemories) -> None:
    session = due("a")
    pause(reason="rate_limit")
    expected = "It waits because its memory is paused: the provider takes no more calls. From "
    assert why(session).startswith(expected)


def test_a_pause_ends_before_the_next_attempt_of_a_session(convmemory: ScriptedMemories) -> None:
    session = due("a", last_error="Boom", next_attempt_at=Clock(36_000))
    assert f"after {convmemory_tags.moment(session.next_attempt_at)} tries it again" in why(session)
    pause(seconds=600)
    state = models.AliasState.objects.get()
    assert state.paused_until is not None
    assert f"From {convmemory_tags.moment(state.paused_until)} on, one session tries the model." in why(session)
    pause(seconds=-5)
    assert "The next task or sweep tries the model with one session." in why(session)


# The overview.


def test_the_overview_shows_the_oldest_due_session_of_each_memory(convmemory: ScriptedMemories, settings: Any) -> None:
    settings.CONVMEMORY = settings.CONVMEMORY | {"other": settings.CONVMEMORY["default"]}
    for number, key in enumerate("cab"):
        due(key, due_since=Clock(-60 * number - 60))
    due("x", memory="other", due_since=Clock(-7200))
    pause(alias="other")
    answer = staff("view_session").get(OVERVIEW)
    oldest = answer.context["waiting"]
    assert [(status.session.key, status.reason) for status in oldest] == [("x", "paused"), ("b", "due")]
    assert Overview("default", alias="default").waiting[0].key == "b"
    assert (Overview("default").lag or dt.timedelta()) >= dt.timedelta(hours=2)
    text = answer.content.decode()
    for status in oldest:
        assert f'<a href="{LIST}{status.session.pk}/change/">{status.session}</a>' in text
    assert "It waits because its memory is paused: the model does not answer." in text


def test_the_overview_shows_the_state_of_the_pause(convmemory: ScriptedMemories) -> None:
    (session, client) = due("a"), staff("view_session")
    assert "Calls of the model" not in client.get(OVERVIEW).content.decode()
    convmemory.reply(ModelUnavailable("<b>503</b>"))
    memories["default"].compact_id(session.pk)
    text = client.get(OVERVIEW).content.decode()
    assert "The model of “default” has failed 1 time. There is no pause" in text
    assert "&lt;b&gt;503" in text
    for columns, state in (
        ({"failures": 9}, "none: nobody calls the model, 9 failures in a row"),
        ({"failures": 9, "seconds": -5}, "one session tries the model, 9 failures in a row"),
        ({"failures": 0, "reason": "rate_limit"}, "none: the provider asked to wait<"),
    ):
        pause(**columns)
        text = client.get(OVERVIEW).content.decode()
        assert f"<dt>Calls of the model</dt><dd>{state}" in text
        assert "times in a row. There" not in text


def test_the_overview_links_the_oldest_summaries_to_be_made_again(convmemory: ScriptedMemories) -> None:
    for number in range(7):
        memories["default"].append(str(number), ChatMessage.human("hello"))
        models.Session.objects.filter(key=str(number)).update(rebuild_after=Clock(-60 * number))
    answer = staff("view_session").get(OVERVIEW)
    assert "7 summaries wait to be rebuilt" in answer.content.decode()
    assert [session.key for session in answer.context["overview"].oldest_rebuilds] == ["6", "5", "4", "3", "2"]


# The state on the page.


def test_the_state_names_the_button_to_those_who_may_press_it(convmemory: ScriptedMemories) -> None:
    url = f"{LIST}{due('a', last_error='<script>alert(1)</script>').pk}/change/"
    text = staff("view_session").get(url).content.decode()
    assert "Compact now" not in text
    assert "<script>alert" not in text
    assert "without waiting for the next attempt" in staff("change_session").get(url).content.decode()


# What "Compact now" will do, and did.


def test_the_page_says_what_compact_now_will_do(convmemory: ScriptedMemories) -> None:
    session, client = due("a"), staff("view_session", "change_session")
    url = f"{LIST}{session.pk}/"

    def says(text: str) -> bool:
        return text in client.get(f"{url}change/").content.decode()

    assert says("asks a worker to fold it, without waiting for the next attempt.")
    pause()
    assert says("asks a worker to call the model with this session, in spite of the pause.")
    models.Session.objects.update(lease_expires_at=Clock(60))
    assert says("asks another worker, which finds that a worker is already compacting the session.")
    models.Session.objects.update(lease_expires_at=None)
    convmemory.reply("They spoke.")
    convmemory.run()
    assert says("would ask no worker: nothing is due.")
    text = client.post(f"{url}compact/", follow=True).content.decode()
    assert "Nothing is due in this session, so no worker was asked." in text
    assert convmemory.queued == []
