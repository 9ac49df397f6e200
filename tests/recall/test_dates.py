"""The days that a question names."""

from __future__ import annotations

import calendar
import datetime as dt

import pytest
from hypothesis import given, strategies as st

from django_convmemory.search import dates, tokenizer
from tests.recall.dated_questions import QUESTIONS, TODAY, UNDATED


def days_of(text: str, today: dt.date) -> list[range]:
    """Return the days that a text names, without where it names them."""
    return list(dict.fromkeys(days for days, _ in dates.periods(text, today)))


def named(expected: str) -> set[range]:
    """Return the ranges that a text of ``dated_questions`` stands for."""
    return {days for period in expected.split() for days in _named(period)}


def _named(period: str) -> list[range]:
    if "*" in period:
        years = range(TODAY.year - dates.YEARS_BACK, TODAY.year + 1)
        found = [_named(period.replace("*", str(year)))[0] for year in years]
        return [days for days in found if days[0] <= TODAY.toordinal()]
    first, _, last = period.partition("..")
    return [range(_days(first)[0], _days(last or first)[-1] + 1)]


def _days(text: str) -> range:
    year, month, day, *_ = [*map(int, text.split("-")), 0, 0]
    first = dt.date(year, month or 1, day or 1)
    last = dt.date(year, month or 12, day or calendar.monthrange(year, month or 12)[1])
    return range(first.toordinal(), last.toordinal() + 1)


@pytest.mark.parametrize(("question", "expected"), QUESTIONS.items())
def test_the_days_of_a_question(question: str, expected: str) -> None:
    assert set(days_of(question, TODAY)) == named(expected)


@pytest.mark.parametrize("text", UNDATED)
def test_other_sentences_name_no_days(text: str) -> None:
    assert days_of(text, TODAY) == []


# Words that dates are made of, and others.
PIECES = """
    7 31 12 0 99999 2023 7. 7.5. 7.5.2023 31/02/2023 2023-05-07 2023-13-45 1st may May March mai mars sept
    the on in am le el since before until by from between and to a - ago last past week days year vor hace de of , .
    Friday lunes two sept hier yesterday 前 上 周五 5月 五月 三 年 2023年 天 从 到 之后
"""
TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(PIECES.split()), max_size=12).map(" ".join),
    st.lists(st.sampled_from(PIECES.split()), max_size=12).map("".join),
)


@given(TEXTS, st.dates())
def test_any_text_gives_days(text: str, today: dt.date) -> None:
    found = days_of(text, today)

    assert len(found) == len(set(found))
    assert all(0 < days[0] <= days[-1] <= dt.date.max.toordinal() for days in found)
    assert all(0 <= places[0] <= places[-1] < len(text) for _, places in dates.periods(text, today))


@given(st.dates(dt.date(1900, 1, 1), dt.date(2099, 12, 31)))
def test_a_day_is_found_in_each_form(day: dt.date) -> None:
    for text in (
        f"{day:%Y-%m-%d}",
        f"on {day.day} {day:%B} {day.year}?",
        f"on {day:%b} {day.day}, {day.year}?",
        f"am {day.day}.{day.month}.{day.year}",
        f"{day.year}年{day.month}月{day.day}日",
    ):
        assert days_of(text, TODAY) == [range(day.toordinal(), day.toordinal() + 1)], text


@given(st.dates(dt.date(1900, 1, 1), dt.date(2099, 12, 31)))
def test_the_words_of_a_day_are_no_words_of_a_query(day: dt.date) -> None:
    asked_at = dt.datetime.combine(TODAY, dt.time(12), dt.UTC)
    for text in (
        f"{day:%Y-%m-%d}",
        f"on {day:%A}, {day.day} {day:%B} {day.year}",
        f"am {day.day}.{day.month}.{day.year}",
        f"{day.year}年{day.month}月{day.day}日",
    ):
        query = tokenizer.query(f"{text} 🎂 Torte, gâteau {text} ½ pastel", asked_at)

        assert query.terms == tokenizer.query("🎂 Torte, gâteau ½ pastel").terms, text
        assert query.days == {(day - dt.date(1970, 1, 1)).days}


@given(st.dates(dt.date(2, 1, 1)), st.integers(1, 300))
def test_days_ago(today: dt.date, number: int) -> None:
    day = today.toordinal() - number

    for text in (f"{number} days ago", f"vor {number} Tagen", f"hace {number} días", f"il y a {number} jours"):
        assert days_of(text, today) == [range(day, day + 1)]


@given(st.dates(dt.date(2, 1, 1)))
def test_last_week_is_from_monday_to_sunday(today: dt.date) -> None:
    (week,) = days_of("What did I say last week?", today)

    assert [dt.date.fromordinal(day).isoweekday() for day in week] == [1, 2, 3, 4, 5, 6, 7]
    assert 1 <= today.toordinal() - week[-1] <= 7


@pytest.mark.parametrize(
    "piece",
    [
        "7 ",
        "7.",
        "a",
        " ",
        "May ",
        "in May and ",
        "last ",
        "5月",
        "一",
        "0",
        "- ",
        "7/5/",
        "\u0301",
        "ﷺ",
        "1 M",
        "in el ",
    ],
)
def test_only_the_beginning_of_a_long_text_is_read(piece: str) -> None:
    text = (piece * dates.MAX_LENGTH)[: dates.MAX_LENGTH]

    assert days_of(text + " on 7 May 2023", TODAY) == days_of(text, TODAY)
