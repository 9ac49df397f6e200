"""The way back, and changes of the table during a conversion."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from django_convmemory.contrib.partitions import conversion
from django_convmemory.contrib.partitions.conversion import Refused
from django_convmemory.contrib.partitions.database import PatientDatabase
from django_convmemory.contrib.partitions.tables import Table
from django_convmemory.messages import ChatMessage
from tests.partitioning.conversions import (
    Interrupted,
    after,
    check,
    convert,
    everything,
    interrupt_after,
    memory,
    names,
    rows,
)

pytestmark = [pytest.mark.release, pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("filled")]


@pytest.mark.parametrize("step", ["Created", "Every", "Copied", "Checked", "Compared"])
def test_an_abort_leaves_no_trace(step: str) -> None:
    before, stored = names(), everything()
    interrupt_after(step)
    assert names() != before
    call_command("convmemory_partition", "--abort", verbosity=0)
    assert names() == before
    assert everything() == stored
    memory().append("chat 1", ChatMessage.human("Go on."))
    memory().delete("chat 2")
    convert()
    check()


def test_an_abort_that_a_conversion_overtakes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table_of = conversion.table_of

    def overtaken(database: PatientDatabase) -> Table:
        monkeypatch.setattr(conversion, "table_of", table_of)
        convert()
        return table_of(database)

    stored = everything()
    interrupt_after("Compared")
    # The abort has seen that the tables are not swapped yet.
    monkeypatch.setattr(conversion, "table_of", overtaken)
    with pytest.raises(CommandError, match="Another process has probably taken it"):
        call_command("convmemory_partition", "--abort", verbosity=0)
    assert everything() == stored
    check()


def test_there_is_no_way_back_after_the_swap() -> None:
    interrupt_after("Swapped")
    with pytest.raises(CommandError, match=r"is partitioned already\. Only the old one, convmemory_message_old"):
        call_command("convmemory_partition", "--abort", verbosity=0)
    memory().delete("chat 2")
    convert()
    check()
    with pytest.raises(CommandError, match="is partitioned already"):
        call_command("convmemory_partition", verbosity=0)
    with pytest.raises(CommandError, match=r"No conversion has begun\. docs/guides/partitions\.md says how"):
        call_command("convmemory_partition", "--abort", verbosity=0)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("ALTER TABLE convmemory_message ADD COLUMN mood text", "its columns were altered"),
        ("CREATE INDEX later ON convmemory_message (session_id, kind)", "the index later was created or changed"),
        ("DROP INDEX convmemory_message_through", "an index was dropped"),
        ("GRANT SELECT ON convmemory_message TO PUBLIC", "its owner or the privileges on it were changed"),
        ("VACUUM FULL convmemory_message", "it was rewritten"),
    ],
)
def test_a_table_that_is_altered_meanwhile_is_not_swapped(statement: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        convert(after("Every", lambda: rows(statement)))
    conversion.abort(PatientDatabase("default", 300), lambda sentence: None)
    assert rows("SELECT relkind FROM pg_class WHERE relname = 'convmemory_message'") == [("r",)]
    memory().append("chat 1", ChatMessage.human("Go on."))


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_a_table_that_is_altered_before_the_mirroring_is_not_mirrored(is_interrupted: bool) -> None:

    def alter() -> None:
        rows("ALTER TABLE convmemory_message ADD COLUMN mood text")
        if is_interrupted:
            raise Interrupted

    with pytest.raises(Interrupted if is_interrupted else Refused):
        convert(after("Created", alter))
    with pytest.raises(Refused, match="its columns were altered"):
        convert()

    # The trigger would write the new column to the copy, which lacks it.
    memory().append("chat 1", ChatMessage.human("Go on."))


@pytest.mark.parametrize(
    ("create", "remove"),
    [
        ("CREATE VIEW later AS SELECT role FROM convmemory_message", "DROP VIEW later"),
        (
            """CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
            CREATE TRIGGER later AFTER INSERT ON convmemory_message EXECUTE FUNCTION later()""",
            "DROP FUNCTION later CASCADE",
        ),
    ],
)
def test_something_that_would_be_lost_is_refused_if_it_is_created_meanwhile(create: str, remove: str) -> None:
    with pytest.raises(Refused, match=r"cannot be converted as it is: .* later"):
        convert(after("Compared", lambda: rows(create)))
    rows(remove)
    convert()
    check()


def test_a_copy_that_is_not_right_is_not_swapped() -> None:
    statement = "UPDATE convmemory_message_new SET role = 'tool' WHERE position = 1"
    with pytest.raises(Refused, match=r"The copy is not right: the rows of .* differ"):
        convert(after("Checked", lambda: rows(statement)))
