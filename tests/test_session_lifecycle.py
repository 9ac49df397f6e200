"""Sessions that a site creates, changes and deletes by itself, in both stores."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_convmemory import exceptions, models
from django_convmemory.memory import ConversationBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.store import Store, appending
from django_convmemory.store.orm import ORMStore
from tests.test_changes_at_once import InThread

pytestmark = pytest.mark.vendors

HELLO = ChatMessage.human("hello")


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.fixture
def memory(store: Store) -> ConversationMemory:
    return ConversationBufferMemory(store)


def test_a_session_is_created_empty_and_appended_to(memory: ConversationMemory) -> None:
    user = get_user_model().objects.create(username="ada")
    chat = memory.session("trip", owner=user)
    created = chat.create(title="Lisbon", metadata={"plan": ["a", {"b": 1.5}]})
    assert (created.title, created.metadata) == ("Lisbon", {"plan": ["a", {"b": 1.5}]})
    assert created.session_name == chat.session_name
    assert (chat.load(), chat.load().revision) == ([], 0)
    assert chat.append(HELLO).first_position == 1
    # A key that nobody owns is another session.
    assert memory.load("trip") == []
    assert memory.create("trip").metadata == {}


def test_a_name_is_used_once(memory: ConversationMemory) -> None:
    memory.append("main", HELLO)
    with pytest.raises(exceptions.SessionExists, match="'main' already exists"):
        memory.create("main", title="another")
    assert memory.history("main")[0].message == HELLO


def test_what_is_updated_and_what_stays(memory: ConversationMemory) -> None:
    session = memory.create("main", title="old", metadata={"a": 1})

    def described() -> tuple[str, Any]:
        if isinstance(session, models.Session):
            session.refresh_from_db()
        return session.title, session.metadata

    memory.update("main", title="new")
    assert described() == ("new", {"a": 1})
    memory.update("main", metadata={})
    assert described() == ("new", {})
    memory.update("main", title="", metadata={"b": [2]}, revision=0)
    assert described() == ("", {"b": [2]})
    # It counts messages only.
    assert memory.load("main").revision == 0


def test_metadata_that_the_site_changes_later_stay_as_they_were_stored(memory: ConversationMemory) -> None:
    tags = ["a"]
    session = memory.create("main", metadata={"tags": tags})
    tags.append("b")
    assert session.metadata == {"tags": ["a"]}
    assert memory.create("deep", metadata=nested(30)).metadata == nested(30)


def test_a_deleted_session_takes_its_messages_with_it(memory: ConversationMemory) -> None:
    memory.append("main", HELLO)
    assert memory.session("main").delete() is True
    assert memory.history("main") == []
    assert memory.delete("main") is False
    assert memory.append("main", HELLO).first_position == 1


def test_a_session_that_has_changed_since_is_left_alone(memory: ConversationMemory) -> None:
    memory.append("main", HELLO)
    revision = memory.load("main").revision
    memory.append("main", HELLO)
    with pytest.raises(exceptions.StaleRevision, match="load it again"):
        memory.update("main", title="late", revision=revision)
    with pytest.raises(exceptions.StaleRevision, match="load it again"):
        memory.delete("main", revision)
    assert len(memory.history("main")) == 2
    memory.update("main", title="in time", revision=revision + 1)
    assert memory.delete("main", revision + 1)


def test_an_update_of_nothing_writes_nothing(memory: ConversationMemory) -> None:
    memory.create("main", title="old")
    memory.append("main", HELLO)
    revision = memory.load("main").revision
    memory.update("main")
    memory.update("main", revision=revision)
    assert memory.load("main").revision == revision
    with pytest.raises(exceptions.StaleRevision):
        memory.update("main", revision=revision - 1)
    with pytest.raises(exceptions.UnknownSession):
        memory.update("nowhere")


def test_a_session_that_is_not_there_cannot_be_updated(memory: ConversationMemory) -> None:
    with pytest.raises(exceptions.UnknownSession, match="'main' does not exist"):
        memory.update("main", title="x")
    assert memory.delete("main", 7) is False
    assert memory.load("main") == []


@pytest.mark.parametrize(
    ("fields", "repair"),
    [
        ({"title": 7}, "title must be a string"),
        ({"title": "t" * 256}, "at most 255 characters"),
        ({"title": "a\0b"}, "title contains a NUL"),
        ({"metadata": []}, "metadata must be a dict"),
        ({"metadata": {"a": {1}}}, "metadata.a holds a set"),
        ({"metadata": {1: 2}}, "keys of a JSON object are strings"),
        ({"metadata": nested(31)}, "nested deeper than 30 levels"),
        ({"metadata": {"a": "x" * 4 * 1024 * 1024}}, "bytes, and 4194304 are allowed"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_stored_is_refused(memory: ConversationMemory, fields: dict[str, Any], repair: str) -> None:
    with pytest.raises(exceptions.InvalidArgument, match=repair):
        memory.create("main", **fields)
    assert memory.delete("main") is False
    memory.create("main")
    with pytest.raises(exceptions.InvalidArgument, match=repair):
        memory.update("main", **fields)
    for revision in (-1, "1", True):
        with pytest.raises(exceptions.InvalidArgument, match="revision must be a whole number"):
            memory.update("main", revision=revision)  # type: ignore[arg-type]
        with pytest.raises(exceptions.InvalidArgument, match="revision must be a whole number"):
            memory.delete("main", revision)  # type: ignore[arg-type]
    assert memory.load("main").revision == 0


@pytest.mark.django_db(transaction=True)
def test_a_table_that_django_does_not_know_is_no_contention() -> None:
    """Such as the table of an app that was removed from the settings."""
    memory = ConversationBufferMemory(ORMStore())
    row = memory.create("main")
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE leftover (session_id bigint NOT NULL REFERENCES convmemory_session (id))")
        try:
            cursor.execute("INSERT INTO leftover VALUES (%s)", [row.pk])
            with pytest.raises(IntegrityError, match=r"(?i)foreign key"):
                memory.delete("main")
            cursor.execute("DELETE FROM leftover")
            assert memory.delete("main")
        finally:
            cursor.execute("DROP TABLE leftover")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "one"])
def test_a_constraint_that_stays_violated_is_no_contention(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    """Such as a column that a site has added to the table."""

    def refuse(*args: Any, **options: Any) -> models.Session:
        raise IntegrityError("NOT NULL constraint failed: convmemory_session.tenant")

    monkeypatch.setattr(appending, "create_session", refuse)
    memory = ConversationBufferMemory(ORMStore())
    with pytest.raises(IntegrityError, match="tenant"):
        memory.append("main", HELLO, idempotency_key=key)
    with pytest.raises(IntegrityError, match="tenant"):
        memory.create("main")


# Rows.


@pytest.mark.django_db
def test_a_row_names_itself_and_no_other_session() -> None:
    memory = ConversationBufferMemory(ORMStore())
    row = memory.create("main")
    with pytest.raises(exceptions.SessionExists):
        memory.create(row)
    memory.delete("main")
    memory.create("main", title="another")
    for operation in (memory.create, memory.update):
        with pytest.raises(exceptions.UnknownSession):
            operation(row, title="x")
    assert memory.delete(row) is False
    assert models.Session.objects.get().title == "another"


@pytest.mark.django_db
def test_the_row_that_is_returned_is_the_one_that_is_stored() -> None:
    created = ConversationBufferMemory(ORMStore()).create("main", title="x")
    stored = models.Session.objects.with_clock().get()
    assert (created, created.state, created.created_at) == (stored, "idle", stored.created_at)


@pytest.mark.django_db(transaction=True)
def test_a_session_that_is_created_in_the_meantime_does_not_break_the_callers_transaction() -> None:
    memory = ConversationBufferMemory(ORMStore())
    with transaction.atomic():
        memory.create("main")
        with pytest.raises(exceptions.SessionExists):
            memory.create("main")
        memory.update("main", title="kept")
    assert models.Session.objects.get().title == "kept"


@pytest.mark.django_db
def test_each_takes_a_fixed_number_of_statements() -> None:
    memory = ConversationBufferMemory(ORMStore())
    counts = []
    for operation in (lambda: memory.create("main"), lambda: memory.update("main"), lambda: memory.delete("main")):
        with CaptureQueriesContext(connection) as captured:
            operation()
        statements = [query["sql"] for query in captured.captured_queries]
        counts.append(len([sql for sql in statements if not sql.startswith(("SAVEPOINT", "RELEASE", "BEGIN", "SET"))]))
    assert counts == [2, 1, 11]  # Two are those of the embeddings.


def test_a_deletion_stays_in_the_database_of_the_store(
    db: None, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """A router may name another database for the row. The store's own database counts."""
    asked: list[Any] = []

    class Router:
        def db_for_write(self, model: Any, **hints: Any) -> str:
            asked.append(hints.get("instance"))
            return "default"

    memory = ConversationBufferMemory(ORMStore(using="default"))
    memory.append("main", HELLO)
    settings.DATABASE_ROUTERS = [Router()]

    assert memory.delete("main") is True
    assert not any(isinstance(instance, models.Session) for instance in asked)


@pytest.mark.django_db(transaction=True)
def test_a_deletion_inside_the_callers_transaction_sees_what_another_process_added() -> None:
    """MariaDB reads the rows of the caller's transaction as they were, and checks each foreign key at once."""
    memory = ConversationBufferMemory(ORMStore())
    memory.append("main", HELLO)

    def add() -> None:
        memory.append("main", HELLO)
        memory.fork("main", 1, key="copy")

    with transaction.atomic():
        assert len(memory.history("main")) == 1
        if connection.features.has_select_for_update:
            InThread(add).result()
        assert memory.delete("main") is True
        memory.append("another", HELLO)
    assert memory.history("main") == []
    assert memory.history("another")[0].message == HELLO


@pytest.mark.django_db
def test_a_deletion_that_violates_a_constraint_leaves_the_callers_transaction_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = ConversationBufferMemory(ORMStore())
    memory.append("main", HELLO)
    delete, tries = models.Session.delete, []

    def violated(session: models.Session, using: str) -> Any:
        tries.append(session.key)
        if len(tries) < 3:
            # As the collector of Django's deletion has it: a violation breaks the transaction up to the next savepoint.
            with transaction.atomic(using, savepoint=False):
                models.Session.objects.using(using).create(key=session.key, name_hash=session.name_hash)
        return delete(session, using=using)

    monkeypatch.setattr(models.Session, "delete", violated)
    assert memory.delete("main") is True
    assert len(tries) == 3
    assert memory.history("main") == []
