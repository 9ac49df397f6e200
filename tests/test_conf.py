from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.utils import timezone

from django_convmemory import conf, scheduling, tokens
from django_convmemory.chat_models.base import Price
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.exceptions import UnknownAlias
from django_convmemory.memory import (
    ConversationBufferMemory,
    ConversationSummaryBufferMemory,
    ConversationWindowMemory,
    memories,
)
from django_convmemory.rules.options import Options, check_type
from django_convmemory.rules.strategies import Window
from django_convmemory.store.orm import ORMStore
from django_convmemory.tasks import CeleryScheduler
from tests.test_prompts import Tutor

if TYPE_CHECKING:
    from nowhere import Nothing  # type: ignore[import-not-found]

MEMORY = "django_convmemory.memory."
EXTRACTIVE = {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"}
OPENAI = "django_convmemory.chat_models.openai.OpenAIChatModel"


class TypedForCheckersOnly:
    """A backend with an annotation that only a type checker can resolve."""

    name = "typed"

    def __init__(self, size: int = 1, nothing: Nothing | None = None) -> None:
        self.size = size

    def count_text(self, text: str) -> int:
        return self.size

    def count(self, message: object) -> int:
        return self.size


class NeedsAnOption:
    def __init__(self, size: int) -> None:
        pass


@contextlib.contextmanager
def without_setting() -> Iterator[None]:
    with override_settings():
        del settings.CONVMEMORY
        memories.forget()
        yield
    memories.forget()


def configured(**alias: Any) -> override_settings:
    return override_settings(CONVMEMORY={"default": alias})


def refused(alias: str = "default") -> str:
    """Return the error that the use of a memory with invalid settings raises."""
    with pytest.raises(ImproperlyConfigured) as error:
        memories[alias]
    return str(error.value)


def test_without_the_setting_the_defaults_make_a_memory() -> None:
    with without_setting():
        assert conf.problems() == []
        assert list(memories) == ["default"]
        memory = memories["default"]
    assert type(memory) is ConversationSummaryBufferMemory
    assert dataclasses.asdict(memory.strategy) == {"max_token_limit": 2000}
    assert isinstance(memory.model, OpenAIChatModel)
    assert isinstance(memory.fallback, ExtractiveChatModel)
    assert isinstance(memory.counter, tokens.Utf8TokenCounter)
    assert isinstance(memory.scheduler, CeleryScheduler)
    assert isinstance(memory.store, ORMStore)
    assert memory.options == Options(max_context_tokens=6000)
    assert (memory.options.summary_tokens, memory.options.pinned_tokens, memory.options.recall_tokens) == (
        500,
        1500,
        600,
    )


@pytest.mark.parametrize(
    ("options", "limit", "most", "summary"),
    [
        ({"max_context_tokens": 12_000}, 4000, 12_000, 1000),
        ({"max_context_tokens": 12_000, "max_token_limit": 1000}, 1000, 12_000, 1000),
        ({"max_token_limit": 60}, 60, 6000, 500),
        ({"max_token_limit": 8000}, 8000, 24_000, 2000),
        ({"max_token_limit": 8000, "max_summary_tokens": 500}, 8000, 24_000, 500),
        ({"max_summary_tokens": 8000}, 2000, 20_000, 8000),
    ],
)
def test_the_size_of_a_prompt_decides_about_the_other_sizes(
    options: dict[str, int], limit: int, most: int, summary: int
) -> None:
    with configured(OPTIONS=options):
        memory = memories["default"]
    assert memory.strategy.threshold.tokens == limit
    assert (memory.options.max_context_tokens, memory.options.summary_tokens) == (most, summary)


@pytest.mark.parametrize("setting", [None, {"default": {}}])
def test_an_empty_setting_means_the_defaults(setting: Any) -> None:
    with override_settings(CONVMEMORY=setting):
        assert conf.problems() == []
        assert isinstance(memories["default"], ConversationSummaryBufferMemory)


def test_settings_are_read_at_the_first_use_of_a_memory_which_is_kept() -> None:
    with override_settings(CONVMEMORY={"default": {"MEMORY": "no.such.Memory"}, "good": {}}):
        assert memories["good"] is memories["good"]
        assert "no.such.Memory" in refused()


def test_settings_are_read_again_when_they_change() -> None:
    before = memories["default"]
    with configured(MEMORY=MEMORY + "ConversationWindowMemory", OPTIONS={"window_size": 3}):
        changed = memories["default"]
        assert isinstance(changed, ConversationWindowMemory)
        assert changed.strategy == Window(3)
    after = memories["default"]
    assert type(after) is type(before)
    assert after is not before


def test_the_settings_name_the_memories_by_alias() -> None:
    with override_settings(CONVMEMORY={"support": {}, "sales": {"MEMORY": MEMORY + "ConversationBufferMemory"}}):
        assert list(memories) == ["support", "sales"]
        assert "support" in memories
        assert "default" not in memories
        assert [memory.alias for memory in memories.all()] == ["support", "sales"]
        assert isinstance(memories["sales"], ConversationBufferMemory)


def test_the_error_for_an_unknown_alias_lists_the_aliases() -> None:
    with override_settings(CONVMEMORY={"support": {}, "sales": {}}):
        with pytest.raises(UnknownAlias) as error:
            memories["suport"]
        assert isinstance(error.value, KeyError)
        assert isinstance(error.value, ValueError)
        assert str(error.value) == "CONVMEMORY has no alias 'suport'. Use one of these: 'support', 'sales'."


def test_each_setting_is_used() -> None:
    with override_settings(
        CONVMEMORY={
            "other": {
                "MEMORY": MEMORY + "ConversationSummaryMemory",
                "OPTIONS": {"buffer_size": 7, "max_summary_tokens": 90, "summary_prefix": "So far: "},
                "CHAT_MODEL": {
                    "BACKEND": OPENAI,
                    "OPTIONS": {"model": "m", "timeout": 9},
                    "PRICE": {"input": 1, "cached_input": "0.1", "output": 2.5},
                },
                "FALLBACK_CHAT_MODEL": None,
                "PROMPTS": {"BACKEND": "tests.test_prompts.Tutor", "OPTIONS": {"subject": "logic"}},
                "TOKEN_COUNTER": {
                    "BACKEND": "django_convmemory.tokens.TiktokenCounter",
                    "OPTIONS": {"encoding": "cl100k_base"},
                },
                "SCHEDULER": {"BACKEND": "django_convmemory.scheduling.NullScheduler"},
            }
        }
    ):
        memory = memories["other"]
    assert dataclasses.asdict(memory.strategy) == {"buffer_size": 7}
    assert (memory.options.max_summary_tokens, memory.options.summary_prefix) == (90, "So far: ")
    assert memory.model is not None
    assert (memory.model.name, memory.model.deadline, memory.fallback) == ("m", 9, None)
    assert memory.price == Price(Decimal(1), Decimal("2.5"), cached_input=Decimal("0.1"))
    assert memory.requests.prompts == Tutor("logic")
    assert isinstance(memory.counter, tokens.TiktokenCounter)
    assert memory.counter.encoding == "cl100k_base"
    assert isinstance(memory.scheduler, scheduling.NullScheduler)
    assert memory.alias == "other"


def test_days_are_those_of_the_default_time_zone_and_never_of_the_current_one() -> None:
    with override_settings(TIME_ZONE="Asia/Shanghai"), timezone.override("America/New_York"), configured():
        assert memories["default"].requests.zone == ZoneInfo("Asia/Shanghai")
        with override_settings(TIME_ZONE="Asia/Tokyo"):
            assert memories["default"].requests.zone == ZoneInfo("Asia/Tokyo")


@pytest.mark.parametrize(
    ("name", "option", "default"),
    [
        ("ConversationWindowMemory", "window_size", 20),
        ("ConversationTokenBufferMemory", "max_tokens", 2000),
        ("ConversationSummaryMemory", "buffer_size", 20),
        ("ConversationSummaryBufferMemory", "max_token_limit", 2000),
    ],
)
def test_a_limit_may_be_left_out(name: str, option: str, default: int) -> None:
    with configured(MEMORY=MEMORY + name):
        assert getattr(memories["default"].strategy, option) == default
        assert isinstance(memories["default"].counter, tokens.Utf8TokenCounter)


def test_a_memory_without_summaries_needs_no_model() -> None:
    with configured(MEMORY=MEMORY + "ConversationBufferMemory", CHAT_MODEL={"BACKEND": "no.such.Model"}):
        assert memories["default"].model is None


def test_the_error_at_first_use_lists_every_problem_and_its_repair() -> None:
    with configured(MODEL={}, OPTIONS={"max_tokens_limit": 5}, CHAT_MODEL={"BACKEND": "no.such.Model"}):
        error = refused()
        for problem in conf.problems():
            assert f"({problem.id}) {problem.message} {problem.hint}" in error
        assert [problem.id[-4:] for problem in conf.problems()] == ["E002", "E004", "E005"]


def test_every_unknown_key_and_option_is_reported() -> None:
    with configured(MODEL={}, SCHEDULR={}, OPTIONS={"a": 1, "b": 2}, CHAT_MODEL={**EXTRACTIVE, "c": 3, "d": 4}):
        problems = conf.problems()
    assert [problem.id[-4:] for problem in problems] == ["E002"] * 2 + ["E004"] * 2 + ["E005"] * 2


@pytest.mark.parametrize(
    "model",
    [
        {"OPTIONS": {"api_key": "sk-SECRET"}},
        {"BACKEND": OPENAI, "OPTIONS": {"api_key": ["sk-SECRET"]}},
        {"BACKEND": OPENAI, "OPTIONS": ("api_key", "sk-SECRET")},
        "sk-SECRET",
    ],
)
def test_no_error_shows_a_key(model: Any) -> None:
    with configured(CHAT_MODEL=model):
        assert "SECRET" not in refused()
    with override_settings(CONVMEMORY=["sk-SECRET"]):
        assert "SECRET" not in refused()


def test_a_setting_without_aliases_says_where_they_go() -> None:
    with override_settings(CONVMEMORY={"OPTIONS": {}, "CHAT_MODEL": {}}):
        assert "where its aliases should be" in refused()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, "must be a dict"),
        ([], "must be a dict"),
        ({"max_tokens_limit": 5}, "unknown option 'max_tokens_limit'"),
        ({"window_size": 5}, "unknown option 'window_size'"),  # of another memory
        ({"alias": "x"}, "unknown option 'alias'"),
        ({1: 2}, "unknown option 1"),
        ({"max_token_limit": "2000"}, "max_token_limit must be a whole number of at least 1, not '2000'"),
        ({"max_token_limit": 0}, "max_token_limit must be a whole number of at least 1, not 0"),
        ({"max_summary_tokens": 1.5}, "option max_summary_tokens must be int or None, not 1.5"),
        ({"max_summary_tokens": 15}, "option max_summary_tokens must be at least 16, not 15"),
        ({"max_attempts": 0}, "option max_attempts must be at least 1, not 0"),
        ({"max_run_seconds": True}, "option max_run_seconds must be float, not True"),
        ({"max_run_seconds": float("nan")}, "option max_run_seconds must be at least 1, not nan"),
        ({"summary_prefix": 1}, "option summary_prefix must be str, not 1"),
        ({"summary_prefix": "a\0"}, "summary_prefix"),
        ({"instructions": "a\0"}, "instructions"),
        ({"summary_role": "assistant"}, "summary_role must be one of system, developer, user, not 'assistant'"),
        (
            {"max_context_tokens": 2900, "max_token_limit": 2000},
            "max_context_tokens is 2900, but max_token_limit (2000)",
        ),
    ],
)
def test_convmemory_e004_names_the_invalid_option(options: Any, expected: str) -> None:
    with configured(OPTIONS=options):
        [problem] = conf.problems()
        error = refused()
    assert problem.id == "convmemory.E004"
    assert 'CONVMEMORY["default"]["OPTIONS"]' in error
    assert expected in error


@pytest.mark.parametrize(
    "options",
    [{"max_run_seconds": 10}, {"max_chunk_tokens": None}, {"max_context_tokens": 3000, "max_token_limit": 2000}],
)
def test_options_at_their_bounds_are_accepted(options: dict[str, Any]) -> None:
    with configured(OPTIONS=options):
        memories["default"]


@pytest.mark.parametrize(
    ("setting", "options", "expected"),
    [
        ("CHAT_MODEL", {"modle": "x"}, "unknown option 'modle'. Choose one of: model"),
        ("CHAT_MODEL", {"model": 1}, "model must be"),
        ("CHAT_MODEL", {"timeout": True}, "timeout must be"),
        ("CHAT_MODEL", ["model"], "must be a dict"),
    ],
)
def test_the_error_names_the_invalid_option_of_a_backend(setting: str, options: Any, expected: str) -> None:
    with configured(**{setting: {"BACKEND": OPENAI, "OPTIONS": options}}):
        error = refused()
    assert f'CONVMEMORY["default"]["{setting}"]["OPTIONS"]' in error
    assert expected in error


@pytest.mark.parametrize(
    ("setting", "path", "option"),
    [
        ("CHAT_MODEL", f"{__name__}.NeedsAnOption", "size"),
        ("TOKEN_COUNTER", f"{__name__}.NeedsAnOption", "size"),
        ("RERANKER", "django_convmemory.contrib.embeddings.reranker.EmbeddingReranker", "model"),
    ],
)
def test_the_error_says_which_option_to_add(setting: str, path: str, option: str) -> None:
    with configured(**{setting: {"BACKEND": path}}):
        error = refused()
    where = f'CONVMEMORY["default"]["{setting}"]["OPTIONS"]'
    assert f"{where} lacks the option '{option}'. Add the option \"{option}\"." in error


def test_an_error_of_python_ends_before_the_hint() -> None:
    with configured(CHAT_MODEL={"BACKEND": "no.such.Model"}):
        assert refused().endswith("No module named 'no'. Write the dotted path of a class.")


def test_a_backend_whose_annotations_cannot_be_resolved_is_accepted() -> None:
    counter = {"BACKEND": f"{__name__}.TypedForCheckersOnly", "OPTIONS": {"size": 3}}
    with configured(TOKEN_COUNTER=counter):
        assert memories["default"].counter.count_text("a") == 3


def test_checks_build_no_memory() -> None:
    with configured(CHAT_MODEL=EXTRACTIVE):
        conf.problems()
        assert memories._made == {}


def test_a_value_that_may_be_a_secret_is_not_shown() -> None:
    with pytest.raises(ValueError, match=r"api_key must be str or None, not a list\.$"):
        check_type("api_key", ["sk-secret"], str | None, shown=False)
