"""The TypeScript compiler and its companions, which ``make`` installs where npm is there."""

from __future__ import annotations

import pathlib
import re
import subprocess

PROGRAMS = pathlib.Path(__file__).parent / "node_modules/.bin"


class Wrong(Exception):
    """The compiler refuses the code. The text is what it says."""


def code_of(page: str, language: str) -> str:
    """Return the one block of code in this language."""
    [code] = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(code)


def run(program: str, *arguments: str, folder: pathlib.Path) -> None:
    """Run an installed program in the folder. Raises :class:`Wrong`."""
    command = [str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(done.stdout + done.stderr)
