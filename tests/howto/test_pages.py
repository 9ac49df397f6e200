"""The code of the how-to pages does what they say."""

from __future__ import annotations

import pathlib
import re
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.checks import run_checks
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from django.test import RequestFactory
from django.utils import timezone

from django_convmemory.api import conf, throttles
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Message, Session
from django_convmemory.testing import ScriptedMemories

FOLDER = pathlib.Path(__file__).parents[2] / "docs/howto"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}


def module_of(page: str, name: str) -> dict[str, Any]:
    """Run the code that a page has for the file ``name``."""
    [code] = [
        code for code in re.findall(r"```python\n(.*?)```", PAGES[page], re.DOTALL) if code.startswith(f"# {name}")
    ]
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # noqa: S102
    return namespace


@pytest.fixture
def ann(db: None) -> User:
    return User.objects.create_user("ann")


def test_links_lead_somewhere() -> None:
    for name, page in PAGES.items():
        for link in re.findall(r"\]\(([^)#]+)", page):
            assert (FOLDER / link).exists(), (name, link)


def test_development_without_celery(settings: Any, ann: User) -> None:
    settings.DEBUG = True
    settings.CONVMEMORY = module_of("development", "settings_development.py")["CONVMEMORY"]
    assert [one for one in run_checks() if one.id and one.id.startswith("convmemory.")] == []
    session = memories["default"].session("main", owner=ann)
    for number in range(20):
        session.append(ChatMessage.human(f"In stop {number} of our tour we see a castle and a museum of trains."))
    assert session.load().summary
    settings.DEBUG = False
    assert [one.id for one in run_checks() if one.id and one.id.startswith("convmemory.")] == ["convmemory.W002"]


def test_several_assistants(settings: Any, ann: User) -> None:
    settings.CONVMEMORY = module_of("assistants", "settings.py")["CONVMEMORY"]
    conversation = module_of("assistants", "views.py")["conversation"]
    for assistant in ("default", "tutor", "search"):
        conversation(SimpleNamespace(user=ann), assistant).append(ChatMessage.human(assistant))
    assert sorted(Session.objects.values_list("alias", "key")) == [
        (alias, "main") for alias in ("default", "search", "tutor")
    ]
    memory_of = module_of("assistants", "plans.py")["memory_of"]
    assert memory_of(ann).alias == "default"
    Group.objects.create(name="Premium").user_set.add(ann)
    assert memory_of(ann).alias == "tutor"


def test_transactions(ann: User) -> None:
    refund = module_of("transactions", "orders.py")["refund"]
    saved: list[bool] = []
    order = SimpleNamespace(pk=7, refunded=False, save=lambda: saved.append(True))
    with transaction.atomic():
        refund(order, ann, "Refunded.")
        transaction.set_rollback(True)
    assert not Message.objects.exists()
    refund(order, ann, "Refunded.")
    assert Message.objects.get().content == "Refunded."

    request = RequestFactory().post("/", {"text": "hello"})
    request.user = ann
    view = module_of("transactions", "views.py")["say"]
    assert view(request).content == b'{"position": 1}'
    assert "default" in view._non_atomic_requests


def test_tools_and_images(ann: User) -> None:
    context = module_of("tools-and-images", "tools.py")["look_up"](ann, "Which train?", "https://a.example/b.png")
    assert [message.role for message in context] == ["user", "assistant", "tool"]
    assert context.to_openai()[0]["content"][1]["image_url"]["detail"] == "low"


def test_limits(settings: Any, ann: User, convmemory: ScriptedMemories) -> None:
    rates = module_of("limits", "settings.py")["REST_FRAMEWORK"]["DEFAULT_THROTTLE_RATES"]
    scopes = {made.scope for made in vars(throttles).values() if getattr(made, "scope", None)}
    assert rates.keys() <= scopes
    for key in ("MAX_BODY_BYTES", "MAX_MESSAGES"):
        assert f"`{key}`" in PAGES["limits"]
        assert key in conf.KEYS
    convmemory.reply("They counted.")
    session = memories["default"].session("main", owner=ann)
    since = timezone.now()
    session.append(*[ChatMessage.human("word " * 20) for _ in range(12)])
    session.append(ChatMessage.ai("Fine."), usage={"prompt_tokens": 30, "completion_tokens": 2, "total_tokens": 32})
    assert convmemory.run() == ["published"]
    spent = module_of("limits", "spending.py")["spent"]
    assert spent(ann, since)["replies"] == 32
    assert spent(User.objects.create_user("berta"), since) == {"replies": 0, "summaries": 0}


@pytest.mark.only_on("postgresql")
def test_production_with_a_pool(db: None) -> None:
    """A connection that is closed goes back to the pool, and is used again."""
    here = connections["default"].settings_dict
    databases = module_of("production", "settings.py")["DATABASES"]
    databases["default"] |= {name: here[name] for name in ("NAME", "HOST", "PORT", "USER", "PASSWORD")}
    connection = ConnectionHandler(databases)["default"]
    served = set()
    try:
        for _ in range(30):
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                served.add(cursor.fetchone()[0])
            connection.close()
        assert len(served) < 30
    finally:
        connection.close_pool()
