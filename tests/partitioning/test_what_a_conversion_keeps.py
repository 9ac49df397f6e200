"""What a table has stays after a conversion, whoever owns it and in whatever schema it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_convmemory.messages import ChatMessage
from tests.partitioning.conversions import after, check, convert, interrupt_after, memory, names, rows, talk

pytestmark = [pytest.mark.release, pytest.mark.only_on("postgresql"), pytest.mark.usefixtures("unpartitioned")]

# By kind, each as a query about the table with this OID.
DESCRIPTIONS = {
    "columns": """
        SELECT attname, format_type(atttypid, atttypmod), attnotnull, attnum, attstattarget, attacl::text
        FROM pg_attribute WHERE attrelid = %s AND attnum > 0 ORDER BY 1""",
    "constraints": "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s ORDER BY 1",
    "owner": """
        SELECT pg_get_userbyid(relowner), obj_description(oid), ARRAY(
        SELECT acl::text FROM aclexplode(relacl) acl ORDER BY 1) FROM pg_class WHERE oid = %s""",
    "indexes": """
        SELECT indexrelid::regclass::text, replace(pg_get_indexdef(indexrelid), 'ON ONLY', 'ON'), indisprimary
        FROM pg_index WHERE indrelid = %s ORDER BY 1""",
}


def described() -> dict[str, list[tuple[Any, ...]]]:
    return {name: rows(query.replace("%s", "'convmemory_message'::regclass")) for name, query in DESCRIPTIONS.items()}


@pytest.fixture
def role(unpartitioned: None) -> Iterator[str]:
    name = f"{connection.settings_dict['NAME']}_role"
    rows(f'CREATE ROLE "{name}"')
    yield name
    for statement in ("REASSIGN OWNED BY {} TO CURRENT_USER", "DROP OWNED BY {}", "DROP ROLE {}"):
        rows(statement.format(f'"{name}"'))


def test_a_conversion_keeps_all_that_the_table_has(role: str) -> None:
    talk()
    options = "fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_scale_factor = 0.03"
    for statement in (
        f"ALTER TABLE convmemory_message SET ({options})",
        "ALTER TABLE convmemory_message ALTER COLUMN session_id SET STATISTICS 500",
        "ALTER INDEX convmemory_message_through SET (fillfactor = 70)",
        "ALTER INDEX convmemory_message_pkey SET (fillfactor = 75)",
        "CREATE INDEX sites_own ON convmemory_message (session_id, created_at) WHERE role = 'tool'",
        "COMMENT ON TABLE convmemory_message IS 'What people''s chats say: 100 %'",
        "GRANT SELECT ON convmemory_message TO pg_monitor WITH GRANT OPTION",
        "GRANT UPDATE (metadata) ON convmemory_message TO pg_monitor",
        "GRANT SELECT ON convmemory_message TO PUBLIC",
        f'ALTER TABLE convmemory_message OWNER TO "{role}"',
        f'GRANT CREATE ON SCHEMA public TO "{role}"',
    ):
        rows(statement)
    before = described()
    assert "pg_monitor" in str(before["columns"])
    convert()
    assert described() == before
    of_partitions = rows(
        "SELECT DISTINCT c.reloptions, toast.reloptions, pg_get_userbyid(c.relowner), c.relacl FROM pg_inherits "
        "JOIN pg_class c ON c.oid = inhrelid JOIN pg_class toast ON toast.oid = c.reltoastrelid "
        "WHERE inhparent = 'convmemory_message'::regclass"
    )
    [(storage, toast, owner, grants)] = of_partitions
    assert sorted(storage) == ["autovacuum_vacuum_scale_factor=0.02", "fillfactor=80"]
    assert toast == ["autovacuum_vacuum_scale_factor=0.03"]
    assert owner == role
    assert any(grant.startswith("=r/") for grant in grants)
    check()


def test_a_role_that_may_only_change_messages_goes_on_meanwhile(role: str) -> None:
    talk()
    rows(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{role}"')
    rows(f'GRANT UPDATE ON convmemory_session, convmemory_message TO "{role}"')

    def update() -> None:
        rows(f'SET ROLE "{role}"')
        memory().update_message("chat 6", 2, metadata={"liked": True})
        rows("RESET ROLE")

    convert(after("Every", update))
    assert memory().history("chat 6")[1].message.metadata == {"liked": True}
    check()


def give_tables(role: str) -> None:
    """Make a role the owner of all tables. It may create more."""
    rows(f'GRANT CREATE, USAGE ON SCHEMA public TO "{role}"')
    for (name,) in rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"):
        rows(f'ALTER TABLE "{name}" OWNER TO "{role}"')


@pytest.mark.parametrize("step", ["Created", "Copied", "Swapped"])
def test_the_owner_continues_what_another_role_has_begun(role: str, step: str) -> None:
    talk()
    give_tables(role)
    interrupt_after(step)
    rows(f'SET ROLE "{role}"')
    convert()
    rows("RESET ROLE")
    check()


def test_a_role_without_the_privileges_of_the_owner_is_refused(role: str) -> None:
    talk()
    give_tables(role)
    before, member = names(), f"{role}_member"
    rows(f'CREATE ROLE "{member}" NOINHERIT IN ROLE "{role}"')
    rows(f'GRANT CREATE, USAGE ON SCHEMA public TO "{member}"')
    try:
        rows(f'SET ROLE "{member}"')
        with pytest.raises(CommandError, match="does not have the privileges of that role"):
            call_command("convmemory_partition", verbosity=0)
        rows("RESET ROLE")
        assert names() == before
        interrupt_after("Created")
        rows(f'SET ROLE "{member}"')
        for arguments in ([], ["--abort"], ["--dry-run"]):
            with pytest.raises(CommandError, match=r"lacks a privilege: .* Run the command again as the owner"):
                call_command("convmemory_partition", *arguments, verbosity=0)
    finally:
        rows("RESET ROLE")
        rows(f'DROP OWNED BY "{member}"')
        rows(f'DROP ROLE "{member}"')
    convert()
    check()


def test_a_conversion_in_another_schema_of_the_search_path_is_another_one() -> None:
    talk()
    interrupt_after("Created")
    rows("CREATE SCHEMA tenant")
    rows("SET search_path = tenant")
    call_command("migrate", verbosity=0)
    rows("SET search_path = tenant, public")
    with pytest.raises(CommandError, match="No conversion has begun"):
        call_command("convmemory_partition", "--abort", verbosity=0)
    talk()
    convert()
    rows("SET search_path = public")
    convert()
    assert rows(
        "SELECT relnamespace::regnamespace::text, relkind FROM pg_class WHERE relname = 'convmemory_message' ORDER BY 1"
    ) == [("public", "p"), ("tenant", "p")]


def test_what_a_tool_writes_without_the_sites_triggers_is_mirrored() -> None:
    talk()

    def load() -> None:
        rows("SET session_replication_role = replica")
        memory().append("chat 1", ChatMessage.human("Loaded."))
        rows("RESET session_replication_role")

    convert(after("Compared", load))
    assert memory().load("chat 1")[-1].text == "Loaded."
    check()


def test_default_privileges_do_not_give_the_copy_to_others() -> None:
    rows("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC, pg_monitor")
    readable = """
        SELECT relname FROM pg_class WHERE relname LIKE 'convmemory_message%' AND relkind IN ('r', 'p')
        AND has_table_privilege('pg_monitor', oid, 'SELECT')"""
    seen: list[Any] = []
    convert(lambda sentence: seen.extend(rows(readable)))
    # The row that says how far the conversion has come is no secret.
    assert {name for (name,) in seen} <= {"convmemory_message_conversion"}


def test_a_generated_column_is_computed_in_the_copy_too() -> None:
    rows(
        "ALTER TABLE convmemory_message "
        "ADD COLUMN words tsvector GENERATED ALWAYS AS (to_tsvector('english', content)) STORED"
    )
    talk()

    def change() -> None:
        memory().append("chat 1", ChatMessage.human("A heron."))
        memory().redact("chat 6", 2)

    convert(after("Every", change))
    check()
    assert rows(
        "SELECT count(*) FILTER (WHERE words IS DISTINCT FROM to_tsvector('english', content)), "
        "count(*) FILTER (WHERE words @@ 'heron') FROM convmemory_message"
    ) == [(0, 1)]
