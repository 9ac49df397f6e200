from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client


@pytest.fixture
def anna(db: None) -> User:
    return User.objects.create_user("anna")


@pytest.fixture
def client(db: None) -> Client:
    """The client of a member of the staff who may view sessions."""
    from tests.admin.test_sessions import staff

    return staff("view_session")
