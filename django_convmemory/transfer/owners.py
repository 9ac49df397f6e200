"""Users, by what they log in with."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import MultipleObjectsReturned, ObjectDoesNotExist, ValidationError

from django_convmemory.exceptions import InvalidSession
from django_convmemory.messages import check_text


def find(name: str, using: str) -> Any:
    """Return the user who logs in as ``name``. Raises :class:`~django_convmemory.exceptions.InvalidSession`."""
    users: Any = get_user_model()._default_manager.db_manager(using)
    try:
        return users.get_by_natural_key(check_text(name, "The owner"))
    except (ObjectDoesNotExist, MultipleObjectsReturned, ValidationError, ValueError):
        raise InvalidSession(
            f"There is no user {name!r:.100}: an owner is named by what the user logs in with. Correct the name."
        ) from None
