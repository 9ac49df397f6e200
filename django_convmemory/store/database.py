"""What all parts of the store in a database share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db import router
from django.db.models import BigIntegerField, Value

from django_convmemory import models
from django_convmemory.rules.values import SessionName
from django_convmemory.store import compiled, transactions
from django_convmemory.store.compiled import Slot

T = TypeVar("T")


class Database:
    """The database of a store.

    ``using`` names it. Without it the database routers choose one. Reads go to the database that is written, so that a
    request sees its own appends.
    """

    def __init__(self, using: str | None = None) -> None:
        self._using = using

    @property
    def using(self) -> str:
        """The database that is written."""
        return self._using or router.db_for_write(models.Session)

    def find(self, name: SessionName) -> int | None:
        """Return the id of the session, or None."""
        using = self.using
        finding = _finding(using, lock=transactions.reads_earlier(using))
        for session_id, *_ in finding.read(name_hash=name.name_hash):
            # Another row may have the name since.
            return session_id if name.row_id in (None, session_id) else None
        return None

    def _run(
        self, work: Callable[[str], T], *, savepoint: bool = False, happened: Callable[[], bool] | None = None
    ) -> T:
        """Run ``work`` in a transaction on the database that is written. It takes the name of the database."""
        using = self.using
        return transactions.run(using, lambda: work(using), savepoint=savepoint, happened=happened)

    def _none(self, **conditions: Any) -> bool:
        """Whether no session meets the conditions."""
        return not models.Session.objects.using(self.using).filter(**conditions).exists()


@compiled.once
def _finding(using: str, *, lock: bool) -> compiled.Selection:
    rows = models.Session.objects.using(using).filter(name_hash=Slot("name_hash"))
    return compiled.selection((rows.select_for_update() if lock else rows).values_list("pk"))


def bigint(number: int) -> Value:
    # PostgreSQL would get a plain value as an integer of four bytes, whatever its size.
    return Value(number, BigIntegerField())
