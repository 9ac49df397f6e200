"""Databases of their own for dumps of releases: making an empty one, dumping it, and loading a dump into it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from django.contrib.contenttypes.models import ContentType
from django.db import connection

from tests.chaos.servers import program

FOLDER = pathlib.Path(__file__).parent
# Dumps load on other versions of the servers too. So they have no comments, no commands for a client, no settings of
# a session, and no default collation.
_NOT_KEPT = re.compile(
    r"^(?:--|\\|SET |SELECT pg_catalog\.set_config|/\*M?!).*\n| DEFAULT CHARSET=\w+(?: COLLATE=\w+)?|^\n", re.MULTILINE
)


@contextlib.contextmanager
def empty(folder: pathlib.Path) -> Iterator[None]:
    """Create a database, make it that of ``connection`` for the block, and drop it. SQLite's is in ``folder``."""
    before = connection.settings_dict["NAME"]
    name = f"test_convmemory_released_{os.getpid()}"
    quoted = connection.ops.quote_name(name)
    is_file = connection.vendor == "sqlite"
    if not is_file:
        _execute(f"CREATE DATABASE {quoted}{' CHARACTER SET utf8mb4' if connection.vendor == 'mysql' else ''}")
    connection.close()
    connection.settings_dict["NAME"] = str(folder / f"{name}.sqlite3") if is_file else name
    ContentType.objects.clear_cache()
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before
        ContentType.objects.clear_cache()
        if not is_file:
            _execute(f"DROP DATABASE {quoted}")


def _execute(statement: str) -> None:
    with connection._nodb_cursor() as cursor:
        cursor.execute(statement)


def dumped(*options: str) -> bytes:
    """Return what the server's own program dumps. Raises :class:`tests.chaos.servers.Absent`."""
    settings = {name: str(value) for name, value in connection.settings_dict.items()}
    host = settings["HOST"]
    if connection.vendor == "postgresql":
        path = program("pg_dump", "/usr/lib/postgresql/*/bin/pg_dump")
        user, local = f"--username={settings['USER']}", f"--host={host}"
    else:
        path = program("mariadb-dump", "mysqldump")
        user, local = f"--user={settings['USER']}", f"--socket={host}"
    command = [path, user, *options]
    command += [local if host.startswith("/") else f"--host={host}"] if host else []
    command += [f"--port={settings['PORT']}"] if settings["PORT"] else []
    environment = os.environ | {"PGPASSWORD": settings["PASSWORD"], "MYSQL_PWD": settings["PASSWORD"]}
    return subprocess.run([*command, settings["NAME"]], env=environment, check=True, capture_output=True).stdout


def dump() -> str:
    """Return the database as SQL that :func:`load` executes."""
    if connection.vendor == "sqlite":
        connection.ensure_connection()
        return "".join(f"{statement}\n" for statement in connection.connection.iterdump())
    options = {
        "postgresql": ("--inserts", "--no-owner", "--no-privileges"),
        "mysql": ("--compact", "--skip-extended-insert", "--hex-blob", "--order-by-primary"),
    }
    return _NOT_KEPT.sub("", dumped(*options[connection.vendor]).decode())


def load(text: str) -> None:
    """Execute a dump in the database, which is empty."""
    with connection.constraint_checks_disabled(), connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            connection.connection.executescript(text)
            return
        cursor.execute(text)
        rest: Any = cursor
        while rest.nextset():
            pass
