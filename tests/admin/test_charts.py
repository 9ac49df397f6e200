"""The chart of a session misleads nobody."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User

from django_convmemory import models
from django_convmemory.admin import charts, page
from django_convmemory.admin.charts import FoldMark, TokensAt
from django_convmemory.admin.page import SessionPage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.testing import ScriptedMemories
from tests.admin.test_sessions import LIST, staff


@pytest.fixture
def session(db: None) -> SessionHandle:
    return memories["default"].session("main", owner=User.objects.create_user("anna"))


def page_of(session: SessionHandle) -> SessionPage:
    return SessionPage(models.Session.objects.with_clock().get(name_hash=session.session_name.name_hash))


def fold(session: SessionHandle, convmemory: ScriptedMemories, times: int) -> None:
    for _ in range(times):
        while not convmemory.queued:
            session.append(ChatMessage.human("word " * 20))
        convmemory.reply("many words")
        assert convmemory.run() == ["published"]


def text_of(session: SessionHandle) -> str:
    return staff("view_session").get(f"{LIST}{page_of(session).session.pk}/change/").content.decode()


def test_the_newest_folds_are_marked(
    session: SessionHandle, convmemory: ScriptedMemories, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold(session, convmemory, 30)
    chart = page_of(session).chart
    assert chart
    assert chart.marks.count("M") == 30
    monkeypatch.setattr(page, "MARKED", 4)
    fewer = page_of(session).chart
    assert fewer
    # The lines of the chart need some of the others, and are the same.
    assert 4 < fewer.marks.count("M") < 30
    assert fewer.rows == chart.rows
    text = text_of(session)
    assert "context, reconstructed" in text
    assert "reconstructed from the times of messages and summaries" in text


def test_many_folds_are_ticks_and_not_a_wall_of_lines() -> None:
    samples = [TokensAt(1, 10, None), TokensAt(10_000, 100_000, 500)]
    folds = [FoldMark(number, number * 19, number * 190, 10) for number in range(1, 501)]
    chart, few = charts.token_chart(samples, folds, 1000), charts.token_chart(samples, folds[-charts.LINES :], 1000)
    assert chart
    assert few
    assert set(re.findall(r" (\d+)V", few.marks)) == {"0"}
    assert set(re.findall(r" (\d+)V", chart.marks)) == {str(charts.HEIGHT - charts.TICK)}
    assert chart.marks.count("M") == 500


def test_columns_are_stacked_and_the_smallest_value_can_be_seen() -> None:
    chart = charts.columns(["in", "out"], [[0, 0], [60, 40], [100, 0.001]])
    assert chart.maximum == 100.001
    heights = [(box.name, box.y + box.height, box.height) for box in chart.boxes]
    assert heights == [("in", 120, 72), ("out", 48, 48), ("in", 120, 120), ("out", 2, 2)]
    assert charts.columns(["cost"], [[0], [0]]).boxes == []
