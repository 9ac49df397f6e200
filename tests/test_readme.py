"""Every Python block of README.md works. Its shell commands are tested in test_new_site.py."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import itertools
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from django.contrib.auth.models import User
from django.core import checks
from django.http import HttpResponseBase, JsonResponse
from django.test import RequestFactory, override_settings
from pydantic import ValidationError

from django_convmemory import models
from django_convmemory.memory import memories
from django_convmemory.operations.turns import Turn
from django_convmemory.rules.options import Options
from scripts import long_description
from tests import projects
from tests.openai_server import Behaviour, OpenAIServer

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
            code = [inner for _, inner in itertools.takewhile(lambda numbered: numbered[1] != "```", lines)]
            blocks.append(Block(section, line[3:], "\n".join(code), number))
    return blocks


BLOCKS = read_blocks(README)


[VIEW] = [block.code for block in BLOCKS if block.file == "views.py"]


def streaming_view() -> str:
    """Return the view in its streaming form, as the README says in a sentence."""
    [created] = re.findall(r"`(\S*openai\.\S+?)\(…, stream=True\)`", README)
    [returned] = re.findall(r"`session\.(\w+)\(…\)\.response\(request\)`", README)
    view = re.sub(r"reply = (.*)\)\n.*", r"return \1, stream=True)", VIEW, count=1)
    assert f"return {created}(" in view
    answered = r"JsonResponse\({\"text\": session\.answer(\(.*\))\.text}\)"
    return re.sub(answered, rf"session.{returned}\1.response(request)", view)


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
        assert [message.id for message in checks.run_checks(tags=["convmemory"])] == ["convmemory.W013"]
        with override_settings(DEBUG=True):
            assert checks.run_checks(tags=["convmemory"]) == []


@pytest.mark.django_db
def test_the_settings_need_no_broker(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    settings.DEBUG, settings.CONVMEMORY = True, module_of("settings.py")["CONVMEMORY"]
    with projects.project(""):
        assert "convmemory.W008" not in {message.id for message in checks.run_checks(databases=["default"])}
        default = {key: value for key, value in settings.CONVMEMORY["default"].items() if key != "SCHEDULER"}
        settings.CONVMEMORY = {"default": default}
        assert "convmemory.W008" in {message.id for message in checks.run_checks(databases=["default"])}


class Site:
    """The view of the README, a user who is logged in, and the server of the model."""

    def __init__(self, server: OpenAIServer, namespace: dict[str, Any], user: User) -> None:
        self.server = server
        self.namespace = namespace
        self.user = user
        self.session = memories["default"].session("main", owner=user)

    def send(self, text: str, key: str = "key-1") -> HttpResponseBase:
        """Send a text as a page does."""
        request = RequestFactory().post("/chat/", {"text": text}, headers={"Idempotency-Key": key} if key else {})
        request.user = self.user
        response: HttpResponseBase = self.namespace["chat"](request)
        return response

    def post(self, text: str, key: str = "key-1") -> tuple[int, dict[str, str]]:
        """Send a text, and return the status and the answer."""
        response = self.send(text, key)
        assert isinstance(response, JsonResponse)
        return response.status_code, json.loads(response.content)

    def stored(self) -> list[tuple[str, str]]:
        return [(row.message.role, row.message.text) for row in self.session.history()]


@pytest.fixture
def site(db: None, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    server.default = Behaviour(text="A language.")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setattr(openai, "_client", None)  # The view's client reads them when it is first used,
    monkeypatch.setattr(openai, "api_key", None)  # and keeps the key here.
    with openai.DefaultHttpxClient() as client:
        monkeypatch.setattr(openai, "http_client", client)
        yield Site(server, module_of("views.py"), User.objects.create_user("ada"))


CONVERSATION = [("user", "What is Rust?"), ("assistant", "A language.")]
OK = (200, {"text": "A language."})


def test_the_readme_and_its_view_are_short() -> None:
    assert len(README.splitlines()) <= 120
    assert len([line for line in VIEW.splitlines() if line and not line.startswith("#")]) <= 25
    compared = difflib.ndiff(VIEW.splitlines(), streaming_view().splitlines())
    assert max(collections.Counter(line[0] for line in compared if line[0] in "-+").values()) <= 5


def test_the_view_stores_a_question_and_its_reply(site: Site) -> None:
    assert site.post("What is Rust?") == OK

    assert [message["role"] for message in site.server.log[0].body["messages"]] == ["system", "user"]
    assert site.stored() == CONVERSATION
    assert models.Message.objects.get(role="assistant").usage["total_tokens"] > 0


def test_a_retry_finds_the_reply_to_its_own_question(site: Site) -> None:
    site.post("What is Rust?")
    site.server.default = Behaviour(text="A set of rules.")
    site.post("What is ownership?", key="key-2")
    # A front end may store what it likes with the messages.
    for row in site.session.history():
        site.session.update_message(row.position, metadata={"read": True})

    assert site.post("What is Rust?") == OK
    assert site.post("What is ownership?", key="key-2") == (200, {"text": "A set of rules."})
    assert len(site.server.log) == 2


FAILURES = {
    "a wrong key": Behaviour("unauthorized"),
    "a page instead of an answer": Behaviour("html"),
    "no choice": Behaviour("raw", body={"id": "c", "object": "chat.completion", "choices": []}),
    "an empty reply": Behaviour(text=""),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_after_a_failure_of_the_model_a_retry_is_answered(site: Site, failure: Behaviour) -> None:
    site.server.default = failure
    try:
        status, answer = site.post("What is Rust?")
        assert (status, set(answer)) == (502, {"error"})
    except (openai.OpenAIError, ValidationError, json.JSONDecodeError):
        pass  # Django logs it, and answers with the status 500.
    assert site.stored() == CONVERSATION[:1]

    site.server.default = Behaviour(text="A language.")
    assert site.post("What is Rust?") == OK
    assert site.stored() == CONVERSATION


@pytest.mark.parametrize(
    ("text", "key", "status"),
    [("", "key-1", 400), (" \n", "key-1", 400), ("What is Rust?", "", 400), ("word " * 40_000, "key-1", 413)],
)
def test_what_cannot_be_asked_is_refused(site: Site, text: str, key: str, status: int) -> None:
    assert (site.post(text, key)[0], site.stored(), site.server.log) == (status, [], [])


def test_a_request_that_has_waited_long_enough_is_told_when_to_try_again(site: Site) -> None:
    answers = []

    def ask(turn: Turn) -> str:
        answers.append(site.send("What is Rust?"))  # In a test's transaction, nobody waits.
        return "A language."

    site.namespace["ask"] = ask
    assert site.post("What is Rust?") == OK
    assert [(answer.status_code, answer["Retry-After"]) for answer in answers] == [(409, "5")]


def test_the_client_gives_up_before_the_turn_is_lost() -> None:
    [seconds] = set(re.findall(r"timeout=(\d+)", README))
    assert (openai.max_retries + 1) * int(seconds) < Options().turn_timeout


LINKS = sorted(set(re.findall(r"\]\((?!https?:)([^)#]*)", README)))


@pytest.mark.parametrize("target", LINKS)
def test_links_lead_to_files_of_the_repository(target: str) -> None:
    assert (ROOT / target).is_file()


def test_a_package_index_shows_the_readme_with_links_to_the_repository() -> None:
    text = long_description.absolute(README, "https://example.org/project")
    assert all(re.search(rf"\(https://example.org/project/(raw|blob)/main/{re.escape(link)}", text) for link in LINKS)
    assert re.search(r"!\[.*\]\(https://example.org/project/raw/main/docs/images/chat-played-light.png\)", text)
    assert re.findall(r"\]\((?!https?:)", text) == []


def test_without_a_repository_a_package_index_shows_no_link_that_leads_nowhere() -> None:
    text = long_description.absolute(README, None)
    assert re.findall(r"\]\((?!https?:)", text) == []
    assert "png" not in text
