"""Creating the row of a session: for an append, for a copy, and by itself."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import Any

from django.contrib.auth import get_user_model
from django.db import IntegrityError

from django_convmemory import models
from django_convmemory.clock import Clock
from django_convmemory.exceptions import InvalidSession
from django_convmemory.rules import creations, values
from django_convmemory.rules.creations import Creation
from django_convmemory.store import transactions
from django_convmemory.store.database import Database


class Creating(Database):
    """Creates sessions."""

    def owner_id(self, owner: Any) -> Any:
        """Return the id of a user. Raises :class:`~django_convmemory.exceptions.InvalidSession` for anything else."""
        # A row of another model may have the id of a user, and an unsaved user may have an id already.
        if not isinstance(owner, get_user_model()) or owner._state.adding or owner.pk is None:
            raise values.no_owner(owner)
        # The id of a user may be a UUID in the form of a text.
        return owner._meta.pk.to_python(owner.pk)

    def create(
        self, name: values.SessionName, *, title: str, metadata: Mapping[str, Any], creation: Creation | None = None
    ) -> models.Session:
        """Create an empty session and return it: its row, if the store has rows.

        If an earlier request has used the key of ``creation``, return the session that it created. Its ``replayed`` is
        true. Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``IdempotencyConflict``.
        """
        using = self.using
        if name.row_id is not None:
            raise values.gone(name) if self.find(name) is None else values.session_exists(name)

        public_id = uuid.uuid4()
        work = functools.partial(create, using, name, creation, public_id=public_id, title=title, metadata=metadata)
        happened = self._sessions.filter(public_id=public_id).exists

        def insert() -> models.Session:
            try:
                return transactions.run(using, work, savepoint=True, happened=happened)
            except IntegrityError as error:
                return earlier(error, using, name, creation)

        return transactions.settled(insert, name)


def create(using: str, name: values.SessionName, creation: Creation | None = None, **columns: Any) -> models.Session:
    """Insert the row of a session and return it as it was stored, with the database's time.

    Raises IntegrityError if the name is taken. If the owner is not there, raises IntegrityError or
    :class:`~django_convmemory.exceptions.InvalidSession`.
    """
    sessions = models.Session.objects.using(using)
    inserted = sessions.create(
        alias=name.alias,
        key=name.key,
        owner_id=name.owner_id,
        visitor=name.visitor,
        name_hash=name.name_hash,
        created_at=Clock(),
        updated_at=Clock(),
        creation_key=creation and creation.key_hash,
        creation_hash=creation and creation.request_hash,
        **columns,
    )
    # PostgreSQL and SQLite check the foreign key only at the commit, which may be the caller's.
    session = sessions.with_clock().select_related("owner").get(pk=inserted.pk)
    if session.owner is None and name.owner_id is not None:
        raise _missing_owner(name.owner_id, using)
    return session


def require_owner(using: str, owner_id: Any) -> None:
    """Raise :class:`~django_convmemory.exceptions.InvalidSession` if there is no such user.

    Some databases check the foreign key only at the commit.
    """
    if owner_id is not None and not get_user_model()._base_manager.using(using).filter(pk=owner_id).exists():
        raise _missing_owner(owner_id, using)


def _missing_owner(owner_id: Any, using: str) -> InvalidSession:
    return InvalidSession(f"There is no user {owner_id!r} in the database {using!r}, or not any more.")


def replayed(using: str, creation: Creation | None) -> models.Session | None:
    """Return the session that an earlier request with the same idempotency key created, or None.

    Raises :class:`~django_convmemory.exceptions.IdempotencyConflict` if that was another request.
    """
    if creation is None:
        return None
    sessions = models.Session.objects.using(using).with_clock().filter(creation_key=creation.key_hash)
    session = transactions.latest(sessions).first()
    if session is None:
        return None
    if session.creation_hash != creation.request_hash:
        raise creations.conflict()
    session.replayed = True
    return session


def earlier(error: IntegrityError, using: str, name: values.SessionName, creation: Creation | None) -> models.Session:
    """Return what :func:`replayed` returns, after ``error`` of :func:`create`.

    Raises :class:`~django_convmemory.exceptions.SessionExists`, ``InvalidSession``, ``IdempotencyConflict``, and
    ``error`` itself if nothing of this is the reason any more: then another try may succeed.
    """
    require_owner(using, name.owner_id)
    if (session := replayed(using, creation)) is not None:
        return session
    if transactions.latest(models.Session.objects.using(using)).named(name).exists():
        raise values.session_exists(name) from None
    raise error
