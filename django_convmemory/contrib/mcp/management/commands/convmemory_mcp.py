"""Serves one user's conversations to a client of the Model Context Protocol."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_convmemory.exceptions import InvalidMessage, InvalidSession
from django_convmemory.maintenance.transfer import importing
from django_convmemory.management import choices
from django_convmemory.store.orm import ORMStore

if TYPE_CHECKING:
    from mcp.server import MCPServer


class Command(BaseCommand):
    """``manage.py convmemory_mcp --user NAME``: speaks the protocol on its standard input and output.

    A client starts the command, and ends it by closing the input. Exits with 2 if the command line is invalid, and with
    1 if the SDK is missing.
    """

    # They ask the database, in a transaction that writes, and before the output is kept apart.
    requires_system_checks = []
    help = "Let a client of the Model Context Protocol search and read the conversations of one user, over stdio."

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--user", required=True, metavar="NAME", help="The user, by login name, whose conversations are served."
        )
        parser.add_argument(
            "--alias",
            default="default",
            metavar="ALIAS",
            help="The alias of the memory that has the conversations (default: %(default)s).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until the client closes the input."""
        with _stdout_on_stderr():
            served = self._server(options)
        with contextlib.suppress(KeyboardInterrupt):
            served.run("stdio")

    def _server(self, options: dict[str, Any]) -> MCPServer[Any]:
        memory = choices.memory(options["alias"])
        try:
            owner = importing.find_owner(options["user"], ORMStore().using)
        except (InvalidMessage, InvalidSession) as error:
            raise CommandError(str(error), returncode=2) from None
        if not owner.is_active:
            raise CommandError("The user is not active. Activate the user first.", returncode=2)
        try:
            from django_convmemory.contrib.mcp.server import server
        except ImportError as error:
            raise CommandError(
                f'This needs version 2 of the package mcp: pip install "django-convmemory[mcp]". ({error})'
            ) from error
        return server(memory, owner)


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Keep what the site logs to the standard output out of the protocol, until the SDK does the same."""
    wire = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(wire, 1)
        os.close(wire)
