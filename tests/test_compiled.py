"""Statements that are compiled once."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models.sql.compiler import SQLCompiler, SQLUpdateCompiler

from django_convmemory import models
from django_convmemory.chat_models.scripted import ScriptedChatModel
from django_convmemory.fold.run import Outcome
from django_convmemory.memory import ConversationSummaryBufferMemory
from django_convmemory.messages import ChatMessage
from django_convmemory.scheduling import NullScheduler
from django_convmemory.store.orm import ORMStore

pytestmark = pytest.mark.django_db

MESSAGES = [ChatMessage.human("One two three. " * 20), ChatMessage.ai("Four five six. " * 20)] * 5


def build(limit: int = 300) -> ConversationSummaryBufferMemory:
    model = ScriptedChatModel(["They counted to three."] * 10)
    return ConversationSummaryBufferMemory(ORMStore(), model, limit, scheduler=NullScheduler())


def due_session(memory: ConversationSummaryBufferMemory, key: str) -> int:
    memory.append(key, *MESSAGES)
    return models.Session.objects.get(key=key).pk


# As a worker does: without a transaction around it.
@pytest.mark.django_db(transaction=True)
def test_a_later_fold_compiles_no_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = build()
    first, second = due_session(memory, "first"), due_session(memory, "second")
    texts: list[str] = []

    def noted(compiler: type[SQLCompiler]) -> None:
        as_sql = compiler.as_sql

        def note(self: Any, *args: Any, **options: Any) -> Any:
            text, params = as_sql(self, *args, **options)
            texts.append(text)
            return text, params

        monkeypatch.setattr(compiler, "as_sql", note)

    noted(SQLCompiler)
    noted(SQLUpdateCompiler)
    assert memory.compact_id(first).outcome == Outcome.PUBLISHED
    texts.clear()
    assert memory.compact_id(second).outcome == Outcome.PUBLISHED
    assert texts == []


def test_memories_with_other_limits_have_statements_of_their_own() -> None:
    session_id = due_session(build(limit=300), "s")
    models.Session.objects.update(due_since=None)
    assert build(limit=100_000).compact_id(session_id).outcome == Outcome.NOT_DUE
    assert build(limit=300).compact_id(session_id).outcome == Outcome.PUBLISHED
