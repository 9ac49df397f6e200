"""Every Python block of README.md works. Its shell commands are tested in test_new_site.py."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import pathlib
import re
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.core import checks
from django.db import connections
from django.test import AsyncRequestFactory, RequestFactory, override_settings

from django_convmemory import conf, models
from django_convmemory.core import options
from tests.openai_server import OpenAIServer

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code, with its section, language, text, and line in the file."""

    section: str
    language: str
    code: str
    line: int

    @property
    def file(self) -> str:
        """The file that the block names, or ""."""
        first = self.code.partition("\n")[0]
        return first.removeprefix("# ") if re.fullmatch(r"# \w+\.py", first) else ""


def read_blocks(text: str) -> list[Block]:
    blocks, section = [], ""
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("```"):
            code = [inner for _, inner in itertools.takewhile(lambda one: one[1] != "```", lines)]
            blocks.append(Block(section, line[3:], "\n".join(code), number))
    return blocks


BLOCKS = read_blocks(README)


def of(language: str, file: str | None = None) -> pytest.MarkDecorator:
    chosen = [block for block in BLOCKS if block.language == language and file in (None, block.file)]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: f"line {block.line}")


def test_every_block_has_a_language_and_a_file_that_are_tested() -> None:
    assert {block.language for block in BLOCKS} == {"python", "sh", "text"}
    assert {block.file for block in BLOCKS if block.language == "python"} == {
        "",
        "settings.py",
        "views.py",
        "async_views.py",
    }


@of("python", "")
def test_python(block: Block) -> None:
    earlier = [other for other in BLOCKS if other.section == block.section and other.line <= block.line]
    namespace: dict[str, Any] = {}
    for one in earlier:
        if one.language == "python" and not one.file:
            # Blank lines, so that the line numbers of a traceback are those of the file.
            exec(compile("\n" * one.line + one.code, ROOT / "README.md", "exec"), namespace)  # noqa: S102


@of("python", "settings.py")
def test_settings(block: Block) -> None:
    namespace: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(block.code, namespace)  # noqa: S102

    assert namespace["INSTALLED_APPS"] == ["django_convmemory"]
    with override_settings(CONVMEMORY=namespace["CONVMEMORY"]):
        assert checks.run_checks(tags=["convmemory"]) == []
    from django_convmemory import tasks

    assert {entry["task"] for entry in namespace["CELERY_BEAT_SCHEDULE"].values()} == {tasks.sweep.name}


@of("python", "views.py")
@pytest.mark.django_db
def test_view(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    request = RequestFactory().post("/", {"text": "What is Rust?"})
    request.user = User.objects.create_user("ada")
    namespace: dict[str, Any] = {}

    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        exec(block.code, namespace)  # noqa: S102
        with namespace["client"]():
            response = namespace["chat"](request)

    assert response.status_code == 200
    assert [message["role"] for message in server.log[0].body["messages"]] == ["system", "user"]
    [session] = models.Session.objects.filter(owner=request.user)
    assert list(session.convmemory_messages.order_by("position").values_list("role", flat=True)) == [
        "user",
        "assistant",
    ]


@of("python", "async_views.py")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("logged_in", [True, False])
def test_async_view(block: Block, logged_in: bool) -> None:
    namespace: dict[str, Any] = {}
    exec(block.code, namespace)  # noqa: S102
    ada = User.objects.create_user("ada")
    sessions = SessionStore()

    def say() -> Any:
        request = AsyncRequestFactory().post("/", {"text": "Hello!"}, headers={"Idempotency-Key": "once"})
        request.session = sessions
        request.auser = lambda: found(ada if logged_in else AnonymousUser())
        return asyncio.run(answer(request))

    async def answer(request: Any) -> Any:
        try:
            return await namespace["say"](request)
        finally:
            await sync_to_async(connections.close_all)()  # of the thread that did the work

    async def found(user: Any) -> Any:
        return user

    assert [json.loads(say().content)["position"] for _ in range(2)] == [1, 1]
    session = models.Session.objects.get()
    assert (session.owner, bool(session.visitor)) == ((ada, False) if logged_in else (None, True))


def table(section: str, number: int) -> dict[str, str]:
    """Return the first two columns of a section's table, without backticks."""
    text = README.partition(f"## {section}\n")[2].partition("\n## ")[0]
    tables = [
        list(rows) for is_row, rows in itertools.groupby(text.splitlines(), lambda line: line[:1] == "|") if is_row
    ]
    cells = [[cell.strip().strip("`") for cell in row.split("|")] for row in tables[number][2:]]
    return {cell[1]: cell[2] for cell in cells}


def test_the_keys_of_the_setting_are_in_its_table() -> None:
    def default(value: Any) -> str:
        return value["BACKEND"] if isinstance(value, dict) and value else str(value)

    assert table("Settings", 0) == {key: default(value) for key, value in conf.DEFAULTS.items()}


def test_the_options_of_a_memory_are_in_their_table() -> None:
    own = {field.name: field.default for field in dataclasses.fields(options.Options)}

    assert table("Settings", 1) == {
        name: f'"{value}"' if isinstance(value, str) else str(value)
        for name, value in {**conf.STRATEGY_DEFAULTS, **own}.items()
    }


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_to_files(target: str) -> None:
    assert (ROOT / target).exists()
