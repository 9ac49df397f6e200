from __future__ import annotations

import importlib
import pathlib
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import checks
from django.core.management import ManagementUtility, call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler
from django.test import override_settings
from kombu import transport

from django_convmemory import checks as app_checks, conf, models, prompts, tokens
from django_convmemory.clock import Clock
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.pause import Pause, Reason
from django_convmemory.store.orm import ORMStore
from tests import processes, projects
from tests.outages import pause_alias
from tests.releases import databases

MEMORY = "django_convmemory.memory."
EXTRACTIVE = {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"}
NULL = {"BACKEND": "django_convmemory.scheduling.NullScheduler"}


def reported_with(*, databases: list[str] | None = None, **alias: Any) -> list[str]:
    """Return the ids that the checks report if the alias ``default`` has these settings."""
    with override_settings(CONVMEMORY={"default": {"CHAT_MODEL": EXTRACTIVE, "SCHEDULER": NULL, **alias}}):
        return reported(databases)


def reported(databases: list[str] | None = None) -> list[str]:
    """Return the ids that the checks report, without "convmemory.". Each message must have a hint."""
    tags = [checks.Tags.database] if databases else ["convmemory"]
    messages = checks.run_checks(tags=tags, databases=databases)
    ours = [message for message in messages if (message.id or "").startswith("convmemory.")]
    assert all(message.msg and message.hint for message in ours)
    return [(message.id or "").removeprefix("convmemory.") for message in ours]


def test_the_defaults_and_the_settings_of_the_tests_pass() -> None:
    assert reported_with() == []
    assert reported() == []


@pytest.mark.parametrize(
    "setting", [[], {}, "default", 1, {"default": None}, {"default": []}, {1: {}}, {"": {}}, {"a" * 101: {}}]
)
def test_convmemory_e001_the_setting_is_a_dict_of_aliases(setting: Any) -> None:
    with override_settings(CONVMEMORY=setting):
        assert reported() == ["E001"]


@pytest.mark.parametrize("currency", ["USD", "€", "R$", ""])
def test_a_currency_is_a_short_text(currency: str) -> None:
    with override_settings(CONVMEMORY_CURRENCY=currency):
        assert reported() == []
        assert conf.currency() == currency


@pytest.mark.parametrize("currency", [None, 1, ["USD"], "US\n", "\u202eUSD", "x" * 11])
def test_convmemory_e013_a_currency_is_no_short_text(currency: Any) -> None:
    with override_settings(CONVMEMORY_CURRENCY=currency):
        assert reported() == ["E013"]


def test_convmemory_e002_a_key_is_unknown() -> None:
    assert reported_with(CHAT_MODLE=EXTRACTIVE) == ["E002"]


@pytest.mark.parametrize(
    "path",
    [
        "no.such.Memory",
        MEMORY + "ConversationMemroy",
        "ConversationBufferMemory",
        3,
        "django_convmemory.tokens.Utf8TokenCounter",
        "django_convmemory.operations.handles.ConversationMemory",
        "django_convmemory.memory.memories",
    ],
)
def test_convmemory_e003_the_path_is_not_a_memory_class(path: Any) -> None:
    assert reported_with(MEMORY=path) == ["E003"]


BACKENDS = [
    None,
    "django_convmemory.chat_models.extractive.ExtractiveChatModel",
    {"BACKEND": None},
    {"BACKEND": "no.such.Class"},
    {"BACKEND": "django_convmemory.messages.ROLES"},
    {"BACKEND": "django_convmemory.rules.options.Options"},
    {"BACKEND": "builtins.dict"},
    {**EXTRACTIVE, "OPTION": {}},
    {**EXTRACTIVE, "OPTIONS": {"no_such_option": 1}},
    {**EXTRACTIVE, "OPTIONS": [1]},
]


TIKTOKEN = {"BACKEND": "django_convmemory.tokens.TiktokenCounter", "OPTIONS": {"encoding": "gpt"}}


@pytest.mark.parametrize(
    ("setting", "id", "values"),
    [
        ("CHAT_MODEL", "E005", BACKENDS),
        ("FALLBACK_CHAT_MODEL", "E006", BACKENDS[1:]),  # None is no fallback.
        ("TOKEN_COUNTER", "E007", [*BACKENDS, EXTRACTIVE, TIKTOKEN]),
        ("SCHEDULER", "E008", [*BACKENDS, EXTRACTIVE]),
    ],
)
def test_convmemory_e005_to_e008_a_backend_cannot_be_created(setting: str, id: str, values: list[Any]) -> None:  # noqa: A002
    for value in values:
        assert reported_with(**{setting: value}) == [id], value


def test_convmemory_e006_a_fallback_has_no_price_and_may_be_none() -> None:
    assert reported_with(FALLBACK_CHAT_MODEL={**EXTRACTIVE, "PRICE": {"input": 1, "output": 1}}) == ["E006"]
    assert reported_with(FALLBACK_CHAT_MODEL=None) == []


class Silent:
    """Prompts that write nothing."""

    def fold(self, material: object) -> list[object]:
        return []

    shorten = fold


class Outdated(prompts.DefaultPrompts):
    turns = "Turns that follow: {turns}"


class Random(prompts.DefaultPrompts):
    def fold(self, material: prompts.FoldMaterial) -> list[ChatMessage]:
        return [ChatMessage.human(f"{uuid.uuid4()}: {material.transcript}")]


@pytest.mark.parametrize(
    "value",
    [
        *BACKENDS,
        EXTRACTIVE,
        {"BACKEND": "tests.test_checks.Silent"},
        {"BACKEND": "tests.test_checks.Outdated"},
        {"BACKEND": "django_convmemory.prompts.DefaultPrompts", "OPTIONS": {"subject": "algebra"}},
    ],
)
def test_convmemory_e012_the_prompts_cannot_be_created_or_write_no_request(value: Any) -> None:
    assert reported_with(PROMPTS=value) == ["E012"]


@pytest.mark.parametrize(
    ("prompts", "why"),
    [
        (Outdated, "wrote no usable request for a sample conversation: KeyError: 'turns'"),
        (Random, "Two requests for the same sample differ"),
    ],
)
def test_convmemory_e012_says_what_went_wrong_with_the_sample(settings: Any, prompts: type[Any], why: str) -> None:
    settings.CONVMEMORY = {
        "default": {"CHAT_MODEL": EXTRACTIVE, "PROMPTS": {"BACKEND": f"{__name__}.{prompts.__name__}"}}
    }
    (problem,) = conf.problems()
    assert problem.id == "convmemory.E012"
    assert problem.message.startswith('CONVMEMORY["default"]["PROMPTS"]')
    assert why in problem.message


@pytest.mark.parametrize(
    "price",
    [
        3,
        {"input": 1},
        {"input": 1, "output": 2, "cached": 1},
        {"input": "much", "output": 1},
        {"input": 1, "output": 2, "cached_input": None},
        {"input": 1, "output": 2, "cached_input": -1},
        {"input": float("inf"), "output": 1},
        {"input": float("nan"), "output": 1},
    ],
)
def test_convmemory_e009_the_price_has_the_wrong_form(price: Any) -> None:
    assert reported_with(CHAT_MODEL={**EXTRACTIVE, "PRICE": price}) == ["E009"]


@pytest.mark.parametrize(
    "price",
    [
        None,
        {"input": 0, "output": 0},
        {"input": "0.25", "output": 2.0},
        {"input": 0.4, "cached_input": 0.1, "output": 1.6},
    ],
)
def test_a_price_is_two_or_three_numbers_or_none(price: Any) -> None:
    assert reported_with(CHAT_MODEL={**EXTRACTIVE, "PRICE": price}) == []


def test_every_alias_is_checked_and_named() -> None:
    wrong = {"SCHEDULER": NULL, "MEMORY": "no.such.Memory"}
    with override_settings(CONVMEMORY={"good": {"SCHEDULER": NULL}, "bad": wrong, "worse": wrong}):
        messages = checks.run_checks(tags=["convmemory"])
    assert [message.msg.split(" is ")[0] for message in messages] == [
        'CONVMEMORY["bad"]["MEMORY"]',
        'CONVMEMORY["worse"]["MEMORY"]',
    ]
    assert all(message.level == checks.ERROR for message in messages)


@pytest.fixture
def other_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that gives the checks databases with other settings. They are closed after the test."""
    handlers: list[ConnectionHandler] = []

    def use(**databases: dict[str, Any]) -> None:
        handlers.append(ConnectionHandler(databases))
        monkeypatch.setattr(app_checks, "connections", handlers[-1])

    yield use
    for handler in handlers:
        for opened in handler.all(initialized_only=True):
            BaseDatabaseWrapper.close(opened)  # SQLite's own close() keeps an in-memory database open.


def sqlite(name: object, **settings: Any) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(name), **settings}


class ChatsRouter:
    """Routes writes to the database ``chats``."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "chats"


def test_convmemory_w001_is_about_the_database_that_holds_the_sessions(other_connections: Any) -> None:
    with override_settings(DATABASE_ROUTERS=[ChatsRouter()]):
        other_connections(default=sqlite(":memory:", ATOMIC_REQUESTS=True), chats=sqlite(":memory:"))
        assert reported_with() == []
        other_connections(default=sqlite(":memory:"), chats=sqlite(":memory:", ATOMIC_REQUESTS=True))
        assert reported_with() == ["W001"]


class SeparateRouter(ChatsRouter):
    """Puts conversations into ``chats`` and the rest into ``default``. ``tables`` are the apps of each database."""

    def __init__(self, **tables: set[str]) -> None:
        self.tables = tables

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "chats" if model._meta.app_label == "convmemory" else "default"

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return app_label.removesuffix("_embeddings") in self.tables[db] if db in self.tables else None


@pytest.mark.parametrize(
    ("tables", "missing"),
    [
        ({"chats": {"convmemory"}}, ['"auth.User" in "chats"']),
        ({"default": {"auth"}}, ['"convmemory.Session" in "default"']),
        (
            {"chats": {"convmemory"}, "default": {"auth"}},
            ['"auth.User" in "chats"', '"convmemory.Session" in "default"'],
        ),
    ],
)
def test_convmemory_e011_sessions_and_users_have_databases_without_each_others_tables(
    tables: dict[str, set[str]], missing: list[str], other_connections: Any
) -> None:
    other_connections(default=sqlite("default"), chats=sqlite("chats"))
    with override_settings(DATABASE_ROUTERS=[SeparateRouter(**tables)]):
        assert reported_with() == ["E011"]
        [error] = app_checks.check_routers()
    assert all(table in error.msg for table in missing)
    assert error.msg.count(" in ") == 2 + len(missing)


def test_convmemory_e011_a_table_that_refers_to_sessions_is_elsewhere() -> None:
    class Router:
        def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
            return False if app_label == "convmemory_embeddings" else None

    with override_settings(DATABASE_ROUTERS=[Router()]):
        assert reported_with() == ["E011"]
        [error] = app_checks.check_routers()
    assert '"convmemory_embeddings.Vector"' in error.msg
    assert '"convmemory_embeddings"' in (error.hint or "")


def test_convmemory_w010_a_session_cannot_have_an_owner(other_connections: Any) -> None:
    other_connections(default=sqlite("default"), chats=sqlite("chats"))
    with override_settings(DATABASE_ROUTERS=[SeparateRouter()]):
        assert reported_with() == ["W010"]
    with override_settings(DATABASE_ROUTERS=[ChatsRouter()]):
        assert reported_with() == []


def test_convmemory_w010_is_not_about_two_names_of_one_database(other_connections: Any) -> None:
    other_connections(default=sqlite("same"), chats=sqlite("same"))
    with override_settings(DATABASE_ROUTERS=[SeparateRouter(chats=set())]):
        assert reported_with() == []


@pytest.mark.parametrize(
    ("apps", "ids"), [({"convmemory"}, ["W010"]), ({"convmemory", "auth"}, []), (set(), []), ({"auth"}, [])]
)
def test_convmemory_w010_another_database_would_get_sessions_without_users(
    apps: set[str], ids: list[str], other_connections: Any
) -> None:
    class Router(SeparateRouter):
        def db_for_write(self, model: Any, **hints: Any) -> str:
            return "default"

    other_connections(default=sqlite("default"), reports=sqlite("reports"))
    with override_settings(DATABASE_ROUTERS=[Router(reports=apps)]):
        assert reported_with() == ids


@pytest.mark.parametrize(("id", "path"), [("W002", "scheduling.InlineScheduler"), ("W013", "sweeping.ThreadScheduler")])
def test_convmemory_w002_and_w013_the_web_server_folds(id: str, path: str) -> None:  # noqa: A002
    scheduler = {"BACKEND": f"django_convmemory.{path}"}
    assert reported_with(SCHEDULER=scheduler) == [id]
    with override_settings(DEBUG=True):
        assert reported_with(SCHEDULER=scheduler) == []


@pytest.mark.parametrize(
    ("memory", "options", "ids"),
    [
        ("ConversationSummaryBufferMemory", {"max_summary_tokens": 40}, ["W012"]),
        ("ConversationSummaryMemory", {"max_summary_tokens": 71}, ["W012"]),
        ("ConversationSummaryBufferMemory", {"max_summary_tokens": 72}, []),
        ("ConversationSummaryBufferMemory", {"max_summary_tokens": 40, "keep_identifiers": False}, []),
        ("ConversationWindowMemory", {"max_summary_tokens": 40}, []),
    ],
)
def test_convmemory_w012_no_identifier_fits_into_a_summary(
    memory: str, options: dict[str, Any], ids: list[str]
) -> None:
    assert reported_with(MEMORY=MEMORY + memory, OPTIONS=options) == ids


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"max_summary_tokens": 16}, "is 16."),
        ({"max_context_tokens": 192}, "is 16, by default a twelfth of max_context_tokens."),
    ],
)
def test_convmemory_w012_says_which_size_is_enough(option: dict[str, int], why: str) -> None:
    small = {"CHAT_MODEL": EXTRACTIVE, "SCHEDULER": NULL, "OPTIONS": option}
    with override_settings(CONVMEMORY={"default": small}):
        (warning,) = app_checks.check_identifiers()
    assert f"max_summary_tokens {why}" in warning.msg
    assert warning.hint == "Set max_summary_tokens to 72 or more, or keep_identifiers to False."


def test_convmemory_w012_does_not_ask_the_counter_about_a_usual_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have to read a vocabulary first, and the check runs with each command."""
    monkeypatch.setattr(tokens.Utf8TokenCounter, "count_text", None)
    assert reported_with(OPTIONS={"max_summary_tokens": 200}) == []


def test_the_database_of_the_tests_passes(db: None) -> None:
    assert reported_with(databases=["default"]) == []


@pytest.mark.vendors
@pytest.mark.django_db(transaction=True)
def test_convmemory_e016_tables_from_before_the_first_release(tmp_path: pathlib.Path) -> None:
    with databases.empty(tmp_path):
        call_command("migrate", verbosity=0, skip_checks=False)
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE convmemory_session ADD COLUMN later integer NULL")
            assert reported_with(databases=["default"]) == []
            cursor.execute("ALTER TABLE convmemory_session DROP COLUMN fold_window")
            # As it was called then: another check reads it.
            cursor.execute("ALTER TABLE convmemory_aliasstate RENAME COLUMN paused_until TO until_then")
        assert reported_with(databases=["default"]) == ["E016"]
        for arguments in (["migrate"], ["check", "--database", "default"]):
            with pytest.raises(SystemCheckError, match=r'E016\) .* "default" are from before release 0\.1\.0'):
                ManagementUtility(["manage.py", *arguments, "--traceback"]).execute()


def test_databases_that_were_not_asked_for_are_not_opened(other_connections: Any, tmp_path: pathlib.Path) -> None:
    other_connections(default=sqlite(tmp_path / "chats.sqlite3"))
    with override_settings(CONVMEMORY={"default": {"SCHEDULER": NULL}}):
        assert app_checks.check_database(databases=None) == []
        assert app_checks.check_database(databases=["other"]) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.django_db
def test_convmemory_w008_a_backend_cannot_do_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    openai = {"BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel"}
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert reported_with(databases=["default"], CHAT_MODEL=openai) == ["W008"]
    ready = {**openai, "OPTIONS": {"model": "m", "api_key": "k"}}
    assert reported_with(databases=["default"], CHAT_MODEL=ready) == []
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "nowhere")
    tiktoken = {"BACKEND": "django_convmemory.tokens.TiktokenCounter"}
    assert reported_with(databases=["default"], TOKEN_COUNTER=tiktoken) == ["W008"]


@pytest.mark.django_db
@pytest.mark.parametrize(("broker_url", "ids"), [("", ["W008"]), ("memory://", [])])
def test_convmemory_w008_celery_without_a_broker(broker_url: str, ids: list[str]) -> None:
    celery = {"BACKEND": "django_convmemory.tasks.CeleryScheduler"}
    with projects.project(broker_url):
        assert reported_with(databases=["default"], SCHEDULER=celery) == ids
        window = "django_convmemory.memory.ConversationWindowMemory"
        assert reported_with(databases=["default"], SCHEDULER=celery, MEMORY=window, OPTIONS={}) == []


@pytest.mark.django_db
def test_convmemory_w008_names_what_folds_without_a_broker() -> None:
    page = (processes.ROOT / "docs/guides/development.md").read_text(encoding="utf-8")
    with projects.project(""), override_settings(CONVMEMORY={"default": {"CHAT_MODEL": EXTRACTIVE}}):
        [warning] = app_checks.check_database(databases=["default"])
    for name in ("django_convmemory.sweeping.ThreadScheduler", "NullScheduler", "manage.py convmemory_sweep --watch"):
        assert name in (warning.hint or "")
        assert name in page


@pytest.mark.django_db
@pytest.mark.parametrize("missing", ["redis", "packaging"])
def test_convmemory_w008_the_library_of_the_broker_is_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    redis: Any = importlib.import_module("kombu.transport.redis")
    if missing == "redis":
        monkeypatch.setattr(redis, "redis", None)
    else:  # The module of the transport cannot be imported.
        monkeypatch.setattr(transport, "_transport_cache", {})
        monkeypatch.setitem(sys.modules, redis.__name__, None)
    with (
        projects.project("redis://:a-secret@127.0.0.1:1/0"),
        override_settings(CONVMEMORY={"default": {"CHAT_MODEL": EXTRACTIVE}}),
    ):
        [warning] = app_checks.check_database(databases=["default"])
    assert warning.id == "convmemory.W008"
    assert "django-convmemory[redis]" in warning.msg
    assert "a-secret" not in str(warning)


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nonsense://", "redis://127.0.0.1:port"])
def test_convmemory_w008_does_not_ask_the_broker(url: str) -> None:
    celery = {"BACKEND": "django_convmemory.tasks.CeleryScheduler"}
    with projects.project(url):
        assert reported_with(databases=["default"], SCHEDULER=celery) == []


@pytest.mark.parametrize(
    ("use_tz", "zone", "ids"), [(True, None, []), (False, None, ["W006"]), (True, "Asia/Tokyo", ["W006"])]
)
def test_convmemory_w006_times_are_read_in_another_time_zone(
    use_tz: bool, zone: str | None, ids: list[str], other_connections: Any
) -> None:
    other_connections(default=sqlite(":memory:", TIME_ZONE=zone))
    with override_settings(USE_TZ=use_tz):
        assert reported_with() == ids


@pytest.mark.django_db
def test_convmemory_w004_sqlite_without_a_write_ahead_log(other_connections: Any, tmp_path: pathlib.Path) -> None:
    other_connections(default=sqlite(tmp_path / "plain.sqlite3"))
    assert reported_with(databases=["default"]) == ["W004"]
    options = {"init_command": "PRAGMA journal_mode=WAL;"}
    other_connections(default=sqlite(tmp_path / "wal.sqlite3", OPTIONS=options))
    assert reported_with(databases=["default"]) == ["W004"]
    options["transaction_mode"] = "IMMEDIATE"
    other_connections(default=sqlite(tmp_path / "wal.sqlite3", OPTIONS=options))
    assert reported_with(databases=["default"]) == []
    other_connections(default=sqlite(":memory:"))
    assert reported_with(databases=["default"]) == []


def pause(reason: Reason, alias: str = "default") -> None:
    pause_alias(ORMStore(), reason, "Refused: this key", alias=alias)


@pytest.mark.django_db
def test_convmemory_w005_the_chat_model_is_misconfigured() -> None:
    pause(Reason.MISCONFIGURED)
    assert reported_with(databases=["default"]) == ["W005"]
    assert reported_with(databases=["default"], MEMORY=MEMORY + "ConversationBufferMemory") == []
    assert reported_with(databases=["default"], MEMORY="no.such.Memory") == []


@pytest.mark.django_db
def test_convmemory_w005_quotes_the_last_error_and_lasts_until_the_model_answers() -> None:
    pause(Reason.MISCONFIGURED)
    (warning,) = app_checks.check_database(["default"])
    assert "The last error was: Refused: this key" in str(warning.hint)
    models.AliasState.objects.update(paused_until=Clock(-60))
    assert reported_with(databases=["default"]) == ["W005"]
    ORMStore().change_pause("default", Pause.answered)
    assert reported_with(databases=["default"]) == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("reason", "alias"), [(Reason.MISCONFIGURED, "other"), (Reason.OUTAGE, "default"), (Reason.RATE_LIMIT, "default")]
)
def test_convmemory_w005_ignores_other_pauses_and_other_aliases(reason: Reason, alias: str) -> None:
    pause(reason, alias)
    assert reported_with(databases=["default"]) == []


def test_database_checks_pass_before_the_first_migration(db: None, other_connections: Any) -> None:
    other_connections(default=sqlite(":memory:"))
    assert reported_with(databases=["default"]) == []
