"""A PostgreSQL cluster with streaming replicas, for tests."""

from __future__ import annotations

import pathlib
from typing import Any

import psycopg

from tests.chaos import servers


class Standby(servers.PostgreSQL):
    """A streaming replica of ``primary``."""

    def __init__(self, folder: pathlib.Path, primary: servers.PostgreSQL) -> None:
        self.primary = primary
        super().__init__(folder)

    def prepare(self) -> None:
        programs = pathlib.Path(servers.program("/usr/lib/postgresql/*/bin/pg_basebackup", "pg_basebackup"))
        self._programs = programs.parent
        address = f"host=127.0.0.1 port={self.primary.port} user=postgres"
        self.run(str(programs), "--pgdata=data", "--write-recovery-conf", "--checkpoint=fast", f"--dbname={address}")

    def promote(self) -> None:
        """Make it a primary."""
        ask(self, "SELECT pg_promote()")


def ask(server: servers.PostgreSQL, statement: str) -> Any:
    """Return the value that a statement returns."""
    address = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
    with psycopg.connect(address, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        return row and row[0]


def catch_up(primary: servers.PostgreSQL, replica: servers.PostgreSQL) -> None:
    """Wait until the replica has replayed everything that is written now."""
    end = ask(primary, "SELECT pg_current_wal_lsn()")
    servers.until(lambda: ask(replica, f"SELECT pg_last_wal_replay_lsn() >= '{end}'"), "the replica catches up")


def stop_replay(replica: servers.PostgreSQL) -> None:
    """Let the replica lag from now on."""
    ask(replica, "SELECT pg_wal_replay_pause()")
    servers.until(lambda: ask(replica, "SELECT pg_get_wal_replay_pause_state() = 'paused'"), "the replay stops")


def go_on(replica: servers.PostgreSQL) -> None:
    ask(replica, "SELECT pg_wal_replay_resume()")
