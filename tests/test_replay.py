"""Real conversations: appended turn by turn, folded by a worker process, and loaded meanwhile."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_convmemory import models
from django_convmemory.maintenance import integrity
from django_convmemory.messages import coerce
from django_convmemory.operations.handles import ConversationMemory
from tests import dialogues, processes, projects, workers
from tests.conversations import is_well_formed

pytestmark = [dialogues.needed, pytest.mark.django_db(transaction=True), pytest.mark.slow]

LIMIT = 1000


@pytest.fixture
def worker(broker_url: str, tmp_path: pathlib.Path, transactional_db: None) -> Iterator[workers.Worker]:
    with workers.worker_of(broker_url, tmp_path, max_token_limit=LIMIT) as started, projects.current(started.site):
        yield started


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
@pytest.mark.parametrize("conversations", [dialogues.locomo, dialogues.taubench])
def test_real_conversations_are_kept_whole_and_within_budget(
    worker: workers.Worker,
    settings: Any,
    record_property: Callable[[str, object], None],
    conversations: dialogues.Reader,
) -> None:
    memory = projects.configured(settings, worker.site, options={"max_token_limit": LIMIT})
    turns_by_key = dict(conversations())

    columns = ([(key, turn) for turn in turns] for key, turns in turns_by_key.items())
    for key, turn in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*columns))):
        receipt = memory.append(key, turn)
        if receipt.last_position % 10 == 0:
            check_context(memory, key)
    processes.wait_until(
        lambda: not models.Session.objects.due().exists() and not models.Session.objects.exclude(lease_token=""),
        "every session is folded",
    )

    tokens = 0
    for key, turns in turns_by_key.items():
        session = models.Session.objects.get(key=key)
        tokens += session.unpinned_tokens
        rows = session.convmemory_messages.order_by("position")
        assert list(rows.values_list("position", flat=True)) == list(range(1, len(turns) + 1))
        context = check_context(memory, key)
        assert not context.pending
        pinned = sum(part.tokens for part in context.parts if part.name == "pinned")
        newest = session.unpinned_tokens - session.settled_tokens
        assert context.tokens <= pinned + memory.options.summary_tokens + max(LIMIT, newest)
        assert context.omitted == 0
    assert list(integrity.check(models.Session.objects.all())) == []
    calls = len(worker.server.log)
    assert calls <= 2 * tokens / LIMIT + len(turns_by_key)
    assert models.Attempt.objects.count() == calls
    count = sum(map(len, turns_by_key.values()))
    sent = sum(memory.counter.count(coerce(message)) for call in worker.server.log for message in call.body["messages"])
    record_property(
        f"{conversations.__name__}: {count} messages, limit {LIMIT}",
        f"{calls / count * 1000:.1f} model calls and {sent / count * 1000:.0f} tokens sent to the summarizer "
        "per 1 000 messages",
    )


def check_context(memory: ConversationMemory, key: str) -> Any:
    """The context is within its budget, and a provider would accept it."""
    context = memory.load(key)
    assert context.over_budget or context.tokens <= (memory.options.max_context_tokens or 0)
    assert is_well_formed(context)
    return context
