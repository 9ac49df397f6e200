"""Databases of their own for the tests of partitions, because a conversion changes the tables for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django import DjangoDbBlocker

from tests.partitioning.conversions import talk


@contextmanager
def created(name: str, *, template: str = "template0") -> Iterator[None]:
    """Create a database, make it that of ``connection`` for the block, and drop it."""
    before = connection.settings_dict["NAME"]
    execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    connection.settings_dict["NAME"] = name
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before
        execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def execute(statement: str) -> None:
    """Execute a statement that must not run in one of the tests' databases."""
    connection.close()  # It would keep its database from being a template.
    with connection._nodb_cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture(scope="session")
def template(worker_id: str, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """The name of a database with empty tables, without partitions."""
    name = f"{connection.settings_dict['TEST']['NAME']}_{worker_id}_template"
    with django_db_blocker.unblock(), created(name):
        call_command("migrate", verbosity=0)
        connection.close()
        yield name


@pytest.fixture
def unpartitioned(template: str, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A database of the test's own, with empty tables."""
    with django_db_blocker.unblock(), created(template.replace("_template", "_parts"), template=template):
        yield


@pytest.fixture
def filled(unpartitioned: None) -> None:
    """A database of the test's own, with sessions in a table without partitions."""
    talk()


@pytest.fixture
def partitioned(unpartitioned: None) -> None:
    """A database of the test's own, with empty tables and 64 partitions of messages."""
    call_command("convmemory_partition", verbosity=0)
