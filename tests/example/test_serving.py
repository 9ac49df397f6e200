"""What ``make demo`` starts: for this machine only, and with a model only if DEMO_MODEL names one."""

from __future__ import annotations

import importlib
import pathlib
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.example.conftest import answered, begin, served
from tests.openai_server import Behaviour, OpenAIServer
from tests.test_example_project import PROJECT, environment

if TYPE_CHECKING:
    from playwright.sync_api import Page

KEY = {"OPENAI_API_KEY": "sk-secret"}
SERVER = {"OPENAI_BASE_URL": "http://ada:hidden@localhost:11434/v1"}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PROJECT)
    return importlib.import_module("serve")


@pytest.mark.parametrize(
    ("variables", "model", "says"),
    [
        ({}, {}, "No model is used"),
        (KEY | SERVER | {"OPENAI_MODEL": "gpt"}, {}, "No model is used"),
        ({"DEMO_MODEL": ""} | KEY, {}, "No model is used"),
        ({"DEMO_MODEL": "gpt"} | KEY, {"OPENAI_MODEL": "gpt"} | KEY, "The model gpt at api.openai.com replies"),
        (
            {"DEMO_MODEL": "tiny", "OPENAI_MODEL": "gpt"} | SERVER,
            {"OPENAI_MODEL": "tiny", "OPENAI_API_KEY": "none"} | SERVER,
            "The model tiny at localhost:11434 replies and summarizes, without a key.",
        ),
        ({"DEMO_MODEL": "tiny"} | KEY | SERVER, {"OPENAI_MODEL": "tiny"} | KEY | SERVER, "with the key"),
    ],
)
def test_only_demo_model_chooses_a_model(
    serve: Any, variables: dict[str, str], model: dict[str, str], says: str
) -> None:
    assert serve.chosen_model(variables) == model
    described = serve.described(model)
    assert says in described
    assert "secret" not in described
    assert "hidden" not in described


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"OPENAI_API_KEY": "", "OPENAI_BASE_URL": ""}])
def test_a_model_without_a_key_and_an_address_is_refused(variables: dict[str, str], tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "serve.py", "--port", "0"],
        cwd=PROJECT,
        env=environment(tmp_path, DEMO_MODEL="gpt", **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("DEMO_MODEL is gpt, but there is no key. Set OPENAI_API_KEY")
    assert len(done.stderr.splitlines()) == 1


def test_a_model_that_is_asked_for_replies_with_the_key(page: Page, tmp_path: pathlib.Path) -> None:
    with OpenAIServer() as server:
        server.default = Behaviour(text="A fine answer.", pace=0)
        variables = {"DEMO_MODEL": "tiny", "OPENAI_MODEL": "unwanted", "OPENAI_BASE_URL": server.base_url}
        with served(tmp_path, **KEY, **variables) as site:
            said = (tmp_path / "said").read_text()
            address = urlsplit(site)
            # Other machines, and other addresses of this one, get no answer.
            assert address.hostname == "127.0.0.1"
            assert address.port is not None
            with pytest.raises(OSError):  # noqa: PT011  which one depends on the system
                socket.create_connection(("127.0.0.2", address.port), timeout=5)
            assert server.log == []  # The example conversations were folded without the model.
            begin(page, site, "It is raining in Graz.")
            answered(page, "It is raining in Graz.")
            assert page.locator("#messages .assistant .text").inner_text() == "A fine answer."
        assert [(entry.body["model"], entry.headers["authorization"]) for entry in server.log] == [
            ("tiny", "Bearer sk-secret")
        ]
    assert f"The model tiny at {urlsplit(server.base_url).netloc} replies" in said
    assert "sk-secret" not in said
