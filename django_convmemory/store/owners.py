"""A check that the owner of a new session exists."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model

from django_convmemory.exceptions import InvalidSession


def require(using: str, owner_id: Any) -> None:
    """Raise :class:`~django_convmemory.exceptions.InvalidSession` if there is no such user.

    Some databases check the foreign key only at the commit.
    """
    if owner_id is not None and not get_user_model()._base_manager.using(using).filter(pk=owner_id).exists():
        raise missing(owner_id, using)


def missing(owner_id: Any, using: str) -> InvalidSession:
    """Return the error of naming an owner who is not there."""
    return InvalidSession(f"There is no user {owner_id!r} in the database {using!r}, or not any more.")
