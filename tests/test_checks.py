from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, Self

import pytest
from django.core import checks
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler
from django.test import override_settings

from django_convmemory import checks as app_checks, models
from tests import projects

MEMORY = "django_convmemory.memory."
EXTRACTIVE = {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"}
NULL = {"BACKEND": "django_convmemory.schedulers.NullScheduler"}


def found(*, databases: list[str] | None = None, **alias: Any) -> list[str]:
    """The ids of the checks that fail for these settings of the default alias. Each has a message and a hint."""
    with override_settings(CONVMEMORY={"default": {"CHAT_MODEL": EXTRACTIVE, "SCHEDULER": NULL, **alias}}):
        return run(databases)


def run(databases: list[str] | None = None) -> list[str]:
    tags = [checks.Tags.database] if databases else ["convmemory"]
    said = checks.run_checks(tags=tags, databases=databases)
    ours = [message for message in said if (message.id or "").startswith("convmemory.")]
    assert all(message.msg and message.hint and message.id for message in ours)
    return [(message.id or "").removeprefix("convmemory.") for message in ours]


def test_the_defaults_and_the_settings_of_the_tests_pass() -> None:
    assert found() == []
    assert run() == []


@pytest.mark.parametrize(
    "setting", [[], {}, "default", 1, {"default": None}, {"default": []}, {1: {}}, {"": {}}, {"a" * 101: {}}]
)
def test_convmemory_e001_the_setting_is_a_dict_of_aliases(setting: Any) -> None:
    with override_settings(CONVMEMORY=setting):
        assert run() == ["E001"]


def test_convmemory_e002_a_key_is_unknown() -> None:
    assert found(CHAT_MODLE=EXTRACTIVE) == ["E002"]


@pytest.mark.parametrize(
    "path",
    [
        "no.such.Memory",
        MEMORY + "ConversationMemroy",
        "ConversationBufferMemory",
        None,
        3,
        "django_convmemory.tokens.Utf8TokenCounter",
        "django_convmemory.conversation.ConversationMemory",
        "django_convmemory.memory.BufferSummaryChatMemory",
        "django_convmemory.memory.memories",
    ],
)
def test_convmemory_e003_the_memory_cannot_be_found_or_is_none(path: Any) -> None:
    assert found(MEMORY=path) == ["E003"]


@pytest.mark.parametrize(
    "options",
    [
        None,
        [],
        "max_token_limit",
        {"limit": 1},
        {"max_token_limit": "1"},
        {"max_attempts": 0},
        {"max_context_tokens": 600},
    ],
)
def test_convmemory_e004_an_option_is_unknown_or_cannot_be(options: Any) -> None:
    assert found(OPTIONS=options) == ["E004"]


BACKENDS = [
    None,
    "django_convmemory.chat_models.extractive.ExtractiveChatModel",
    {},
    {"BACKEND": None},
    {"BACKEND": "no.such.Class"},
    {"BACKEND": "nothing"},
    {"BACKEND": "django_convmemory.messages.ROLES"},
    {"BACKEND": "django_convmemory.core.options.Options"},
    {"BACKEND": "django_convmemory.exceptions"},
    {"BACKEND": "builtins.dict"},
    {**EXTRACTIVE, "OPTION": {}},
    {**EXTRACTIVE, "OPTIONS": {"no_such_option": 1}},
    {**EXTRACTIVE, "OPTIONS": [1]},
]


@pytest.mark.parametrize("value", BACKENDS)
def test_convmemory_e005_the_chat_model_cannot_be_made(value: Any) -> None:
    assert found(CHAT_MODEL=value) == ["E005"]


@pytest.mark.parametrize("value", [backend for backend in BACKENDS if backend is not None])
def test_convmemory_e006_the_fallback_chat_model_cannot_be_made(value: Any) -> None:
    assert found(FALLBACK_CHAT_MODEL=value) == ["E006"]


def test_convmemory_e006_a_fallback_has_no_price_and_may_be_none() -> None:
    assert found(FALLBACK_CHAT_MODEL={**EXTRACTIVE, "PRICE": {"input": 1, "output": 1}}) == ["E006"]
    assert found(FALLBACK_CHAT_MODEL=None) == []


@pytest.mark.parametrize(
    "value",
    [*BACKENDS, EXTRACTIVE, {"BACKEND": "django_convmemory.tokens.TiktokenCounter", "OPTIONS": {"encoding": "gpt"}}],
)
def test_convmemory_e007_the_token_counter_cannot_be_made(value: Any) -> None:
    assert found(TOKEN_COUNTER=value) == ["E007"]


@pytest.mark.parametrize("value", [*BACKENDS, EXTRACTIVE])
def test_convmemory_e008_the_scheduler_cannot_be_made(value: Any) -> None:
    assert found(SCHEDULER=value) == ["E008"]


@pytest.mark.parametrize(
    "price",
    [
        3,
        "cheap",
        {},
        {"input": 1},
        {"input": 1, "output": 2, "cached": 1},
        {"input": -1, "output": 1},
        {"input": "much", "output": 1},
        {"input": None, "output": 1},
        {"input": True, "output": 1},
        {"input": float("inf"), "output": 1},
        {"input": float("nan"), "output": 1},
        [1, 2],
    ],
)
def test_convmemory_e009_the_price_is_not_two_numbers(price: Any) -> None:
    assert found(CHAT_MODEL={**EXTRACTIVE, "PRICE": price}) == ["E009"]


@pytest.mark.parametrize("price", [None, {"input": 0, "output": 0}, {"input": "0.25", "output": 2.0}])
def test_a_price_is_two_numbers_or_none(price: Any) -> None:
    assert found(CHAT_MODEL={**EXTRACTIVE, "PRICE": price}) == []


def test_every_alias_is_checked_and_named() -> None:
    wrong = {"SCHEDULER": NULL, "MEMORY": "no.such.Memory"}
    with override_settings(CONVMEMORY={"good": {"SCHEDULER": NULL}, "bad": wrong, "worse": wrong}):
        said = checks.run_checks(tags=["convmemory"])
    assert [message.msg.split(" is ")[0] for message in said] == [
        'CONVMEMORY["bad"]["MEMORY"]',
        'CONVMEMORY["worse"]["MEMORY"]',
    ]
    assert all(message.level == checks.ERROR for message in said)


@pytest.fixture
def other_connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Shows the checks other databases, made from settings. They are closed after the test."""
    made: list[ConnectionHandler] = []

    def put(**databases: dict[str, Any]) -> None:
        made.append(ConnectionHandler(databases))
        monkeypatch.setattr(app_checks, "connections", made[-1])

    yield put
    for handler in made:
        for connection in handler.all(initialized_only=True):
            BaseDatabaseWrapper.close(connection)  # SQLite's own keeps one in memory open


def sqlite(name: object, **more: Any) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(name), **more}


def test_convmemory_w001_a_views_transaction_spans_its_call_of_the_model(other_connections: Any) -> None:
    other_connections(default=sqlite(":memory:", ATOMIC_REQUESTS=True))
    assert found() == ["W001"]
    other_connections(default=sqlite(":memory:"))
    assert found() == []


class ToChats:
    """Routes everything to the database ``chats``."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "chats"


def test_convmemory_w001_is_about_the_database_that_the_memories_write(other_connections: Any) -> None:
    with override_settings(DATABASE_ROUTERS=[ToChats()]):
        other_connections(default=sqlite(":memory:", ATOMIC_REQUESTS=True), chats=sqlite(":memory:"))
        assert found() == []
        other_connections(default=sqlite(":memory:"), chats=sqlite(":memory:", ATOMIC_REQUESTS=True))
        assert found() == ["W001"]


def test_convmemory_w002_requests_wait_for_the_model() -> None:
    inline = {"BACKEND": "django_convmemory.schedulers.InlineScheduler"}
    assert found(SCHEDULER=inline) == ["W002"]
    with override_settings(DEBUG=True):
        assert found(SCHEDULER=inline) == []


def test_the_database_of_the_tests_passes(db: None) -> None:
    assert found(databases=["default"]) == []


def test_databases_that_are_not_asked_for_are_left_alone(other_connections: Any, tmp_path: pathlib.Path) -> None:
    other_connections(default=sqlite(tmp_path / "chats.sqlite3"))
    with override_settings(CONVMEMORY={"default": {"SCHEDULER": NULL}}):
        assert app_checks.check_database(databases=None) == []
        assert app_checks.check_database(databases=["other"]) == []
    assert list(tmp_path.iterdir()) == []


class Narrow:
    """A connection to MariaDB as the check sees it."""

    vendor = "mysql"

    def __init__(self, *charsets: str) -> None:
        self.charsets = charsets
        self.introspection = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def cursor(self) -> Narrow:
        return self

    def execute(self, statement: str) -> None:
        self.asked = statement

    def fetchone(self) -> tuple[Any, ...]:
        return (16 * 1024 * 1024,) if "max_allowed_packet" in self.asked else self.charsets

    def fetchall(self) -> list[Any]:
        return []

    def table_names(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("charsets", "ids"),
    [(("utf8mb4", "utf8mb4"), []), (("utf8mb3", "utf8mb4"), ["W003"]), (("utf8mb4", "latin1"), ["W003"])],
)
def test_convmemory_w003_the_database_loses_characters(
    charsets: tuple[str, str], ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_checks, "connections", {"default": Narrow(*charsets)})
    with override_settings(CONVMEMORY={"default": {"CHAT_MODEL": EXTRACTIVE, "SCHEDULER": NULL}}):
        assert [message.id for message in app_checks.check_database(databases=["default"])] == [
            f"convmemory.{check_id}" for check_id in ids
        ]


@pytest.mark.only_on("mariadb")
def test_convmemory_w003_a_connection_with_three_bytes_a_character(db: None, other_connections: Any) -> None:
    other_connections(default=connections.settings["default"] | {"OPTIONS": {"charset": "utf8"}})
    assert found(databases=["default"]) == ["W003"]


@pytest.mark.django_db
def test_convmemory_w008_a_backend_cannot_do_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    openai = {"BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel"}
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert found(databases=["default"], CHAT_MODEL=openai) == ["W008"]
    ready = {**openai, "OPTIONS": {"model": "m", "api_key": "k"}}
    assert found(databases=["default"], CHAT_MODEL=ready) == []
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "nowhere")
    tiktoken = {"BACKEND": "django_convmemory.tokens.TiktokenCounter"}
    assert found(databases=["default"], TOKEN_COUNTER=tiktoken) == ["W008"]


@pytest.mark.django_db
@pytest.mark.parametrize(("broker_url", "ids"), [("", ["W008"]), ("memory://", [])])
def test_convmemory_w008_celery_without_a_broker(broker_url: str, ids: list[str]) -> None:
    celery = {"BACKEND": "django_convmemory.tasks.CeleryScheduler"}
    with projects.project(broker_url):
        assert found(databases=["default"], SCHEDULER=celery) == ids
        window = "django_convmemory.memory.ConversationWindowMemory"
        assert found(databases=["default"], SCHEDULER=celery, MEMORY=window, OPTIONS={}) == []


@pytest.mark.only_on("mariadb")
@pytest.mark.django_db
def test_convmemory_w007_a_message_is_larger_than_the_server_takes() -> None:
    assert found(databases=["default"], OPTIONS={"max_message_bytes": 2**24}) == ["W007"]
    assert found(databases=["default"]) == []


@pytest.mark.only_on("mariadb")
@pytest.mark.django_db
def test_convmemory_w009_a_load_may_show_a_session_half_changed() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        try:
            assert found(databases=["default"]) == ["W009"]
        finally:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    assert found(databases=["default"]) == []


@pytest.mark.parametrize(
    ("use_tz", "zone", "ids"), [(True, None, []), (False, None, ["W006"]), (True, "Asia/Tokyo", ["W006"])]
)
def test_convmemory_w006_times_are_shown_in_another_zone(
    use_tz: bool, zone: str | None, ids: list[str], other_connections: Any
) -> None:
    other_connections(default=sqlite(":memory:", TIME_ZONE=zone))
    with override_settings(USE_TZ=use_tz):
        assert found() == ids


@pytest.mark.django_db
def test_convmemory_w004_sqlite_without_a_write_ahead_log(other_connections: Any, tmp_path: pathlib.Path) -> None:
    other_connections(default=sqlite(tmp_path / "plain.sqlite3"))
    assert found(databases=["default"]) == ["W004"]
    log = {"init_command": "PRAGMA journal_mode=WAL;"}
    other_connections(default=sqlite(tmp_path / "wal.sqlite3", OPTIONS=log))
    assert found(databases=["default"]) == ["W004"]
    log["transaction_mode"] = "IMMEDIATE"
    other_connections(default=sqlite(tmp_path / "wal.sqlite3", OPTIONS=log))
    assert found(databases=["default"]) == []
    other_connections(default=sqlite(":memory:"))
    assert found(databases=["default"]) == []


def attempt(outcome: str, alias: str = "default") -> None:
    session = models.Session.objects.create(alias=alias, key=outcome, name_hash=f"{alias}/{outcome}")
    models.Attempt.objects.create(session=session, alias=alias, outcome=outcome, first_position=1, last_position=2)


@pytest.mark.django_db
def test_convmemory_w005_an_alias_is_paused() -> None:
    attempt("misconfigured")
    assert found(databases=["default"]) == ["W005"]
    assert found(databases=["default"], MEMORY=MEMORY + "ConversationBufferMemory") == []
    assert found(databases=["default"], MEMORY="no.such.Memory") == []


@pytest.mark.django_db
@pytest.mark.parametrize(("outcome", "alias"), [("misconfigured", "other"), ("unavailable", "default")])
def test_convmemory_w005_is_not_said_of_other_errors_and_aliases(outcome: str, alias: str) -> None:
    attempt(outcome, alias)
    assert found(databases=["default"]) == []


def test_checks_of_the_database_pass_before_the_first_migration(db: None, other_connections: Any) -> None:
    other_connections(default=sqlite(":memory:"))
    assert found(databases=["default"]) == []
