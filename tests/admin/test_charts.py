"""The chart of a session misleads nobody."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.contrib.auth.models import User

from django_convmemory import models
from django_convmemory.admin import charts, page
from django_convmemory.admin.charts import Fold, Sample
from django_convmemory.admin.page import SessionPage
from django_convmemory.conversation import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories
from tests.admin.test_sessions import LIST, staff

LATE = "when no summary left room for them"


@pytest.fixture
def session(db: None) -> SessionHandle:
    return memories["default"].session("main", owner=User.objects.create_user("anna"))


def page_of(session: SessionHandle) -> SessionPage:
    return SessionPage(models.Session.objects.with_clock().get(name_hash=session.session_name.name_hash))


def fold(session: SessionHandle, convmemory: ScriptedMemories, times: int) -> None:
    for _ in range(times):
        while not convmemory.queued:
            session.append(ChatMessage.human("word " * 20))
        convmemory.reply("a summary")
        assert convmemory.run() == ["published"]


def text_of(session: SessionHandle) -> str:
    return staff("view_session").get(f"{LIST}{page_of(session).session.pk}/change/").content.decode()


def test_all_folds_are_marked(session: SessionHandle, convmemory: ScriptedMemories) -> None:
    fold(session, convmemory, 3 * page.RECENT)
    shown = page_of(session)
    assert shown.chart
    assert len(shown.folds) < 3 * page.RECENT
    assert shown.chart.marks.count("M") == models.Summary.objects.count() == 3 * page.RECENT
    assert shown.chart.unmarked == 0
    assert "not marked" not in text_of(session)


def test_the_page_says_how_many_folds_are_not_marked(
    session: SessionHandle, convmemory: ScriptedMemories, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MARKED", 14)
    fold(session, convmemory, 40)
    chart = page_of(session).chart
    assert chart
    assert chart.marks.count("M") + chart.unmarked == 40
    assert 0 < chart.unmarked < 26
    assert f"Up to {chart.unmarked} older versions of the summary are not marked." in text_of(session)


def test_many_folds_are_ticks_and_not_a_wall_of_lines() -> None:
    samples = [Sample(1, 10, None), Sample(10_000, 100_000, 500)]
    folds = [Fold(number, number - 1, number * 19, number * 190, 10) for number in range(1, 501)]
    chart, few = charts.token_chart(samples, folds, 1000), charts.token_chart(samples, folds[-charts.LINES :], 1000)
    assert chart
    assert few
    assert set(re.findall(r" (\d+)V", few.marks)) == {"0"}
    assert set(re.findall(r" (\d+)V", chart.marks)) == {str(charts.HEIGHT - charts.TICK)}
    assert chart.marks.count("M") == 500


def test_a_huge_history_does_not_flatten_the_context() -> None:
    folds = [Fold(1, None, 900, 990_000, 100)]
    samples = [Sample(1, 100, None), Sample(950, 990_500, 1), Sample(1000, 990_900, 1)]
    chart = charts.token_chart(samples, folds, 2_000)
    assert chart
    assert chart.alone
    # The budget is the scale: it is at the top, and the line reaches half of it.
    assert (chart.alone.maximum, chart.alone.budget_y) == (2_000, charts.MARGIN)
    heights = [float(point.partition(",")[2]) for point in chart.alone.context.split()]
    assert heights[-1] == pytest.approx(charts.HEIGHT / 2, abs=5)
    assert max(heights) - min(heights) > 50
    # Without a budget, the context's own maximum is the scale.
    free = charts.token_chart(samples, folds, None)
    assert free
    assert free.alone
    assert (free.alone.maximum, free.alone.budget_y) == (1_000, None)
    small = charts.token_chart([Sample(1, 100, None), Sample(2, 900, None)], [], 1_000)
    assert small
    assert small.alone is None


def test_the_second_chart_is_on_the_page(session: SessionHandle, convmemory: ScriptedMemories) -> None:
    fold(session, convmemory, 3)
    assert "The context alone" not in text_of(session)
    models.Message.objects.update(tokens_through=1_000_000)
    text = text_of(session)
    assert 'aria-labelledby="convmemory-context-chart"' in text
    assert " style=" not in text.partition('<div id="content"')[2]


def test_the_line_of_the_context_is_called_a_reconstruction(
    session: SessionHandle, convmemory: ScriptedMemories
) -> None:
    fold(session, convmemory, 3)
    text = text_of(session)
    assert "context, reconstructed" in text
    assert "reconstructed from the times of messages and summaries" in text
    assert LATE not in text


def test_the_page_says_that_no_summary_was_there_in_time(session: SessionHandle, convmemory: ScriptedMemories) -> None:
    """An imported conversation is older than all its summaries."""
    long_ago = dt.datetime(2020, 5, 1, tzinfo=dt.UTC)
    session.append(*[ChatMessage.human("word " * 20) for _ in range(60)], created_at=long_ago)
    convmemory.allow_unused_replies = True
    convmemory.reply(*["a summary"] * 20)
    convmemory.run()
    assert page_of(session).session.current_version > 0
    chart = page_of(session).chart
    assert chart
    assert chart.late
    assert LATE in text_of(session)
