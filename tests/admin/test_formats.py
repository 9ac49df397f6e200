"""Numbers, durations, costs and moments have one form in all pages."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.utils import translation

from django_convmemory.templatetags import convmemory


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (1.94, "1.9 s"),
        (42.4, "42 s"),
        (119, "119 s"),
        (1104, "18 min"),
        (dt.timedelta(minutes=24), "24 min"),
        (7200, "2 h"),
        (dt.timedelta(days=3), "3 d"),
        (dt.timedelta(days=4000), "4,000 d"),
    ],
)
def test_a_duration_has_its_natural_unit(seconds: Any, text: str) -> None:
    assert convmemory.duration(seconds) == text


def test_a_number_has_its_thousands_apart() -> None:
    assert [convmemory.number(value) for value in (None, 0, 999, 1234567)] == ["–", "0", "999", "1,234,567"]
    assert [convmemory.tokens(value) for value in (1, 2500)] == ["1 token", "2,500 tokens"]
    with translation.override("de"):
        assert convmemory.tokens(2500) == "2.500 Token"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "–"),
        (Decimal(0), "0.00"),
        (Decimal("0.00011940"), "0.00012"),
        (Decimal("0.0000004"), "0.00000040"),
        (Decimal("0.57214"), "0.57"),
        (Decimal("0.0123"), "0.012"),
        (Decimal("2.2123"), "2.21"),
        (Decimal("12345.6"), "12,345.60"),
    ],
)
def test_a_small_cost_keeps_two_digits(amount: Decimal | None, text: str) -> None:
    assert convmemory.cost(amount) == text


def test_a_cost_has_the_currency_of_the_settings(settings: Any) -> None:
    settings.CONVMEMORY_CURRENCY = "EUR"
    assert convmemory.cost(Decimal("2.5")) == "2.50\N{NO-BREAK SPACE}EUR"
    assert convmemory.cost(None) == "–"
    with translation.override("de"):
        assert convmemory.cost(Decimal("2.5")) == "2,50\N{NO-BREAK SPACE}EUR"


def test_a_moment_is_in_the_time_zone_of_the_site(settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    at = dt.datetime(2026, 11, 25, 23, 30, tzinfo=dt.UTC)
    assert convmemory.moment(at) == '<time datetime="2026-11-26T08:30:00+09:00">Nov. 26, 2026 08:30:00</time>'
    assert convmemory.moment(None) == "–"


def test_a_session_is_not_cleared_with_the_word_of_django_forms() -> None:
    """Django's German for "Clear" is what a form's button says that resets it."""
    from django_convmemory.admin.actions import WORK

    with translation.override("de"):
        assert str(WORK["clear"].label) == "Leeren"
