"""Every Python block of README.md works. Its shell commands are tested in test_new_site.py."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import pathlib
import re
import tomllib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from django.contrib.auth.models import User
from django.core import checks
from django.test import RequestFactory, override_settings

from django_convmemory import models
from django_convmemory.memory import memories
from tests.openai_server import Behaviour, OpenAIServer

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]


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
            code = [inner for _, inner in itertools.takewhile(lambda numbered: numbered[1] != "```", lines)]
            blocks.append(Block(section, line[3:], "\n".join(code), number))
    return blocks


BLOCKS = read_blocks(README)


def module_of(name: str) -> dict[str, Any]:
    """Run the block of the file ``name``."""
    [block] = [block for block in BLOCKS if block.language == "python" and block.file == name]
    namespace: dict[str, Any] = {"INSTALLED_APPS": [], "__name__": name.removesuffix(".py")}
    # The lines of a traceback are those of the file.
    exec(compile("\n" * block.line + block.code, ROOT / "README.md", "exec"), namespace)  # noqa: S102
    return namespace


def test_every_block_has_a_language_and_a_file_that_are_tested() -> None:
    assert {block.language for block in BLOCKS} == {"python", "sh"}
    assert [block.file for block in BLOCKS if block.language == "python"] == ["settings.py", "views.py"]


def test_settings() -> None:
    namespace = module_of("settings.py")

    assert namespace["INSTALLED_APPS"] == ["django_convmemory"]
    with override_settings(CONVMEMORY=namespace["CONVMEMORY"]):
        assert checks.run_checks(tags=["convmemory"]) == []
    from django_convmemory import tasks

    assert {entry["task"] for entry in namespace["CELERY_BEAT_SCHEDULE"].values()} == {tasks.sweep.name}


class Site:
    """The view of the README, a user who is logged in, and the server of the model."""

    def __init__(self, server: OpenAIServer, namespace: dict[str, Any], user: User) -> None:
        self.server = server
        self.namespace = namespace
        self.user = user

    def post(self, text: str, key: str = "key-1") -> tuple[int, dict[str, str]]:
        """Send a text as a page does, and return the status and the answer."""
        request = RequestFactory().post("/chat/", {"text": text}, headers={"Idempotency-Key": key} if key else {})
        request.user = self.user
        response = self.namespace["chat"](request)
        return response.status_code, json.loads(response.content)

    def stored(self) -> list[tuple[str, str]]:
        rows = memories["default"].session("main", owner=self.user).history()
        return [(row.message.role, row.message.text) for row in rows]


@pytest.fixture
def site(db: None, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    server.default = Behaviour(text="A language.")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    namespace = module_of("views.py")
    with namespace["client"]():
        yield Site(server, namespace, User.objects.create_user("ada"))


CONVERSATION = [("user", "What is Rust?"), ("assistant", "A language.")]


def test_the_view_stores_a_question_and_its_reply(site: Site) -> None:
    assert site.post(" What is Rust? ") == (200, {"text": "A language."})

    assert [message["role"] for message in site.server.log[0].body["messages"]] == ["system", "user"]
    assert site.stored() == CONVERSATION
    assert models.Message.objects.get(role="assistant").usage["total_tokens"] > 0


def test_a_retry_finds_the_reply_to_its_own_question(site: Site) -> None:
    site.post("What is Rust?")
    site.server.default = Behaviour(text="A set of rules.")
    site.post("What is ownership?", key="key-2")

    assert site.post("What is Rust?") == (200, {"text": "A language."})
    assert site.post("What is ownership?", key="key-2") == (200, {"text": "A set of rules."})
    assert len(site.server.log) == 2


def test_a_late_retry_finds_the_reply_too(site: Site) -> None:
    site.server.default = Behaviour("unauthorized")
    site.post("What is Rust?")
    turns = [{"role": role, "content": "And then?"} for role in ("user", "assistant") * 60]
    memories["default"].session("main", owner=User.objects.get()).append(*turns)
    site.server.default = Behaviour(text="A language.")

    assert [site.post("What is Rust?") for _ in range(2)] == [(200, {"text": "A language."})] * 2
    assert len(site.server.log) == 2


FAILURES = {
    "a wrong key": Behaviour("unauthorized"),
    "a body that is not JSON": Behaviour("malformed"),
    "a page instead of an answer": Behaviour("html"),
    "no choice": Behaviour("raw", body={"id": "c", "object": "chat.completion", "choices": []}),
    "an empty reply": Behaviour(text=""),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_after_a_failure_of_the_model_a_retry_is_answered(site: Site, failure: Behaviour) -> None:
    site.server.default = failure
    status, answer = site.post("What is Rust?")

    assert (status, set(answer)) == (503, {"error"})
    assert site.stored() == CONVERSATION[:1]

    site.server.default = Behaviour(text="A language.")
    assert site.post("What is Rust?") == (200, {"text": "A language."})
    assert site.stored() == CONVERSATION


@pytest.mark.parametrize(("text", "key"), [("", "key-1"), ("  \n", "key-1"), ("What is Rust?", "")])
def test_a_request_without_text_or_key_is_refused(site: Site, text: str, key: str) -> None:
    status, answer = site.post(text, key)

    assert (status, set(answer)) == (400, {"error"})
    assert site.stored() == []
    assert not site.server.log


def test_a_key_is_not_taken_for_another_text(site: Site) -> None:
    site.post("What is Rust?")

    status, answer = site.post("What is ownership?")

    assert status == 400
    assert "idempotency key" in answer["error"]
    assert site.stored() == CONVERSATION


def test_of_two_requests_at_the_same_time_one_reply_is_stored(site: Site) -> None:
    replies = ["The second request's.", "The first request's."]
    answers = []

    def create(**arguments: Any) -> Any:
        if len(replies) == 2:  # The first request waits for its model: the page sends the second one.
            reply = replies.pop()
            answers.append(site.post("What is Rust?"))
        else:
            reply = replies.pop()
        message = SimpleNamespace(model_dump=lambda **_: {"role": "assistant", "content": reply})
        return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage=None)

    completions = SimpleNamespace(create=create)
    site.namespace["client"] = lambda: SimpleNamespace(chat=SimpleNamespace(completions=completions))
    answers.append(site.post("What is Rust?"))

    assert answers == [(200, {"text": "The second request's."})] * 2
    assert site.stored() == [("user", "What is Rust?"), ("assistant", "The second request's.")]


def test_the_client_gives_up_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with contextlib.closing(module_of("views.py")["client"]()) as client:
        assert isinstance(client, openai.OpenAI)
        assert (client.timeout, client.max_retries) == (60, 0)


# A package index shows the README without the repository beside it.


def test_the_project_names_its_home() -> None:
    assert set(URLS) == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    for name in ("Documentation", "Changelog"):
        assert (ROOT / URLS[name].removeprefix(f"{URLS['Source']}/blob/main/")).is_file()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]*)", README))))
def test_links_lead_to_files_of_the_repository(target: str) -> None:
    raw = URLS["Source"].replace("https://github.com/", "https://raw.githubusercontent.com/")
    base = f"{raw}/main/" if target.endswith(".png") else f"{URLS['Source']}/blob/main/"
    assert target.startswith(base)
    assert (ROOT / target.removeprefix(base)).is_file()
