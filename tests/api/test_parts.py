"""A long message that is folded in part is not folded yet, for the API and in the admin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.admin.page import SessionPage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.api.conftest import row_of, url_of
from tests.chunks import Killed

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.django_db


def test_a_message_that_is_folded_in_part_is_not_folded_yet(settings: Settings, anna: User, api: APIClient) -> None:
    options = {"max_token_limit": 100, "max_chunk_tokens": 500}
    settings.CONVMEMORY = {"default": {**settings.CONVMEMORY["default"], "OPTIONS": options}}
    memory = memories["default"]
    chat = memory.session("main", owner=anna)
    story = "".join(f"Order {4000 + number} was sent to customer {number}. " for number in range(200))
    chat.append(ChatMessage.human(story), ChatMessage.ai("Noted. " * 30), ChatMessage.human("Thanks."))
    killed = Killed(memory, 2, chat)
    assert models.Summary.objects.filter(building=True, part_end__isnull=False).count() == 2

    context = api.get(url_of(chat, "context/")).json()
    assert (context["summary"], context["covered_position"]) == (None, 0)
    versions = api.get(url_of(chat, "summaries/")).json()["results"]
    assert [version["building"] for version in versions] == [True, True]
    page = SessionPage(row_of(chat))
    assert (page.session.current_version, page.folds, page.context.summary) == (0, [], None)
    assert "folded" not in {bubble.disposition for bubble in page.timeline}
    killed.steps.close()

    # After the last part, the version of the whole message is current.
    assert chat.compact() == "published"
    page = SessionPage(row_of(chat))
    current = models.Summary.objects.get(version=page.session.current_version)
    assert current.part_end is None
    assert all(not models.Summary.objects.get(version=fold.version).part_end for fold in page.folds)
    assert api.get(url_of(chat, "context/")).json()["summary"] == current.text
