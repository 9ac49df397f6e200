"""What became of each message in a context."""

from __future__ import annotations

import pytest

from django_convmemory import models
from django_convmemory.maintenance import explain
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.testing import ScriptedMemories

pytestmark = pytest.mark.django_db


@pytest.fixture
def folded(convmemory: ScriptedMemories) -> models.Session:
    """A conversation whose older messages are folded into versions 1 and 2 of the summary."""
    convmemory.reply("the first words", "the second words")
    session = memories["default"].session("long")
    session.append(ChatMessage.system("Be kind."))
    for number in range(2):
        session.append(*[ChatMessage.human(f"{number} {index} " + "word " * 20) for index in range(12)])
        convmemory.run()
    return models.Session.objects.get()


@pytest.mark.parametrize("budget", [None, 60, 0])
def test_an_explanation_agrees_with_the_context(folded: models.Session, budget: int | None) -> None:
    memory = memories["default"]
    context = memory.load(folded, max_tokens=budget)
    explained = explain.explain(memory, folded, context, limit=200)
    assert [message.position for message in explained] == list(range(1, 26))
    parts = {part.position: part.name for part in context.parts if part.position}
    for message in explained:
        if message.position in parts:
            assert message.disposition == ("pinned" if parts[message.position] == "pinned" else "verbatim")
        else:
            assert message.disposition == ("folded" if message.position <= context.covered else "omitted")
    assert sum(message.disposition == "omitted" for message in explained) == context.omitted
    versions = {summary.version: summary for summary in models.Summary.objects.all()}
    for message in explained:
        if message.version is None:
            assert message.disposition != "folded"
        else:
            version = versions[message.version]
            assert version.first_position <= message.position <= version.last_position
