"""The Python of the README, the how-to pages and the tutorial passes mypy strictly, with the plugin of django-stubs."""

from __future__ import annotations

import collections
import os
import pathlib
import re
import sys

import pytest

from tests import processes

ROOT = pathlib.Path(__file__).parent.parent
# The pages of frameworks are checked where these are installed: see integration_tests.
FRAMEWORKS = {
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
    "llama-index": "llama_index",
    "langchain": "langchain_core",
}
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted({*ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/start/*.md")})]
    # These have tests of their own, which run parts of files and modules of an invented site.
    if page.stem not in {*FRAMEWORKS, "conversations", "moving", "testing"}
]
# Here, the errors are wanted: one in each line that ends with "# wrong".
CONTROL = """
from django.http import HttpRequest, JsonResponse
from openai import OpenAI

from django_convmemory.memory import memories
from django_convmemory.models import Message


def chat(request: HttpRequest) -> JsonResponse:
    session = memories["default"].session("main", owner=request.user)
    OpenAI().chat.completions.create(model="gpt-4.1-mini", messages=session.load().to_openai())
    OpenAI().chat.completions.create(model="gpt-4.1-mini", messages=session.load())  # wrong
    Message.objects.filter(author=request.user)  # wrong
    return session.load().to_text()  # wrong


def untyped(request):  # wrong
    return None
"""
# What the pages import from the reader's site.
SITE = {
    "shop": {
        "models": """
class Order:
    pk: int
    refunded: bool

    def save(self) -> None: ...
"""
    },
    "mysite": {
        "views": """
from django_convmemory.operations.turns import Turn

def ask(turn: Turn) -> object: ...
"""
    },
}


def modules_of(page: pathlib.Path) -> dict[str, str]:
    """Return the code of each file of a page, on the lines that it has there.

    A file may be spread over several blocks. Settings are left out: they have no types, and a block of them continues
    a file that Django has written.
    """
    modules: dict[str, list[str]] = collections.defaultdict(list)
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        named = re.match(r"# (?:mysite/)?(\w+)\.py\b", match[1])
        assert named, f"{page.name} has a block without the name of its file: {match[1]:.80}"
        if not named[1].startswith("settings"):
            lines = modules[named[1]]
            lines += [""] * (text[: match.start(1)].count("\n") - len(lines)) + match[1].splitlines()
    return {name: "\n".join(lines) + "\n" for name, lines in modules.items()}


def package_of(page: pathlib.Path) -> str:
    """Return a name that is an identifier for each page, such as ``page_tool_loop``."""
    return f"page_{page.stem.replace('-', '_').lower()}"


def mypy(folder: pathlib.Path, packages: dict[str, dict[str, str]]) -> list[str]:
    """Check the packages in one run, with the project's configuration and cache. Return the errors.

    ``packages`` has the code of each module. ``folder`` is an empty one for them.
    """
    pytest.importorskip("mypy_django_plugin", reason="django-stubs is not installed (the extra lint)")
    for package, modules in packages.items():
        (folder / package).mkdir()
        for name, code in {"__init__": "", **modules}.items():
            (folder / package / f"{name}.py").write_text(code, encoding="utf-8")
    options = ["--no-error-summary", "--hide-error-context", "--explicit-package-bases"]
    environment = os.environ | {"MYPYPATH": f"{folder}{os.pathsep}{ROOT}"}
    done = processes.run([sys.executable, "-m", "mypy", *options, folder], environment=environment)
    # An error from the cache names the folder of an earlier run.
    return [re.sub(r"^.*/(?=page_)", "", line) for line in done.stdout.splitlines() if ": note: " not in line]


@pytest.mark.slow
def test_the_code_of_every_page_passes_and_the_control_does_not(tmp_path: pathlib.Path) -> None:
    packages = {package_of(page): modules_of(page) for page in PAGES} | {"page_control": {"views": CONTROL}} | SITE

    errors = mypy(tmp_path, packages)

    control = [error for error in errors if error.startswith("page_control/")]
    wrong = [number for number, line in enumerate(CONTROL.splitlines(), 1) if line.endswith("# wrong")]
    assert [error for error in errors if error not in control] == []
    assert [int(error.split(":")[1]) for error in control] == wrong, control


def test_all_kinds_of_files_are_checked() -> None:
    names = {name for page in PAGES for name in modules_of(page)}

    assert names >= {"views", "login", "routers", "tool_loop", "trips", "responses", "claude", "talk"}
    assert "settings" not in names
