"""The statements of docs/reference/admin.md hold."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
from django.test import RequestFactory

from django_convmemory import models
from django_convmemory.admin import actions, timeline
from django_convmemory.admin.actions import WORK
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage

DOCS = pathlib.Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "reference" / "admin.md").read_text(encoding="utf-8")


def test_the_page_names_every_action_and_its_permission() -> None:
    for work in WORK.values():
        assert re.search(rf"^\| {work.label} .*`{work.permission}_session`", PAGE, re.MULTILINE), work.label
    for action in (actions.compact, actions.export):
        assert f"| {action.short_description} " in PAGE  # type: ignore[attr-defined]
    assert (timeline.MESSAGES, actions.MAX_SESSIONS) == (12, 1000)


@pytest.mark.django_db
def test_the_example_of_the_page_works(settings: Any, admin_user: Any) -> None:
    settings.CONVMEMORY = settings.CONVMEMORY | {"support": settings.CONVMEMORY["default"]}
    for alias in ("default", "support"):
        memories[alias].append("main", ChatMessage.human("hello"))
    namespace: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], namespace)  # noqa: S102
    made = namespace["support"].get_model_admin(models.Session)
    request = RequestFactory().get("/")
    request.user = admin_user
    assert [session.alias for session in made.get_queryset(request)] == ["support"]
    assert made.has_overview_permission(request)
