"""What several commands share: options, the sessions that these select, and what is printed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections
from django.db.models import Count, Sum

from django_convmemory import models
from django_convmemory.exceptions import InvalidSession
from django_convmemory.maintenance.transfer import importing
from django_convmemory.memory import memories
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.store import editing, transactions
from django_convmemory.store.orm import ORMStore


def add_database(parser: CommandParser) -> None:
    """Define ``--database``."""
    parser.add_argument(
        "--database",
        metavar="ALIAS",
        help="The database that holds the sessions (default: the one that the database routers choose).",
    )


def database(options: dict[str, Any]) -> str:
    """Return the alias of the database to use. Raises CommandError if there is no such database."""
    using = options["database"]
    if using is None:
        using = ORMStore().using
    elif using not in connections:
        raise CommandError(f"There is no database {using!r}. Choose one of: {', '.join(connections)}.", returncode=2)
    return str(using)


def whole_number(options: dict[str, Any], name: str, least: int, most: int | None = None) -> int:
    """Return the option ``name``. Raises CommandError unless it is from ``least`` to ``most``, if there is a most."""
    number: int = options[name]
    if number < least or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"a whole number from {least} to {most}"
        raise CommandError(f"--{name.replace('_', '-')} is {number}. Give {limits}.", returncode=2)
    return number


def add_aliases(parser: CommandParser) -> None:
    """Define ``--alias``, which may be repeated."""
    parser.add_argument(
        "--alias",
        action="append",
        metavar="ALIAS",
        help="Only sessions of the memory with this alias. May be given more than once (default: all memories).",
    )


def aliases(options: dict[str, Any], using: str, *, removed: bool = False) -> list[str]:
    """Return the aliases of ``--alias``, or all aliases of the settings without this option.

    ``--alias`` accepts an alias that was removed from the settings, because its sessions stay in the database. With
    ``removed``, such aliases are also among those that are returned without ``--alias``.

    Raises CommandError for an alias that neither the settings nor the database have.
    """
    chosen = list(dict.fromkeys(options["alias"] or ()))
    for alias in chosen:
        tables = (models.Session.objects.using(using), models.Attempt.objects.using(using))
        if alias not in memories and not any(rows.filter(alias=alias).exists() for rows in tables):
            raise _unknown_alias(alias, ", and no stored session has it")
    if chosen:
        return chosen
    return list(dict.fromkeys([*memories, *(models.Session.objects.using(using).aliases() if removed else ())]))


def sessions(options: dict[str, Any], using: str) -> models.SessionQuerySet:
    """Return the sessions of ``--alias``, or all sessions without this option. Raises CommandError."""
    rows = models.Session.objects.using(using).all()
    return rows.filter(alias__in=aliases(options, using)) if options["alias"] else rows


def memory(alias: str) -> ConversationMemory:
    """Return the memory of ``alias``. Raises CommandError if the settings do not have the alias."""
    if alias not in memories:
        raise _unknown_alias(alias)
    return memories[alias]


def _unknown_alias(alias: str, also: str = "") -> CommandError:
    known = ", ".join(memories)
    return CommandError(f"CONVMEMORY has no alias {alias!r}{also}. Choose one of: {known}.", returncode=2)


def add_selection(parser: CommandParser) -> None:
    """Define ``--owner``, ``--visitor`` and ``--key``."""
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--owner", metavar="NAME", help="Only sessions of the user who logs in with this name.")
    scope.add_argument("--visitor", metavar="ID", help="Only sessions of the visitor with this id.")
    parser.add_argument(
        "--key",
        help="Only the session with this key. Without --owner and --visitor: a session that belongs to nobody.",
    )


def selection(options: dict[str, Any], using: str) -> tuple[dict[str, Any], str]:
    """Return the conditions on sessions that ``--owner``, ``--visitor`` and ``--key`` make, and the same as a text.

    An owner or a visitor alone selects all of their sessions, and together with a key one session of each alias. A key
    alone selects a session that belongs to nobody. Without any of the three, there are no conditions.

    Raises CommandError for invalid options and an unknown user.
    """
    owner, visitor, key = (options[name] for name in ("owner", "visitor", "key"))
    for name in ("owner", "visitor", "key"):
        if options[name] == "":
            # Most likely a variable that a script did not set. The column ``visitor`` of all other sessions is "".
            raise CommandError(f"--{name} is empty. Give it a value, or leave it out.", returncode=2)
    if owner is not None and visitor is not None:
        raise CommandError(
            "A session belongs to an owner or to a visitor. Give --owner or --visitor, not both.", returncode=2
        )
    try:
        # call_command() also accepts a user object.
        user = importing.find_owner(owner, using) if isinstance(owner, str) else owner
    except InvalidSession as error:
        raise CommandError(str(error), returncode=2) from None
    conditions: dict[str, Any] = {}
    text = ""
    if user is not None:
        conditions["owner"] = user
        text = f"of the user {user.get_username()!r} "
    elif visitor is not None:
        conditions["visitor"] = visitor
        text = f"of the visitor {visitor!r} "
    elif key is not None:
        conditions = {"owner": None, "visitor": ""}
    if key is not None:
        conditions["key"] = key
        text += f"with the key {key!r}" + ("" if text else " and without an owner or visitor")
    return conditions, text.rstrip()


def totals(sessions: models.SessionQuerySet) -> Counter[str]:
    """Count ``sessions`` and their messages. The rows of the sessions have the counts; no message is read."""
    return Counter(sessions.aggregate(sessions=Count("pk"), messages=Sum("last_position", default=0)))


def delete(sessions: models.SessionQuerySet) -> Counter[str]:
    """Delete ``sessions`` and everything in them in one transaction. Return their :func:`totals`."""

    def delete_locked() -> Counter[str]:
        deleted: Counter[str] = Counter()
        for locked in editing.locked(sessions):
            deleted += totals(locked)
            locked.delete()
        return deleted

    return transactions.run(sessions.db, delete_locked, savepoint=True)


# What is printed.


@contextlib.contextmanager
def interruptible(how_to_continue: str = "To continue, run the command again.") -> Iterator[None]:
    """Turn an interrupt with Ctrl-C into a CommandError that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(f"Interrupted. {how_to_continue}") from None


def counted(number: int, noun: str) -> str:
    """Return the number with its noun: ``1 session``, ``2 sessions``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def with_messages(numbers: Counter[str]) -> str:
    """Return :func:`totals` as a text: ``1 session with 2 messages``."""
    return f"{counted(numbers['sessions'], 'session')} with {counted(numbers['messages'], 'message')}"


def printable(text: str) -> str:
    """Return ``text`` with "?" for characters that could move a terminal's cursor or start a forged line."""
    return "".join(character if character.isprintable() else "?" for character in text)
