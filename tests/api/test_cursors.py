"""Cursors: nobody can read, make or change one."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from hypothesis import given, strategies as st
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.api import cursors
from django_convmemory.memory import memories
from tests.api.conftest import ROOT

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@given(TEXTS)
def test_what_is_sealed_comes_back(text: str) -> None:
    assert cursors.unseal(cursors.seal(text, "a"), "a") == text


@given(TEXTS, st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_cursor_is_refused(text: str, place: int, change: int) -> None:
    cursor = cursors.seal(text, "a")
    sealed = bytearray(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    sealed[place % len(sealed)] ^= change
    with pytest.raises(ValueError, match="not ours"):
        cursors.unseal(base64.urlsafe_b64encode(sealed).decode().rstrip("="), "a")


@given(TEXTS)
def test_a_cursor_is_valid_with_its_salt_and_secret_only(text: str) -> None:
    with pytest.raises(ValueError, match="not ours"):
        cursors.unseal(cursors.seal(text, "a"), "b")


def test_a_cursor_of_another_secret_is_refused(settings: Any) -> None:
    cursor = cursors.seal('[0,false,"7"]', "a")
    settings.SECRET_KEY = "another" * 9
    with pytest.raises(ValueError, match="not ours"):
        cursors.unseal(cursor, "a")


def test_a_cursor_does_not_show_the_primary_key(api: APIClient, anna: User) -> None:
    pk = 987_654_321_987
    for number in range(3):
        memories["default"].session(str(number), owner=anna).create()
    middle = models.Session.objects.order_by("pk")[1]
    models.Session.objects.filter(pk=middle.pk).update(id=pk)
    # The page begins after this session, the last one by its primary key.
    page = api.get(f"{ROOT}?limit=1").json()
    assert page["results"][0]["key"] == "1"
    [cursor] = parse_qs(urlsplit(page["next"]).query)["cursor"]
    assert str(pk).encode() not in base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    assert str(pk) in cursors.unseal(cursor, "convmemory.session.-id")
    # Equal pages have equal cursors.
    assert api.get(f"{ROOT}?limit=1").json()["next"] == page["next"]
    assert [session["key"] for session in api.get(page["next"]).json()["results"]] == ["2"]
