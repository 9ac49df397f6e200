"""docs/start/tutorial.md, typed in a new folder from its first line to its last: commands, files and Python."""

from __future__ import annotations

import json
import os
import pathlib
import re
import sys
from typing import Any

import pytest

from tests import processes

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))} | {
    "PYTHONPATH": str(ROOT),
    "DJANGO_SUPERUSER_USERNAME": "admin",
    "DJANGO_SUPERUSER_PASSWORD": "admin",
    "DJANGO_SUPERUSER_EMAIL": "admin@example.com",
}
# What the shell is told to run: the page's Python, and between it what is typed in the other terminal.
IN_THE_SHELL = """
import doctest, json, re, subprocess
any_of = r"2[0-9]{3}-[0-9]{2}-[0-9]{2}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
class AnyDay(doctest.OutputChecker):
    def check_output(self, *texts_and_flags):
        *texts, flags = texts_and_flags
        return super().check_output(*(re.sub(any_of, "ANY", text) for text in texts), flags)
with open("steps.json") as file:
    steps = json.load(file)
names = {}
for number, (language, text) in enumerate(steps):
    if language == "pycon":
        test = doctest.DocTestParser().get_doctest(text, names, f"block {number}", "tutorial.md", 0)
        if doctest.DocTestRunner(AnyDay(), verbose=False).run(test, clear_globs=False).failed:
            raise SystemExit(1)
        names = test.globs
    else:
        done = subprocess.run(text, check=True, stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="")
from django.contrib.auth import get_user_model
from django.test import Client
client = Client(SERVER_NAME="localhost")
client.force_login(get_user_model().objects.get(username="admin"))
listed = client.get("/admin/convmemory/session/")
assert listed.status_code == 200 and b">trip<" in listed.content, listed.content
"""


class Terminal:
    """The folder that the commands are typed in."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    @staticmethod
    def command(line: str) -> list[str]:
        """Return what is run for a line of the page, with the Python that runs the tests."""
        program, *arguments = line.split()
        if program == "django-admin":
            return [sys.executable, "-m", "django", *arguments]
        assert program == "python", line
        return [sys.executable, *arguments, *(["--noinput"] if "createsuperuser" in arguments else [])]

    def run(self, *command: str) -> str:
        """Run a command, and return what it prints, warnings included."""
        output = processes.output_of(command, self.folder, ENVIRONMENT)
        assert "warning" not in output.lower(), output
        return output

    def type(self, language: str, text: str) -> str:
        """Do what one step of the page says, and return what is printed."""
        if language == "python":
            self.write(text)
        elif language == "sh" and text.startswith("cd "):
            self.folder /= text.removeprefix("cd ")
        elif language == "sh":
            return self.run(*self.command(text))
        return ""

    def type_in_the_shell(self, steps: list[tuple[str, str]]) -> str:
        """Do the steps that follow the start of the shell, and return what is printed outside of it."""
        typed: list[tuple[str, Any]] = []
        for language, text in steps:
            if language == "python":
                self.write(text)
            elif language != "text":
                typed.append((language, self.command(text) if language == "sh" else text))
        (self.folder / "steps.json").write_text(json.dumps(typed), encoding="utf-8")
        return self.run(*self.command("python manage.py shell -v 0 --command"), IN_THE_SHELL)

    def write(self, text: str) -> None:
        """Write a file, or add the lines to the one that is there."""
        name = re.match(r"# (\S+\.py)\n", text)
        assert name
        with (self.folder / name[1]).open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")


def lines_of(blocks: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the steps of the page: each line of a shell is one."""
    steps = []
    for language, text in blocks:
        steps += [(language, line) for line in text.splitlines()] if language == "sh" else [(language, text)]
    return steps


def test_what_the_page_tells_to_type_prints_what_it_shows(tmp_path: pathlib.Path) -> None:
    steps = lines_of(BLOCKS)
    assert {language for language, _ in steps} == {"sh", "python", "pycon", "text"}
    assert steps[0] == ("sh", "python -m pip install django-convmemory")  # It is installed here.
    assert steps[-1] == ("sh", "python manage.py runserver")
    opened = steps.index(("sh", "python manage.py shell"))
    terminal = Terminal(tmp_path)

    printed = "".join(terminal.type(language, text) for language, text in steps[1:opened])
    printed += terminal.type_in_the_shell(steps[opened + 1 : -1])

    for language, text in steps:
        assert language != "text" or text in printed
