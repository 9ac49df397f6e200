"""A process that is killed while an agent talks has stored all that was acknowledged."""

from __future__ import annotations

import json
import pathlib
import random
import time
from typing import Any, cast

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings

from django_convmemory import models
from django_convmemory.integrations.openai_agents import ConvMemorySession
from django_convmemory.maintenance import integrity
from integration_tests.openai_agents.model import unmatched
from tests import processes


@pytest.mark.django_db(transaction=True)
def test_nothing_that_was_acknowledged_is_lost(tmp_path: pathlib.Path) -> None:
    inline = {"BACKEND": "django_convmemory.schedulers.InlineScheduler"}
    memory = {**settings.CONVMEMORY["default"], "OPTIONS": {"max_token_limit": 600}, "SCHEDULER": inline}
    chooser = random.Random()
    batches: list[list[Any]] = []
    history: list[Any] = []
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        module = "integration_tests.openai_agents.talker"
        process = processes.start(folder, module, str(number), CONVMEMORY={"default": memory})
        output = folder / "output"
        enough = chooser.randint(5, 40) if number < 3 else 40
        processes.wait_until(
            lambda output=output, enough=enough: output.read_text().count("\n") >= enough,  # type: ignore[misc]
            "the agent has talked",
        )
        time.sleep(chooser.random() / 20)
        process.kill()
        process.wait()
        # If it was about to fold, a sweep would fold later. Here, the next append does.
        models.Session.objects.update(due_since=None, lease_expires_at=None, lease_token="", next_attempt_at=None)

        batches = [json.loads(line) for line in output.read_text().splitlines() if line.endswith("]")]
        acknowledged = [item for items in batches for item in items]
        before, history = history, async_to_sync(ConvMemorySession("main", view="history").get_items)()
        assert history[: len(before)] == before
        stored = history[len(before) :]
        assert stored[: len(acknowledged)] == acknowledged
        # What was stored and not acknowledged is at most the list of the last call.
        assert len(stored) - len(acknowledged) <= 5
        given = async_to_sync(ConvMemorySession("main").get_items)()
        # The calls of the last turn may be without results.
        assert not [call for call in unmatched(cast("Any", given)) if not call.startswith(f"{number}-")]
    assert models.Summary.objects.count() > 1
    assert list(integrity.check(models.Session.objects.all())) == []
