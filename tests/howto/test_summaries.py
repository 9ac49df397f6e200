"""The code of summaries.md and evaluating.md: instructions, prompts of a site, and the comparison of two candidates."""

from __future__ import annotations

import contextlib
import sys
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command

from benchmarks import evaluate
from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.prompts import DefaultPrompts
from tests.howto.test_pages import module_of
from tests.openai_server import OpenAIServer

pytestmark = pytest.mark.django_db

NULL = {"BACKEND": "django_convmemory.schedulers.NullScheduler"}


def configure(settings: Any, model: OpenAIServer, page: str, name: str) -> None:
    """Use the settings of a page, with the model server of the tests and without Celery."""
    configured = module_of(page, name)["CONVMEMORY"]
    chat_model = {
        "BACKEND": "django_convmemory.chat_models.openai.OpenAIChatModel",
        "OPTIONS": {"model": "m", "api_key": "k", "base_url": model.base_url},
    }
    for alias in configured.values():
        alias["OPTIONS"] = {**alias.get("OPTIONS", {}), "max_token_limit": 100}
        alias["CHAT_MODEL"], alias["SCHEDULER"] = chat_model, NULL
    settings.CONVMEMORY = configured
    assert run_checks(tags=["convmemory"]) == []


def install(monkeypatch: pytest.MonkeyPatch, page: str, name: str, path: str) -> None:
    """Make the code of a page importable as ``path``."""
    package, _, _ = path.rpartition(".")
    for module_path, namespace in ((package, {}), (path, module_of(page, name))):
        module = ModuleType(module_path)
        vars(module).update(namespace)
        monkeypatch.setitem(sys.modules, module_path, module)


def fold(alias: str) -> None:
    memory = memories[alias]
    memory.append("lesson", ChatMessage.human("I think that x is 4711. " * 20), ChatMessage.ai("Why? " * 60))
    assert memory.compact("lesson") == "published"


def sent(model: OpenAIServer) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = model.log[-1].body["messages"]
    return messages


def test_the_instructions_are_in_the_prompt(settings: Any, model: OpenAIServer) -> None:
    configure(settings, model, "summaries", "settings.py")
    fold("default")
    system, _ = sent(model)
    assert system["content"].startswith(DefaultPrompts.system)
    assert system["content"].endswith("Never write down card numbers or passwords.")


def test_a_tutor_has_prompts_of_its_own(settings: Any, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "summaries", "prompts.py", "tutor.prompts")
    configure(settings, model, "summaries", "settings_tutor.py")
    fold("tutor")
    system, user = sent(model)
    assert system["content"].startswith("You write a tutor's notes about a pupil who learns algebra.")
    assert " lesson>\n[day] " in user["content"]
    assert "\n[user] I think that x is 4711." in user["content"]
    assert user["content"].endswith(" words.")
    shorter = memories["tutor"].requests.shorten("A long summary.", max_tokens=100).messages[1].text
    assert shorter.startswith("<quoted-")
    assert "A long summary." in shorter


def test_a_chinese_site_replaces_the_texts(settings: Any, model: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "summaries", "chinese_prompts.py", "shop.chinese_prompts")
    configure(settings, model, "summaries", "settings_chinese.py")
    fold("default")
    system, user = sent(model)
    assert system["content"].startswith("你负责维护一段对话的记忆。")
    assert "请写出新的摘要，最多 " in user["content"]
    assert str(memories["default"].load("lesson").to_openai()[0].get("content")).startswith("此前对话的摘要：")


def test_a_summary_is_made_again_after_twenty_folds(settings: Any, model: OpenAIServer) -> None:
    configure(settings, model, "summaries", "settings_reanchor.py")
    for _ in range(19):
        fold("default")
    session = models.Session.objects.get()
    assert session.rebuild_after is None
    fold("default")
    session.refresh_from_db()
    assert session.rebuild_after is not None


def test_two_candidates_are_compared(settings: Any, model: OpenAIServer, tmp_path: Path) -> None:
    configure(settings, model, "summaries", "settings.py")
    fold("default")
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
