"""The command line of ``manage.py convmemory_partition``, and what it prints."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_convmemory.contrib.partitions import conversion
from tests.partitioning.conversions import PARTITIONS, check, interrupt_after, names, talk

pytestmark = [pytest.mark.release, pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("unpartitioned")]


def test_a_dry_run_changes_nothing() -> None:
    talk()
    before = names()
    output = StringIO()
    call_command("convmemory_partition", "--dry-run", stdout=output)
    assert names() == before
    text = output.getvalue()
    assert "It would have 64 partitions, convmemory_message_p00 and so on." in text
    assert "The index convmemory_message_public_id would be copied: btree (public_id, session_id)" in text
    assert "FOREIGN KEY (session_id) REFERENCES convmemory_session(id) DEFERRABLE INITIALLY DEFERRED." in text
    interrupt_after("Created")
    output = StringIO()
    call_command("convmemory_partition", "--dry-run", stdout=output)
    assert output.getvalue() == ("A conversion to 16 partitions has begun. The next step would be to copy the rest.\n")


@pytest.mark.parametrize(
    ("tuples", "number"),
    [(-1, "an unknown number of rows, because it was never analyzed"), (7, "about 7 rows")],
)
def test_a_dry_run_says_if_the_number_of_rows_is_unknown(tuples: int, number: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pg_class SET reltuples = %s WHERE relname = 'convmemory_message'", [tuples])
    output = StringIO()
    call_command("convmemory_partition", "--dry-run", stdout=output)
    assert f"has {number}. The copy would need" in output.getvalue()


def test_an_interrupted_command_says_how_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    talk()
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "mirror", stop)
        with pytest.raises(CommandError, match=r"^Interrupted\. .*again with the same --partitions\. .*--abort\.$"):
            call_command("convmemory_partition", "--partitions", "16", stdout=StringIO())
    call_command("convmemory_partition", "--partitions", "16", stdout=StringIO())


def test_the_command_says_what_it_does() -> None:
    talk()
    output = StringIO()
    call_command("convmemory_partition", "--partitions", str(PARTITIONS), stdout=output)
    lines = output.getvalue().splitlines()
    assert lines[0] == "Created a table with 16 partitions."
    copied = [line.split() for line in lines if line.startswith("Copied ")]
    assert copied[-1][1] == copied[-1][3]
    assert lines[-1] == 'Dropped the old table. "public"."convmemory_message" has 16 partitions.'
    check()


@pytest.mark.parametrize(
    "arguments", [["--partitions", "1"], ["--partitions", "257"], ["--lock-timeout", "0"], ["--database", "nowhere"]]
)
def test_a_wrong_command_line_is_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError) as raised:
        call_command("convmemory_partition", *arguments)
    assert raised.value.returncode == 2
