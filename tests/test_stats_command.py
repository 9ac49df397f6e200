"""``manage.py convmemory_stats``: its figures, and how many queries they take."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from django_convmemory import clock, exceptions, models
from django_convmemory.chat_models.base import ChatResponse, Usage
from django_convmemory.core.breaker import Reason
from django_convmemory.core.values import AttemptOutcome
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries, Settings

pytestmark = pytest.mark.django_db

NOTHING: dict[str, Any] = {
    "ready": True,
    "reasons": [],
    "sessions": 0,
    "messages": 0,
    "tokens": 0,
    "due": 0,
    "oldest_due_seconds": None,
    "leased": 0,
    "failing": 0,
    "stalled": 0,
    "to_be_rebuilt": 0,
    "pause": None,
    "attempts": {
        "since_seconds": 86400,
        "count": 0,
        "by_fallback": 0,
        "outcomes": {},
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "cost": None,
        "median_seconds": None,
        "longest_seconds": None,
    },
    "replies": {
        "since_seconds": 86400,
        "count": 0,
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
    },
}


@pytest.fixture(autouse=True)
def two_memories(settings: Settings) -> None:
    """The memories ``default`` and ``other``."""
    settings.CONVMEMORY = dict.fromkeys(("default", "other"), settings.CONVMEMORY["default"])


def stats(*arguments: str) -> str:
    out = io.StringIO()
    call_command("convmemory_stats", *arguments, stdout=out)
    return out.getvalue()


def figures(*arguments: str) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = json.loads(stats("--json", *arguments))
    return result


def attempt(
    seconds: float, outcome: AttemptOutcome = AttemptOutcome.PUBLISHED, *, age: float = 60, **columns: Any
) -> None:
    models.Attempt.objects.create(
        alias=columns.pop("alias", "default"),
        first_position=1,
        last_position=2,
        outcome=outcome,
        duration_seconds=seconds,
        started_at=clock.Clock(-age),
        **columns,
    )


def test_the_figures_of_an_empty_database_are_zero() -> None:
    assert figures() == {"default": NOTHING, "other": NOTHING}


def test_sessions_messages_and_tokens_are_counted_by_alias() -> None:
    memory = memories["default"]
    tokens = [
        memory.append(key, {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}).tokens
        for key in "abc"
    ]

    by_alias = figures()

    assert by_alias["default"] == {**NOTHING, "sessions": 3, "messages": 6, "tokens": sum(tokens)}
    assert by_alias["other"] == NOTHING


def test_the_states_of_compaction_are_counted() -> None:
    memory, rows = memories["default"], models.Session.objects
    for key in "abcdef":
        memory.append(key, {"role": "user", "content": "Hello"})
    rows.filter(key__in="abcd").update(due_since=clock.Clock(-90))
    rows.filter(key="a").update(due_since=clock.Clock(-3600), attempts=memory.options.max_attempts)
    rows.filter(key="b").update(attempts=1, lease_expires_at=clock.Clock(60))
    rows.filter(key="c").update(lease_expires_at=clock.Clock(-60))

    result = figures()["default"]

    # Session "b" is leased: a process is folding it, so it is not failing.
    assert [result[name] for name in ("due", "leased", "failing", "stalled")] == [4, 1, 1, 1]
    assert 3600 <= result["oldest_due_seconds"] < 3660


def test_a_paused_alias_is_shown() -> None:
    memories["default"].store.open_breaker("default", Reason.MISCONFIGURED, "Wrong: key", seconds=30.0)

    pause = figures()["default"]["pause"]

    assert (pause["reason"], pause["error"], pause["failures"]) == ("misconfigured", "Wrong: key", 0)
    assert 20 < pause["seconds_left"] <= 30
    assert figures()["other"]["pause"] is None


def test_a_pause_whose_time_has_come_lasts_until_the_model_answers() -> None:
    store = memories["default"].store
    store.open_breaker("default", Reason.OUTAGE, "Down: 503", seconds=30.0)
    store.open_breaker("other", Reason.RATE_LIMIT, "Slow: 429", seconds=30.0)
    models.AliasState.objects.update(until=clock.Clock(-1))

    assert figures()["default"]["pause"]["seconds_left"] == 0.0
    assert figures()["other"]["pause"] is None
    store.close_breaker("default")
    assert figures()["default"]["pause"] is None


def test_sessions_that_wait_for_a_rebuild_are_counted() -> None:
    for key in "abc":
        memories["default"].append(key, {"role": "user", "content": "Hello"})
    models.Session.objects.exclude(key="a").update(rebuild_after=clock.Clock(86400))

    assert figures()["default"]["to_be_rebuilt"] == 2


def test_recent_model_calls_are_summed_up() -> None:
    attempt(1.0, prompt_tokens=100, cached_tokens=64, completion_tokens=10, cost=Decimal("0.00000125"))
    attempt(2.0, prompt_tokens=200, completion_tokens=20, cost=Decimal("0.5"))
    attempt(9.0, AttemptOutcome.UNAVAILABLE)
    attempt(100.0, age=2 * 86400, prompt_tokens=5)
    attempt(100.0, alias="other")

    assert figures()["default"]["attempts"] == {
        "since_seconds": 86400,
        "count": 3,
        "by_fallback": 0,
        "outcomes": {"published": 2, "unavailable": 1},
        "prompt_tokens": 300,
        "cached_tokens": 64,
        "completion_tokens": 30,
        "cost": 0.50000125,
        "median_seconds": 2.0,
        "longest_seconds": 9.0,
    }
    assert figures("--since", "3d")["default"]["attempts"]["count"] == 4


def test_the_model_calls_of_a_compaction_are_counted(convmemory: ScriptedMemories) -> None:
    reply = ChatResponse(ChatMessage.ai("They went on about a word."), Usage(prompt_tokens=300, completion_tokens=7))
    convmemory.reply(exceptions.ModelUnavailable("down"), reply)
    while not memories["default"].append("a", {"role": "user", "content": "word " * 50}).due:
        pass
    assert [*convmemory.run(), *convmemory.run()] == ["stalled", "published"]

    attempts = figures()["default"]["attempts"]

    assert attempts["outcomes"] == {"published": 1, "unavailable": 1}
    assert (attempts["prompt_tokens"], attempts["completion_tokens"]) == (300, 7)


@pytest.mark.parametrize(("durations", "median"), [([5], 5), ([1, 5], 3), ([9, 1, 5], 5), ([1, 2, 4, 9], 3)])
def test_the_median_is_the_mean_of_the_middle_values(durations: list[float], median: float) -> None:
    for seconds in durations:
        attempt(seconds)

    assert figures()["default"]["attempts"]["median_seconds"] == median


def test_the_number_of_queries_does_not_depend_on_the_number_of_rows(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for key in "abc":
        memories["default"].append(key, {"role": "user", "content": "Hello"})
        attempt(1.0)

    with django_assert_num_queries(13):
        figures("--alias", "default")


def test_text_is_aligned() -> None:
    memories["default"].append("a", {"role": "user", "content": "Hello"})
    attempt(1.5, cost=Decimal("0.25"))
    attempt(0.5, AttemptOutcome.TOO_LONG)

    blocks = [block.splitlines() for block in stats("--since", "12h").split("\n\n")]

    assert [block[0] for block in blocks] == ["default", "other"]
    assert [line.split()[0] for line in blocks[0][12:15]] == ["attempts", "context_length", "published"]
    assert [line.split() for line in blocks[0][1:3]] == [["ready", "yes"], ["sessions", "1"]]
    assert "  attempts in 12h" in blocks[0][12]
    assert "  cost                  0.25" in blocks[0]
    assert "  oldest due (s)           -" in blocks[0]
    assert "  paused                  no" in blocks[0]
    assert len({len(line) for line in blocks[0][1:]}) == 1


def test_an_alias_can_be_chosen_even_if_the_settings_no_longer_have_it(settings: Settings) -> None:
    memories["other"].append("a", {"role": "user", "content": "Hello"})
    models.Session.objects.update(attempts=5)
    settings.CONVMEMORY = {"default": settings.CONVMEMORY["default"]}

    assert list(figures()) == ["default", "other"]
    assert list(figures("--alias", "default")) == ["default"]
    assert figures("--alias", "other")["other"]["stalled"] == 1


def test_a_memory_that_does_not_keep_up_is_not_ready(settings: Settings) -> None:
    settings.CONVMEMORY_MONITORING = {"MAX_DUE_SECONDS": 300}
    memories["default"].append("a", {"role": "user", "content": "Hello"})
    models.Session.objects.update(due_since=clock.Clock(-400))
    memories["other"].store.open_breaker("other", Reason.MISCONFIGURED, "no key", seconds=60)

    default, other = figures()["default"], figures()["other"]

    assert (default["ready"], [reason["code"] for reason in default["reasons"]]) == (False, ["overdue"])
    assert other["reasons"] == [{"code": "paused", "message": "memories['other'] is paused: misconfigured."}]
    text = stats()
    assert "  not ready: memories['other'] is paused: misconfigured.\n" in text
    with pytest.raises(CommandError, match=r"400 s.*\n.*misconfigured") as raised:
        stats("--fail-if-not-ready")
    assert raised.value.returncode == 1


def test_a_site_that_is_ready_exits_with_0() -> None:
    assert list(json.loads(stats("--json", "--fail-if-not-ready"))) == ["default", "other"]


def test_a_database_without_a_migration_is_an_error() -> None:
    MigrationRecorder(connection).migration_qs.filter(app="convmemory", name="0001_tables").delete()
    with pytest.raises(CommandError, match="lacks 0001_tables"):
        stats("--json")


@pytest.mark.parametrize("since", ["soon", "0d", "-1d", "1", "d", "1.5h", "1w", "99999d", "٣d"])
def test_an_invalid_duration_is_refused(since: str) -> None:
    with pytest.raises(CommandError, match="Write a whole number above 0, followed by d, h, m or s") as raised:
        stats(f"--since={since}")

    assert raised.value.returncode == 2


@pytest.mark.parametrize("option", ["--alias", "--database"])
def test_an_unknown_alias_or_database_is_an_error(option: str) -> None:
    with pytest.raises(CommandError, match=r"'absent'.*Choose one of: default") as raised:
        stats(option, "absent")

    assert raised.value.returncode == 2
