"""The two candidates of docs/howto/evaluating.md are compared."""

from __future__ import annotations

import contextlib
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from benchmarks import evaluate
from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from tests.howto.test_pages import configure, fold
from tests.openai_server import OpenAIServer

pytestmark = pytest.mark.django_db


def test_two_candidates_are_compared(settings: Any, model: OpenAIServer, tmp_path: Path) -> None:
    configure(settings, model, "summaries", "settings.py")
    fold("default", model)
    memories["default"].append("lesson", ChatMessage.human("I mean 4712. " * 40))
    exported = tmp_path / "chats.jsonl"
    with exported.open("w") as file:
        call_command("convmemory_export", alias=["default"], stdout=file)
    models.Session.objects.all().delete()
    configure(settings, model, "evaluating", "settings.py")
    output = StringIO()
    for alias in ("plain", "strict"):
        call_command("convmemory_import", str(exported), alias=alias, stdout=StringIO(), stderr=StringIO())
    call_command("convmemory_sweep", inline=True, stdout=StringIO())
    with contextlib.redirect_stdout(output):
        evaluate.main(["--limit", "10000"])
    for alias in ("plain", "strict"):
        assert f"{alias}: 1 session with a summary, " in output.getvalue()
    prompts = {memories[alias].requests.prompt_hash[:8] for alias in ("plain", "strict")}
    assert len(prompts) == 2
    assert all(f"prompt {prompt}: kept " in output.getvalue() for prompt in prompts)
