"""Users, found by what they log in with."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from django_convmemory.exceptions import InvalidSession
from django_convmemory.messages import check_text


def find(name: str, using: str) -> Any:
    """Return the user who logs in as ``name``. Raises :class:`~django_convmemory.exceptions.InvalidSession`."""
    user_model = get_user_model()
    condition = {user_model.USERNAME_FIELD: check_text(name, "The owner")}
    try:
        users = list(user_model._default_manager.using(using).filter(**condition))
    except (ValidationError, ValueError):
        users = []
    # MariaDB finds "anna" for "änna". An owner must be named exactly, on every database.
    for user in users:
        if str(user.get_username()) == name:
            return user
    raise InvalidSession(
        f"There is no user {name!r:.100} in the database {using!r}. An owner is named by what the user logs in with. "
        "Correct the name."
    )
