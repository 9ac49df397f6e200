"""The charts of the overview, the time they look back on, the highest costs, and the download of the calls."""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_convmemory import models
from django_convmemory.admin import SessionAdmin, attempts, calls, periods, trends
from django_convmemory.admin.overview import Overview
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.admin.test_overview import URL, call
from tests.admin.test_sessions import LIST, staff

pytestmark = pytest.mark.django_db
DOWNLOAD = f"{LIST}attempts/"


def session(key: str, **whose: Any) -> models.Session:
    memories["default"].session(key, **whose).append(ChatMessage.human("word"))
    return models.Session.objects.get(key=key, visitor=whose.get("visitor", ""))


def last_values(trend: trends.Trend, count: int) -> list[list[Any]]:
    return [list(values) for _begins, values in trend.rows[-count:]]


# The charts.


def test_the_cost_of_each_step() -> None:
    call(cost=Decimal("0.25"))
    call(cost=Decimal("0.5"), outcome="unavailable")
    call(hours=1.5)
    trend = Overview("default").cost_trend
    assert last_values(trend, 2) == [[None], [Decimal("0.75")]]
    assert list(trend.total) == [Decimal("0.75")]
    assert trend.chart.maximum == 0.75
    text = staff("view_session").get(URL).content.decode()
    assert '<td class="number">0.7500</td>' in text
    assert "No price is known" not in text


def test_costs_without_a_price_are_not_zero() -> None:
    call()
    trend = Overview("default").cost_trend
    assert (list(trend.total), trend.chart.maximum) == ([None], 0)
    assert "No price is known." in staff("view_session").get(URL).content.decode()


def test_the_tokens_of_each_step_and_those_from_the_cache() -> None:
    call(prompt_tokens=100, completion_tokens=10, cached_tokens=60)
    call(prompt_tokens=50, completion_tokens=5)
    # A provider may count otherwise. More than all tokens cannot come from the cache.
    call(hours=1.5, prompt_tokens=7, completion_tokens=1, cached_tokens=9)
    call(hours=1.5, outcome="unavailable")
    figures = Overview("default")
    assert last_values(figures.tokens_trend, 2) == [[7, 0, 1], [60, 90, 15]]
    assert list(figures.tokens_trend.total) == [67, 90, 16]
    assert [model.cached_tokens for model in figures.by_model] == [69]


def test_the_calls_of_each_step_by_outcome() -> None:
    for outcome in ("published", "published", "shorten", "dropped", "unavailable", "refused", "new one"):
        call(outcome=outcome)
    call(hours=1.5, outcome="refused")
    trend = Overview("default").outcomes_trend
    assert [str(label) for label in trend.headings] == [
        "published",
        "too long, asked for a shorter text",
        "dropped: the session had changed",
        "model unavailable",
        "content refused",
        "new one",
    ]
    assert last_values(trend, 2) == [[0, 0, 0, 0, 1, 0], [2, 1, 1, 1, 1, 1]]
    assert list(trend.chart.columns[-1].values) == [2, 2, 3]
    assert list(trend.total) == [2, 1, 1, 1, 2, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21, 100])
def test_the_percentiles_are_those_of_the_nearest_rank(count: int) -> None:
    seconds = [float(number) for number in range(1, count + 1)]
    random.Random(count).shuffle(seconds)
    for duration in seconds:
        call(duration_seconds=duration)
    call(hours=1.5, duration_seconds=0.5, outcome="unavailable")
    expected = [sorted(seconds)[math.ceil(count * percentile / 100) - 1] for percentile in (50, 95)]
    trend = Overview("default").latency_trend
    assert last_values(trend, 2) == [[0.5, 0.5], expected]
    assert last_values(trend, 3)[0] == [None, None]
    # The median is drawn in front of the other, from the bottom too.
    boxes = trend.chart.columns[-1].boxes
    assert [box.name for box in boxes] == ["p95", "p50"]
    assert {box.y + box.height for box in boxes} == {120}


def test_the_backlog_is_reconstructed_from_the_calls_and_the_due_sessions() -> None:
    tried, slow, quick, waiting = (session(key) for key in ("tried", "slow", "quick", "waiting"))
    minutes = 60.0
    # Due since 5.5 hours, tried 4.5, 3.5 and 2.5 hours ago.
    for hours in (4.5, 3.5, 2.5):
        call(hours, session=tried, due_seconds=(5.5 - hours) * 60 * minutes, outcome="unavailable")
    call(1.5, session=slow, due_seconds=120 * minutes)
    call(1.01, session=quick, due_seconds=30.0)
    call(1.5, session=None, due_seconds=120 * minutes)
    models.Session.objects.filter(pk=waiting.pk).update(due_since=timezone.now() - dt.timedelta(hours=1.5))
    # At the ends: 5, 4, 3, 2 hours and 1 hour ago, and now.
    assert last_values(Overview("default").backlog_trend, 6) == [[1], [1], [2], [1], [1], [1]]
    # Of these days, nothing is left that is due.
    day = (timezone.localtime() - dt.timedelta(days=3)).date()
    assert {count for _at, [count] in Overview("default", first_day=day, last_day=day).backlog_trend.rows} == {0}


def test_each_chart_of_the_page_has_a_table_and_no_style(admin_client: Client) -> None:
    call(prompt_tokens=100, completion_tokens=10, cached_tokens=60, cost=Decimal("0.25"))
    answer = admin_client.get(URL)
    text = answer.content.decode()
    for trend in answer.context["overview"].trends:
        assert f'aria-labelledby="convmemory-{trend.name}" aria-describedby="convmemory-{trend.name}-table"' in text
        assert f'<details id="convmemory-{trend.name}-table">' in text
        assert len(trend.rows) == len(trend.chart.columns) == 24
    assert " style=" not in text.partition('<div id="content"')[2]


def test_long_durations_are_rounded_to_seconds() -> None:
    for hours, seconds in ((0.5, 0.04), (1.5, 9.96), (2.5, 10.4), (3.5, 10.6), (4.5, 299.7)):
        call(hours, duration_seconds=seconds)
    assert [value for value, _ in last_values(Overview("default").latency_trend, 5)] == [300, 11, 10, 10, 0]


# The time.


def test_days_are_chosen_instead_of_a_period(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Lisbon"
    with timezone.override("Europe/Lisbon"):
        span = periods.days(dt.date(2026, 5, 12), dt.date(2026, 5, 13), "default")
    assert span.steps[0] == dt.datetime(2026, 5, 11, 23, tzinfo=dt.UTC)
    assert (span.ends, span.step, len(span.steps)) == (
        dt.datetime(2026, 5, 13, 23, tzinfo=dt.UTC),
        dt.timedelta(hours=1),
        48,
    )
    assert span.step_ends[-1] == span.ends


@pytest.mark.parametrize(
    ("first", "last", "step", "count"),
    [
        ("2026-05-01", "2026-05-01", dt.timedelta(hours=1), 24),
        ("2026-05-01", "2026-05-10", dt.timedelta(hours=6), 40),
        ("2026-05-10", "2026-05-01", dt.timedelta(hours=6), 40),
        ("2026-03-02", "2026-05-02", dt.timedelta(days=1), 62),
        ("2025-05-01", "2026-04-30", dt.timedelta(days=7), 53),
        ("2000-01-01", "2025-12-31", dt.timedelta(days=364), 27),
        (None, "2026-05-30", dt.timedelta(days=1), 30),
    ],
)
def test_longer_times_have_longer_steps(first: str | None, last: str, step: dt.timedelta, count: int) -> None:
    span = periods.days(periods.day(first), periods.day(last), "default")
    assert (span.step, len(span.steps)) == (step, count)


def test_the_last_step_ends_now_at_the_latest() -> None:
    for span in (
        periods.days(timezone.localdate(), None, "default"),
        periods.days(None, timezone.localdate(), "default"),
    ):
        assert span.ends is not None
        assert abs(span.ends - timezone.now()) < dt.timedelta(minutes=1)
    tomorrow = timezone.localdate() + dt.timedelta(days=1)
    assert len(periods.days(tomorrow, tomorrow, "default").steps) == 24
    assert Overview("default", first_day=tomorrow).calls == 0


def test_without_time_zones_days_are_those_of_the_settings(settings: Any) -> None:
    settings.USE_TZ = False
    span = periods.days(dt.date(2026, 5, 12), dt.date(2026, 5, 12), "default")
    assert span.steps[0].tzinfo is None
    assert Overview("default", first_day=dt.date(2026, 5, 12), last_day=dt.date(2026, 5, 12)).calls == 0
    assert Overview("default", first_day=dt.date(2026, 5, 12)).calls == 0
    assert Overview("default").cost_trend.rows[0][0]


@pytest.mark.parametrize("text", ["", "x", "2026-02-30", "2026-5", "0001-01-01", "9999-12-31", "２０２６-05-01x", "\0"])
def test_what_is_no_day_is_ignored(text: str, admin_client: Client) -> None:
    answer = admin_client.get(URL, {"from": text, "to": text})
    assert (answer.status_code, answer.context["overview"].first_day) == (200, None)


def test_only_the_calls_of_the_chosen_days_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for days in range(9, -1, -1):
        for _ in range(4):
            call(hours=24 * days)
    first, last = (timezone.localdate() - dt.timedelta(days=days) for days in (6, 5))
    query = {"from": first.isoformat(), "to": last.isoformat()}
    answer = staff("view_session").get(URL, query)
    assert answer.context["overview"].calls == 8
    text = answer.content.decode()
    assert f'name="from" value="{first}"' in text
    assert f"../attempts/?period=1d&amp;from={first}&amp;to={last}" in text
    # Of those days the newest are counted, however many came later.
    monkeypatch.setattr(calls, "MAX_CALLS", 6)
    monkeypatch.setattr(calls, "_OUT_OF_ORDER", 0)
    figures = Overview("default", first_day=first, last_day=last)
    assert (figures.calls, figures.since is not None) == (6, True)


# The highest costs.


def test_the_sessions_and_the_owners_with_the_highest_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TOP", 3)
    anna, bob = User.objects.create_user("anna"), User.objects.create_user("bob")
    spent = [
        (session("a", owner=anna), "0.1"),
        (session("b", owner=anna), "0.4"),
        (session("c", owner=bob), "0.3"),
        (session("d", visitor="0123456789abcdef"), "0.45"),
        (session("e"), "0.01"),
    ]
    for row, cost in spent:
        for _ in range(2):
            call(session=row, cost=Decimal(cost) / 2)
    call(session=spent[0][0], cost=Decimal("0.00000001"))
    call(session=spent[0][0])
    call(cost=Decimal(9))
    call(session=spent[4][0], hours=30, cost=Decimal(9))
    figures = Overview("default")
    assert [(spender.who.key, spender.calls, spender.cost) for spender in figures.top_sessions] == [
        ("d", 2, pytest.approx(0.45)),
        ("b", 2, pytest.approx(0.4)),
        ("c", 2, pytest.approx(0.3)),
    ]
    assert [(spender.who, spender.calls, spender.cost) for spender in figures.top_owners] == [
        (anna, 5, pytest.approx(0.5)),
        (bob, 2, pytest.approx(0.3)),
    ]
    text = staff("view_session").get(URL).content.decode()
    assert f'<a href="{LIST}{spent[3][0].pk}/change/">default: d</a>' in text
    assert "<td>anna</td>" in text


def test_the_highest_costs_are_those_of_the_newest_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_RANKED", 4)
    row = session("a")
    for _ in range(6):
        call(session=row, cost=Decimal(1))
    figures = Overview("default")
    assert [spender.cost for spender in figures.top_sessions] == [4]
    assert figures.ranked_since is not None
    assert "The highest costs are those of the calls since" in staff("view_session").get(URL).content.decode()
    assert Overview("default", first_day=dt.date(2020, 1, 1), last_day=dt.date(2020, 1, 1)).ranked_since is None


def test_names_of_sessions_and_owners_are_escaped() -> None:
    row = session("<script>alert(1)</script>", owner=User.objects.create_user("<b>anna</b>"))
    call(session=row, cost=Decimal(1), model="<i>m</i>", outcome="<u>odd</u>")
    text = staff("view_session").get(URL).content.decode()
    for name in ("<script>alert", "<b>anna", "<i>m", "<u>odd"):
        assert name not in text
        assert name.replace("<", "&lt;").replace(">", "&gt;") in text


# The download.


def table(client: Client, **query: Any) -> list[dict[str, str]]:
    answer = client.get(DOWNLOAD, query)
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert 'filename="model-calls.csv"' in answer["Content-Disposition"]
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_download_has_a_row_for_each_call_of_the_chosen_time(settings: Any) -> None:
    settings.CONVMEMORY = settings.CONVMEMORY | {"other": settings.CONVMEMORY["default"]}
    row = session("trip", owner=User.objects.create_user("anna"))
    call(2, session=row, prompt_tokens=100, cached_tokens=60, completion_tokens=9, cost=Decimal("0.00012"), version=3)
    call(1, outcome="unavailable", error="ModelUnavailable")
    call(1, alias="other")
    call(30)
    client = staff("view_session")
    first, second = table(client, alias="default")
    assert list(first) == list(attempts.COLUMNS)
    assert list(first.values())[1:] == [
        *("default", str(row.pk), str(row.public_id), "trip", "anna", ""),
        *("m", "published", "", "3", "1", "2", "3.0", "2.0", "100", "60", "9", "0.00012000"),
    ]
    assert dt.datetime.fromisoformat(first["started_at"]) == models.Attempt.objects.earliest("pk").started_at
    assert (second["session"], second["cost"], second["error"]) == ("", "", "ModelUnavailable")
    assert [line["alias"] for line in table(client)] == ["default", "default", "other"]
    assert len(table(client, period="7d")) == 4
    yesterday = (timezone.localtime() - dt.timedelta(hours=30)).date()
    assert len(table(client, **{"from": yesterday, "to": yesterday, "alias": "default"})) >= 1


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", " =", "\xa0\v-", '"=', "' @", "\ufeff+"])
def test_no_cell_of_the_download_is_a_formula(first: str) -> None:
    text = f'{first}HYPERLINK("http://evil.example";"x"),\n"y"'
    row = session(text)
    models.Session.objects.update(visitor=text)
    call(session=row, model=text, error=text, due_seconds=-1.5)
    (line,) = table(staff("view_session"))
    assert (line["key"], line["model"], line["error"]) == (f"'{text}",) * 3
    assert line["visitor"] == f"'{text[:12]}"
    # A number is no formula.
    assert line["due_seconds"] == "-1.5"


def test_the_download_is_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_BATCH", 3)
    at = timezone.now() - dt.timedelta(hours=1)
    for number in range(11):
        models.Attempt.objects.create(
            alias="default",
            first_position=number,
            last_position=number,
            # Many calls have the same time.
            started_at=at + dt.timedelta(seconds=number // 5),
        )
    client = staff("view_session")
    answer = client.get(DOWNLOAD)
    with CaptureQueriesContext(connection) as captured:
        lines = b"".join(answer.streaming_content).decode().splitlines()  # type: ignore[attr-defined]
    assert [line.split(",")[11] for line in lines[1:]] == [str(number) for number in range(11)]
    # Four pages of calls, and one that is empty. No call has a session.
    assert len(captured) == 5


def only_keys(key: str) -> Callable[..., Any]:
    original = SessionAdmin.get_queryset
    return lambda self, request: original(self, request).filter(key=key)


def test_the_download_has_only_calls_for_sessions_that_the_user_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in (session("mine"), session("theirs"), None):
        call(session=row)
    assert staff().get(DOWNLOAD).status_code == 403
    client = staff("view_session")
    assert [line["key"] for line in table(client)] == ["mine", "theirs", ""]
    monkeypatch.setattr(SessionAdmin, "get_queryset", only_keys("mine"))
    assert [line["key"] for line in table(client)] == ["mine", ""]
    # Calls for deleted sessions are among the figures of all sessions.
    monkeypatch.setattr(SessionAdmin, "has_overview_permission", lambda self, request: False)
    assert [line["key"] for line in table(client)] == ["mine"]


def test_the_page_of_a_session_shows_the_tokens_from_the_cache() -> None:
    row, client = session("a"), staff("view_session")
    call(session=row, prompt_tokens=100, completion_tokens=7)
    assert "from the cache" not in client.get(f"{LIST}{row.pk}/change/").content.decode()
    call(session=row, prompt_tokens=100, completion_tokens=7, cached_tokens=60)
    assert "100 / 7 <small>(60 from the cache)</small>" in client.get(f"{LIST}{row.pk}/change/").content.decode()
