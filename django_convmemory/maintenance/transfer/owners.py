"""Users, by what they log in with."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from django_convmemory.exceptions import InvalidSession
from django_convmemory.messages import check_text


def find(name: str, using: str) -> Any:
    """Return the user who logs in as ``name``. Raises :class:`~django_convmemory.exceptions.InvalidSession`."""
    user = get_user_model()
    try:
        found = list(user._default_manager.using(using).filter(**{user.USERNAME_FIELD: check_text(name, "The owner")}))
    except (ValidationError, ValueError):
        found = []
    # For MariaDB "änna" is "anna": whose conversations are meant must not depend on that.
    for one in found:
        if str(one.get_username()) == name:
            return one
    raise InvalidSession(
        f"There is no user {name!r:.100}: an owner is named by what the user logs in with. Correct the name."
    )
