"""The list of millions of sessions: pages without a count, filters that use indexes alone, and a search.

The search uses indexes, too. It looks for parts of titles and keys in the newest sessions only.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.core.paginator import Page, Paginator
from django.db import router
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_convmemory import models
from django_convmemory.rules.values import SessionName


class UncountedPaginator(Paginator):  # type: ignore[type-arg]
    """Reads one row more than a page shows, to learn whether there is another page, and never counts."""

    # Whether there are rows after the page.
    more = False

    @property
    def count(self) -> int:
        """An upper bound: Django asks for the count before the page, and refuses the pages beyond it."""
        return 50_000_000

    def page(self, number: Any) -> Any:
        number = self.validate_number(number)
        start = (number - 1) * self.per_page
        rows = list(self.object_list[start : start + self.per_page + 1])
        self.more = len(rows) > self.per_page
        return Page(rows[: self.per_page], number, self)


class AliasFilter(admin.SimpleListFilter):
    """Filters by alias. The choices are the aliases that have sessions: the index gives each in one statement.

    Django's ``AllValuesFieldListFilter`` would read the alias of every session.
    """

    title = _("alias")
    parameter_name = "alias"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, str]]:
        sessions = models.Session.objects.using(router.db_for_write(models.Session))
        return ((alias, alias) for alias in sessions.aliases())

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or bool(self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        # An address may have anything. PostgreSQL refuses some texts, and SQLite others.
        return queryset.filter(alias=self.value()) if self.value() in dict(self.lookup_choices) else queryset.none()


class StateFilter(admin.SimpleListFilter):
    """Filters by state. No index finds idle sessions; those in the other states are due, which an index finds."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [choice for choice in models.SessionState.choices if choice[0] != models.SessionState.IDLE]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() not in dict(self.lookup_choices):
            return queryset
        # The index of due sessions begins with the alias.
        aliases = list(models.Session.objects.using(queryset.db).aliases())
        return queryset.filter(alias__in=aliases).due().in_state(self.value())


# The newest sessions whose titles and keys are searched, and those of them that are found.
NEWEST, MOST_FOUND = 10_000, 200
# Characters of the longest title and key. SQLite refuses to look for a part of 50,000 characters.
_LONGEST = 255


def searched(queryset: Any, text: str, owners: QuerySet[Any]) -> Any:
    """Return the sessions that ``text`` names, and the newest ones with ``text`` in the title or the key.

    ``text`` names sessions exactly. It is one of these:

    - a public id
    - a primary key
    - a visitor
    - what an owner logs in with
    - the key of a session without owner or visitor
    - an owner or a visitor, a slash, and the key, like ``anna/main``
    """
    condition = Q(visitor=text) | Q(owner__in=named(owners, text))
    if (public_id := uuid_of(text)) is not None:
        condition |= Q(public_id=public_id)
    if (pk := integer(text)) is not None:
        condition |= Q(pk=pk)
    person, _slash, key = text.partition("/")
    aliases = list(models.Session.objects.using(queryset.db).aliases())
    names = [SessionName(alias, text) for alias in aliases]
    if key:
        names += [SessionName(alias, key, owner.pk) for owner in named(owners, person) for alias in aliases]
        names += [SessionName(alias, key, visitor=person) for alias in aliases]
    condition |= Q(pk__in=_titled(queryset, text)) | Q(name_hash__in=[name.name_hash for name in names])
    return queryset.filter(condition)


def _titled(queryset: Any, text: str) -> list[int]:
    """Return the newest sessions with ``text`` in the title or the key, of the newest ``NEWEST`` ones of all.

    No index finds a part of a title. So this reads as many rows in a table of any size.
    """
    if len(text) > _LONGEST:
        return []
    newest = queryset.model.objects.using(queryset.db).order_by("-pk").values_list("pk", flat=True)
    before = newest[NEWEST : NEWEST + 1].first()
    rows = queryset.filter(Q(title__icontains=text) | Q(key__icontains=text))
    if before is not None:
        rows = rows.filter(pk__gt=before)
    return list(rows.order_by("-pk").values_list("pk", flat=True)[:MOST_FOUND])


def named(owners: QuerySet[Any], name: str) -> list[Any]:
    try:
        return list(owners.filter(**{owners.model.USERNAME_FIELD: name})[:1])
    except (ValueError, ValidationError):  # For example, users log in with a number, and the name is no number.
        return []


def uuid_of(text: str) -> uuid.UUID | None:
    """Return the UUID that ``text`` is, or None."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def integer(text: str) -> int | None:
    """Return the integer in a text of at most 18 ASCII digits, which fits in a database's BIGINT, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
