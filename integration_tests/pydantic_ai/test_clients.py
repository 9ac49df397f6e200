"""The chat views of docs/guides/pydantic-ai.md, with the clients that they are for, in node."""

from __future__ import annotations

import json
import pathlib
import subprocess
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import AsyncClient
from django.urls import path
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from django_convmemory.memory import memories
from tests import asgi_server, processes, servers
from tests.guides.test_pages import module_of
from tests.typescript import compiler

pytestmark = pytest.mark.django_db(transaction=True)

SCRIPT = pathlib.Path(__file__).with_name("clients.mjs")
TOKEN = "t" * 32


class Model:
    """Numbers its answers, and pays if it is asked to."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    async def reply(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.sent.append(len(messages))
        last = messages[-1].parts[-1]
        if getattr(last, "content", "") == "Pay.":
            yield {0: DeltaToolCall("pay", "{}", tool_call_id=f"call {len(self.sent)}")}
        else:
            yield f"Answer {len(self.sent)}."


@pytest.fixture
def model(settings: Any) -> Model:
    """The site of the page, with a tool that needs an approval."""
    model, namespace = Model(), module_of("pydantic-ai", "chat_views.py")
    namespace["MODEL"] = FunctionModel(stream_function=model.reply)

    def pay() -> str:
        return "Paid."

    namespace["guide"].tool_plain(requires_approval=True)(pay)
    urls: Any = types.ModuleType("urls")
    urls.urlpatterns = [
        path(f"{address}/<str:key>/", namespace[view])
        for address, view in (("use-chat", "use_chat"), ("ag-ui", "ag_ui"))
    ]
    settings.ROOT_URLCONF, settings.ALLOWED_HOSTS = urls, ["127.0.0.1", "testserver"]
    return model


@pytest.mark.parametrize("address", ["use-chat", "ag-ui"])
def test_a_page_reloads_regenerates_edits_and_approves(model: Model, address: str, tmp_path: pathlib.Path) -> None:
    if not servers.REQUIRED and not (compiler.PROGRAMS.parent / "ai-7").exists():
        pytest.skip("The clients are not installed. Run make test-all, which needs npm for them.")
    ann = User.objects.create_user("ann")
    (tmp_path / "node_modules").symlink_to(compiler.PROGRAMS.parent.resolve())
    (tmp_path / SCRIPT.name).write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    headers = {"Cookie": f"{asgi_server.cookie_of(ann)}; csrftoken={TOKEN}", "X-CSRFToken": TOKEN}
    with asgi_server.serving() as port:
        command = ["node", SCRIPT.name, f"http://127.0.0.1:{port}/{address}/main/", json.dumps(headers)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=processes.PATIENCE
        )
    assert done.returncode == 0, done.stderr
    one, again = ["Question 1?", "Answer 1."], ["Another question?", "Answer 4."]
    steps = dict(json.loads(done.stdout))
    assert steps.pop("approved")[:2] == again
    assert steps == {
        "asked": one,
        "asked after a reload": [*one, "Question 2?", "Answer 2."],
        "regenerated": [*one, "Question 2?", "Answer 3."],
        "edited": again,
    }
    # The page sends all of its messages, and the history is the server's.
    assert model.sent == [1, 3, 3, 1, 3, 5]
    history = memories["default"].session("main", owner=ann).history()
    assert [(row.message.role, row.message.text) for row in history[2:]] == [
        ("user", "Pay."),
        ("assistant", ""),
        ("tool", "Paid."),
        ("assistant", "Answer 6."),
    ]


@pytest.mark.parametrize("address", ["use-chat", "ag-ui"])
def test_what_the_views_refuse(model: Model, address: str) -> None:
    client, url = AsyncClient(), f"/{address}/main/"

    async def posted(**options: Any) -> int:
        response: Any = await client.post(url, **{"data": "{}", "content_type": "application/json", **options})
        return int(response.status_code)

    async def go() -> None:
        assert await posted() == 403
        await client.aforce_login(await User.objects.acreate(username="ann"))
        assert await posted() == 422
        assert await posted(content_type="text/plain") == 415
        shown: Any = await client.get(url)
        assert json.loads(shown.content) == []
        assert model.sent == []

    # pydantic-ai leaves an event loop behind, which that of an asynchronous test would replace.
    async_to_sync(go)()
