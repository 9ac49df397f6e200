"""Lists over millions of rows: pages that are never counted, and filters and searches by indexes alone."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_convmemory import models
from django_convmemory.core.values import SessionName

if TYPE_CHECKING:
    _Paginator = Paginator[Any]
else:
    _Paginator = Paginator


class UncountedPaginator(_Paginator):
    """Knows of the page at hand, those before it, and whether there is another. ``page_number`` counts from 1."""

    def __init__(self, object_list: Any, per_page: int, *, page_number: int = 1, **options: Any) -> None:
        super().__init__(object_list, per_page, **options)
        self.page_number = max(1, page_number)
        self._rows: list[Any] | None = None

    @property
    def rows(self) -> list[Any]:
        """The rows of the page, and one more where there is another page."""
        if self._rows is None:
            first = (self.page_number - 1) * self.per_page
            self._rows = list(self.object_list[first : first + self.per_page + 1])
        return self._rows

    @property
    def more(self) -> bool:
        """Whether there is another page."""
        return len(self.rows) > self.per_page

    @property
    def newer(self) -> int:
        """The number of the page before this one."""
        return self.page_number - 1

    @property
    def older(self) -> int:
        """The number of the page after this one."""
        return self.page_number + 1

    @property
    def count(self) -> int:
        """As many rows as are known to be there."""
        return (self.page_number - 1) * self.per_page + len(self.rows)

    def page(self, number: Any) -> Any:
        return Page(self.rows[: self.per_page], self.page_number, self)


class AliasFilter(admin.SimpleListFilter):
    """By memory: those that have sessions, found by the index, a step each."""

    title = _("memory")
    parameter_name = "alias"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, str]]:
        return ((alias, alias) for alias in models.Session.objects.aliases())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(alias=self.value()) if self.value() else queryset


class StateFilter(admin.SimpleListFilter):
    """By what compaction makes of a session. All but idle ones are due, and found by the index of those."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [choice for choice in models.SessionState.choices if choice[0] != models.SessionState.IDLE]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Any]:
        if self.value() not in dict(self.lookup_choices):
            found: QuerySet[Any] = queryset
            return found
        due: QuerySet[Any] = queryset.filter(alias__in=list(models.Session.objects.aliases())).due()
        return due.in_state(self.value())  # type: ignore[attr-defined,no-any-return]


def searched(queryset: Any, text: str, owners: QuerySet[Any]) -> Any:
    """Return the sessions that ``text`` names exactly, by indexes alone.

    It may be a public id, a primary key as the logs have it, what an owner logs in with, a visitor, a key of nobody's
    session, or the key of one's after what they log in with or their id: ``anna/main``.
    """
    wanted = Q(visitor=text)
    with contextlib.suppress(ValueError):
        wanted |= Q(public_id=uuid.UUID(text))
    if text.isascii() and text.isdecimal() and len(text) < 19:
        wanted |= Q(pk=int(text))
    name, _slash, key = text.partition("/")
    wanted |= Q(owner__in=_named(owners, text))
    aliases = list(queryset.model.objects.aliases())
    names = [SessionName(alias, text) for alias in aliases]
    if key:
        names += [SessionName(alias, key, owner.pk) for owner in _named(owners, name) for alias in aliases]
        names += [SessionName(alias, key, visitor=name) for alias in aliases]
    return queryset.filter(wanted | Q(name_hash__in=[name.name_hash for name in names]))


def _named(owners: QuerySet[Any], name: str) -> list[Any]:
    try:
        return list(owners.filter(**{owners.model.USERNAME_FIELD: name})[:1])
    except (ValueError, ValidationError):  # What users log in with is a number, say, and this is none.
        return []
