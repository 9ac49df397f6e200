from __future__ import annotations

import pytest
from django.contrib.auth.models import User


@pytest.fixture
def anna(db: None) -> User:
    return User.objects.create_user("anna")
