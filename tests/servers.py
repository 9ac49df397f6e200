"""The database and broker servers that the tests use: their addresses, and whether they are available.

Each server has a URL in the environment. The defaults are those of servers installed on this machine. With
``CONVMEMORY_TEST_SERVICES=all`` in the environment a missing server is a failure, not a skip.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

POSTGRESQL = os.environ.get("CONVMEMORY_TEST_POSTGRESQL", "postgresql://postgres@127.0.0.1:5432")
MARIADB = os.environ.get("CONVMEMORY_TEST_MARIADB", "mysql://root@127.0.0.1:3306")
REDIS = os.environ.get("CONVMEMORY_TEST_REDIS", "redis://127.0.0.1:6379/")
RABBITMQ = os.environ.get("CONVMEMORY_TEST_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672//")

BROKERS = {"redis": REDIS, "rabbitmq": RABBITMQ}
ALL = ("postgresql", "mariadb", *BROKERS)

# The names of those found absent, from tests/run.py to the runs of pytest that it starts.
ABSENT = "CONVMEMORY_TEST_ABSENT"

REQUIRED = os.environ.get("CONVMEMORY_TEST_SERVICES") == "all"

TIMEOUT = 3


def django_database(url: str) -> dict[str, Any]:
    """Return the entry of ``DATABASES`` for ``url``, without its engine.

    A percent-encoded path instead of the host is the folder, or on MariaDB the file, of a local socket.
    """
    parts = urlsplit(url)
    return {
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
    }


def why_absent(name: str) -> str | None:
    """Return why the server ``name`` cannot be used, as one line, or None if it can."""
    try:
        if name == "postgresql":
            _connect_postgresql(POSTGRESQL)
        elif name == "mariadb":
            _connect_mariadb(urlsplit(MARIADB))
        else:
            _connect_broker(BROKERS[name])
    except Exception as error:  # noqa: BLE001  each client has its own errors; any of them means that it is missing
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _connect_postgresql(url: str) -> None:
    import psycopg

    psycopg.connect(url, dbname="postgres", connect_timeout=TIMEOUT).close()


def _connect_mariadb(parts: SplitResult) -> None:
    import MySQLdb

    host = unquote(parts.hostname or "")
    MySQLdb.connect(
        **{"unix_socket" if host.startswith("/") else "host": host},
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        connect_timeout=TIMEOUT,
    ).close()


def _connect_broker(url: str) -> None:
    import kombu

    with kombu.Connection(url, connect_timeout=TIMEOUT) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=TIMEOUT)
