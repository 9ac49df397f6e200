"""A long message that is folded in part is not folded yet, for the API and in the admin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.admin.page import SessionPage
from django_convmemory.conversation import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.api.conftest import row_of, url_of
from tests.chunks import Killed

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db


@pytest.fixture
def partly_folded(settings: Settings, anna: User) -> Iterator[SessionHandle]:
    """A session whose first message is folded in its first two parts."""
    options = {"max_token_limit": 100, "max_chunk_tokens": 500}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    memory = memories["default"]
    chat = memory.session("main", owner=anna)
    story = "".join(f"Order {4000 + number} was sent to customer {number}. " for number in range(200))
    chat.append(ChatMessage.human(story), ChatMessage.ai("Noted. " * 30), ChatMessage.human("Thanks."))
    killed = Killed(memory, 2, chat)
    assert models.Summary.objects.filter(building=True, part_end__isnull=False).count() == 2
    yield chat
    killed.run.close()


def test_the_context_of_the_api_has_no_part(api: APIClient, partly_folded: SessionHandle) -> None:
    answer: dict[str, Any] = api.get(url_of(partly_folded, "context/")).json()
    assert (answer["summary"], answer["covered_position"]) == (None, 0)


def test_the_list_of_versions_says_that_parts_are_not_finished(api: APIClient, partly_folded: SessionHandle) -> None:
    answer: dict[str, Any] = api.get(url_of(partly_folded, "summaries/")).json()
    assert [version["building"] for version in answer["results"]] == [True, True]


def test_the_page_of_the_admin_has_no_current_version(partly_folded: SessionHandle) -> None:
    page = session_page(partly_folded)
    assert page.session.current_version == 0
    assert (page.folds, page.context.summary) == ([], None)
    assert "folded" not in {bubble.disposition for bubble in page.timeline}


def test_after_the_last_part_the_version_of_the_whole_message_is_current(
    api: APIClient, partly_folded: SessionHandle
) -> None:
    assert partly_folded.compact() == "published"
    page = session_page(partly_folded)
    current = models.Summary.objects.get(version=page.session.current_version)
    assert current.part_end is None
    assert all(not models.Summary.objects.get(version=fold.version).part_end for fold in page.folds)
    assert api.get(url_of(partly_folded, "context/")).json()["summary"] == current.text


def session_page(chat: SessionHandle) -> SessionPage:
    return SessionPage(row_of(chat))
