"""What the options of the commands choose: a database, memories, and whose sessions."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections

from django_convmemory import models
from django_convmemory.exceptions import InvalidSession
from django_convmemory.maintenance.transfer import owners
from django_convmemory.memory import memories
from django_convmemory.stores.orm import ORMStore


def add_database(parser: CommandParser) -> None:
    """Define ``--database``."""
    parser.add_argument(
        "--database",
        metavar="ALIAS",
        help="The database that holds the sessions (default: the one that the database routers choose).",
    )


def database(options: dict[str, Any]) -> str:
    """Return the database that was chosen. Raises CommandError."""
    using = options["database"]
    if using is None:
        return ORMStore().using
    if using not in connections:
        raise CommandError(f"There is no database {using!r}. Choose one of: {', '.join(connections)}.", returncode=2)
    return str(using)


def add_aliases(parser: CommandParser) -> None:
    """Define ``--alias``, which may be repeated."""
    parser.add_argument(
        "--alias",
        action="append",
        metavar="ALIAS",
        help="Only sessions of the memory with this alias. May be given more than once (default: all memories).",
    )


def aliases(options: dict[str, Any], using: str, *, gone: bool = False) -> list[str]:
    """Return the aliases that were chosen: those of the settings, or given ones, which may have gone from there.

    With ``gone`` those of the sessions are among them that were not given: sessions stay where their alias goes from
    the settings, or gets another name there.

    Raises CommandError for one of which there is nothing.
    """
    given = list(dict.fromkeys(options["alias"] or ()))
    for alias in given:
        rows = (models.Session.objects.using(using), models.Attempt.objects.using(using))
        if alias not in memories and not any(one.filter(alias=alias).exists() for one in rows):
            known = ", ".join(memories)
            raise CommandError(
                f"CONVMEMORY has no alias {alias!r}, and no stored session has it. Choose one of: {known}.",
                returncode=2,
            )
    if given:
        return given
    return list(dict.fromkeys([*memories, *(models.Session.objects.using(using).aliases() if gone else ())]))


@dataclasses.dataclass(frozen=True, slots=True)
class Whose:
    """The sessions of a user, of a visitor or of nobody: all of them, or the one with ``key``.

    Without any of these it is everybody's.
    """

    owner: Any = None
    visitor: str | None = None
    key: str | None = None

    def among(self, sessions: models.SessionQuerySet) -> models.SessionQuerySet:
        """Return those of ``sessions`` that are meant."""
        if self.owner is not None:
            sessions = sessions.filter(owner=self.owner)
        elif self.visitor is not None:
            sessions = sessions.filter(visitor=self.visitor)
        elif self.key is not None:
            sessions = sessions.filter(owner=None, visitor="")
        return sessions if self.key is None else sessions.filter(key=self.key)

    def __str__(self) -> str:
        if self.owner is not None:
            person = f"of the user {self.owner.get_username()!r}"
        elif self.visitor is not None:
            person = f"of the visitor {self.visitor!r}"
        else:
            return f"with the key {self.key!r} and without an owner or visitor"
        return f"{person} with the key {self.key!r}" if self.key is not None else person


def add_whose(parser: CommandParser) -> None:
    """Define ``--owner``, ``--visitor`` and ``--key``."""
    person = parser.add_mutually_exclusive_group()
    person.add_argument("--owner", metavar="NAME", help="Only sessions of the user who logs in with this name.")
    person.add_argument("--visitor", metavar="ID", help="Only sessions of the visitor with this id.")
    parser.add_argument(
        "--key",
        help="Only the session with this key. Without --owner and --visitor: a session that belongs to nobody.",
    )


def whose(options: dict[str, Any], using: str) -> Whose:
    """Return whose sessions were chosen. Raises CommandError."""
    owner, visitor, key = (options[name] for name in ("owner", "visitor", "key"))
    for name in ("owner", "visitor", "key"):
        if options[name] == "":
            # A variable of a script that was not set, most likely; the visitor "" is everybody who is none.
            raise CommandError(f"--{name} is empty. Give it a value, or leave it out.", returncode=2)
    if owner is not None and visitor is not None:
        raise CommandError(
            "A session belongs to an owner or to a visitor. Give --owner or --visitor, not both.", returncode=2
        )
    try:
        # call_command() takes the user as well.
        user = owners.find(owner, using) if isinstance(owner, str) else owner
    except InvalidSession as error:
        raise CommandError(str(error), returncode=2) from None
    return Whose(user, visitor, key)
