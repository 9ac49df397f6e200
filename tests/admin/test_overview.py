"""The overview: its figures match the rows, and its cost does not grow with them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_convmemory import models
from django_convmemory.admin import overview
from django_convmemory.admin.overview import Overview
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.templatetags import convmemory
from django_convmemory.testing import ScriptedMemories
from tests.admin.test_sessions import LIST, staff
from tests.folding import attempt

pytestmark = [pytest.mark.vendors, pytest.mark.django_db]

URL = f"{LIST}overview/"


def call(days: int = 0, alias: str = "default", at: dt.datetime | None = None, **columns: Any) -> None:
    columns = {"model": "m", "duration_seconds": 2.0, "due_seconds": 3.0} | columns
    # Days of the calendar: where the clocks have changed since, the same time as now may be another day.
    at = at or timezone.make_aware(timezone.localtime().replace(tzinfo=None) - dt.timedelta(days=days))
    attempt(alias=alias, started_at=at, **columns)


def test_the_overview_of_an_empty_database() -> None:
    answer = staff("view_session").get(URL)
    figures = answer.context["overview"]
    assert (figures.stored.sessions, figures.calls.total.calls, figures.due, figures.lag) == (0, 0, [], None)
    text = answer.content.decode()
    for sentence in ("No model was called in these days.", "No price is known.", "No session is due."):
        assert sentence in text
    assert "to be rebuilt" not in text
    # It searches the list.
    form = text.partition('role="search"')[0].rpartition("<form")[2]
    assert f'action="{LIST}"' in form
    assert '<input type="search" name="q"' in text


def test_saved_tokens_are_the_history_without_the_context(convmemory: ScriptedMemories) -> None:
    convmemory.allow_unused_replies = True
    convmemory.reply("They spoke words.", "They spoke more words.")
    sessions = [memories["default"].session(str(number)) for number in range(3)]
    for number, session in enumerate(sessions):
        session.append(ChatMessage.system("Be kind."))
        session.append(*[ChatMessage.human(f"turn {index} " + "word " * 20) for index in range(1 + 12 * number)])
    convmemory.run()
    stored = Overview("default").stored
    rows = models.Session.objects.all()
    assert (stored.sessions, stored.messages, stored.estimated) == (3, 3 + 39, False)
    assert stored.history == sum(row.unpinned_tokens + row.pinned_tokens for row in rows)
    assert stored.context == sum(session.load(max_tokens=10**6).tokens for session in sessions)
    assert 0 < stored.saved_percent < 100


def test_many_sessions_are_estimated_from_a_sample(
    monkeypatch: pytest.MonkeyPatch, convmemory: ScriptedMemories
) -> None:
    monkeypatch.setattr(overview, "RANGES", 10)
    monkeypatch.setattr(overview, "RANGE_SIZE", 5)
    for number in range(200):
        memories["default"].append(str(number), *[ChatMessage.human("word")] * (1 + number // 40))
    stored = Overview("default").stored
    assert stored.estimated
    assert stored.sessions == 200
    assert 500 < stored.messages < 700  # 600


def test_calls_are_counted_by_model_and_by_day(settings: Any) -> None:
    settings.CONVMEMORY = settings.CONVMEMORY | {"other": settings.CONVMEMORY["default"]}
    call(prompt_tokens=100, completion_tokens=10, cached_tokens=60, cost=Decimal("0.5"))
    # A provider may count more cached tokens than tokens.
    call(days=1, model="big", prompt_tokens=7, completion_tokens=1, cached_tokens=9, cost=Decimal("2.25"))
    call(days=1, outcome="unavailable", duration_seconds=8.0)
    call(days=1, outcome="dropped", duration_seconds=2.0)
    call(days=29, alias="other")
    call(days=30)
    call(alias="gone")
    figures = Overview("default").calls
    assert [(model, *sums) for model, sums in figures.by_model] == [
        ("big", 1, 0, 7, 9, 1, 2.0, Decimal("2.25")),
        ("m", 4, 1, 100, 60, 10, 14.0, Decimal("0.5")),
    ]
    assert figures.total.cost == Decimal("2.75")
    by_day = [sums for _day, sums in figures.by_day]
    assert [(sums.calls, sums.tokens, sums.cost) for sums in (by_day[0], by_day[-2], by_day[-1])] == [
        (1, (0, 0, 0), None),
        (3, (7, 0, 1), Decimal("2.25")),
        (1, (60, 40, 10), Decimal("0.5")),
    ]
    assert sum(sums.calls for sums in by_day) == 5
    assert Overview("default", alias="other").calls.total.calls == 1
    text = staff("view_session").get(URL).content.decode()
    assert '<td class="number">100&nbsp;/ 10<br><small>(60 from the cache)</small></td>' in text
    assert '<td class="number">3.5 s</td><td class="number">0.50</td>' in text
    assert "2.75" in text
    assert "No price is known." not in text


def test_a_day_begins_at_midnight_in_the_time_zone_of_the_site(settings: Any) -> None:
    with timezone.override("Asia/Tokyo"):
        midnight = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0)
        for seconds in (-1, 1):
            call(at=midnight + dt.timedelta(seconds=seconds))
        assert [sums.calls for _day, sums in Overview("default").calls.by_day][-2:] == [1, 1]
    settings.USE_TZ = False
    assert sum(sums.calls for _day, sums in Overview("default").calls.by_day) == 2


def test_only_the_newest_of_many_calls_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MAX_CALLS", 10)
    for days in range(15, 0, -1):
        call(days=days)
    figures = Overview("default").calls
    assert figures.total.calls == 10
    assert figures.since is not None
    assert dt.timedelta(days=9) < timezone.now() - figures.since < dt.timedelta(days=11)
    assert "Only the calls since" in staff("view_session").get(URL).content.decode()
    monkeypatch.setattr(overview, "MAX_CALLS", 15)
    assert Overview("default").calls.since is None


def test_due_and_failing_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        memories["default"].append(str(number), ChatMessage.human("word"))
    now = timezone.now()
    rows = models.Session.objects
    rows.filter(key__in=["1", "2", "3"]).update(due_since=now - dt.timedelta(minutes=3), last_error="Boom: <b>")
    rows.filter(key="2").update(due_since=now - dt.timedelta(minutes=9))
    rows.filter(key="3").update(lease_expires_at=now + dt.timedelta(minutes=9))
    rows.filter(key="4").update(due_since=now)
    figures = Overview("default")
    assert (len(figures.due), len(figures.stuck)) == (4, 2)
    assert [session.key for session in figures.waiting] == ["2", "1"]
    assert figures.lag is not None
    assert dt.timedelta(minutes=8) < figures.lag < dt.timedelta(minutes=10)
    answer = staff("view_session").get(URL)
    assert "Boom: &lt;b&gt;" in answer.content.decode()
    assert "<strong>4</strong>sessions due now" in answer.content.decode()
    monkeypatch.setattr(convmemory, "MOST_COUNTED", 3)
    assert "<strong>3+</strong>sessions due now" in staff("view_session").get(URL).content.decode()


def test_retry_compacts_the_failing_sessions(convmemory: ScriptedMemories, settings: Any) -> None:
    settings.CONVMEMORY = settings.CONVMEMORY | {"other": settings.CONVMEMORY["default"]}
    for alias, key in (("default", "a"), ("default", "b"), ("other", "c"), ("default", "well")):
        memories[alias].append(key, ChatMessage.human("word"))
    models.Session.objects.exclude(key="well").update(due_since=timezone.now(), last_error="Boom")
    url = f"{LIST}retry/"
    client = staff("view_session", "change_session")
    assert "Retry all that could not be folded" in client.get(URL).content.decode()
    assert "Retry all that could not be folded" not in staff("view_session").get(URL).content.decode()
    client.post(url, {"alias": "other"})
    assert [job.alias for job in convmemory.queued] == ["other"]
    assert client.post(url)["Location"] == URL
    keys = dict(models.Session.objects.values_list("pk", "key"))
    assert {keys[job.session_id] for job in convmemory.queued} == {"a", "b", "c"}


def test_each_session_has_its_title_and_owner() -> None:
    anna = User.objects.create_user("<b>anna</b>")
    memories["default"].session("mine", owner=anna).append(ChatMessage.human("hello"))
    memories["default"].session("theirs", visitor="0123456789abcdef").append(ChatMessage.human("hello"))
    models.Session.objects.update(title="<i>trip</i>", due_since=timezone.now(), last_error="Boom")
    text = staff("view_session").get(URL).content.decode()
    title = "<bdi>&lt;i&gt;trip&lt;/i&gt;</bdi>"
    assert text.count(f"{title} · <bdi>&lt;b&gt;anna&lt;/b&gt;</bdi>") == 1
    assert text.count(f"{title} · visitor 0123456789ab<") == 1
    assert "abcdef" not in text
    assert "<i>" not in text


def test_the_number_of_statements_does_not_grow_with_the_rows(settings: Any, client: Client) -> None:
    settings.CONVMEMORY = {f"m{number}": settings.CONVMEMORY["default"] for number in range(8)}
    client.get(URL)
    taken = []
    for count in (1, 40):
        for number in range(count):
            owner = User.objects.create_user(f"{count} {number}")
            memories["m0"].session(f"{count} {number}", owner=owner).append(ChatMessage.human("word"))
            row = models.Session.objects.get(key=f"{count} {number}")
            call(alias="m0", model=f"model {number}", session=row, cost=Decimal(1))
        models.Session.objects.update(due_since=timezone.now(), last_error="Boom")
        with CaptureQueriesContext(connection) as captured:
            assert client.get(URL).status_code == 200
        taken.append(len(captured))
    assert taken[0] == taken[1] <= 15


@pytest.mark.parametrize("query", ["?alias=nobody", "?alias=%00", "?alias=%3Cscript%3E"])
def test_invalid_parameters_are_ignored(query: str, admin_client: Any) -> None:
    answer = admin_client.get(URL + query)
    assert (answer.status_code, answer.context["overview"].alias) == (200, None)
