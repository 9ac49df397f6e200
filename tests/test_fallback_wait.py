"""When a session is tried again whose failures have reached max_attempts: as soon as the fallback may stand in."""

from __future__ import annotations

import pytest

from django_convmemory import models
from django_convmemory.chat_models.base import ChatModel
from django_convmemory.chat_models.extractive import ExtractiveChatModel
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.clock import Clock
from django_convmemory.operations.handles import ConversationMemory
from tests.folding import build, session, talk, versions

pytestmark = pytest.mark.django_db


def failing(fallback: ChatModel | None) -> ConversationMemory:
    """Return a memory whose model gives no usable answer, with a session that has been due for 20 minutes."""
    memory = build(ScriptedChatModel(["NONE"] * 9), max_attempts=2, fallback=fallback)
    talk(memory, 10)
    models.Session.objects.update(due_since=Clock(-1200))
    return memory


def test_a_session_is_tried_again_when_the_fallback_may_stand_in() -> None:
    memory = failing(ExtractiveChatModel())
    memory.compact_id(session().pk, asked=True)

    result = memory.compact_id(session().pk, asked=True)

    assert (result.outcome, session().attempts) == ("stalled", 2)
    assert result.delay == pytest.approx(600, abs=30)

    models.Session.objects.update(due_since=Clock(-1801), next_attempt_at=Clock(-1))
    assert memory.compact_id(session().pk).outcome == "published"
    assert [(version.fallback, version.stand_in) for version in versions()] == [(True, True)]


def test_without_a_fallback_it_is_tried_again_after_an_hour() -> None:
    memory = failing(fallback=None)
    memory.compact_id(session().pk, asked=True)

    assert memory.compact_id(session().pk, asked=True).delay == 3600.0
