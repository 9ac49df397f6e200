"""Compiles the code of docs/howto/typescript.md against the schema of the API: ``python -m tests.typescript.compiler``.

It needs Node. ``make schema`` and ``make test`` install the compiler, where npm is there.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile

from tests.processes import ROOT

PAGE = ROOT / "docs/howto/typescript.md"
PROGRAMS = pathlib.Path(__file__).parent / "node_modules/.bin"
# As on the page, with errors for what is never used.
OPTIONS = "--strict --noUnusedLocals --target es2022 --module es2022 --moduleResolution bundler"


class Wrong(Exception):
    """The compiler refuses the code. The text is what it says."""


def code_of(page: str, language: str) -> str:
    """Return the one block of code in this language."""
    [code] = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(code)


def compile_page(folder: pathlib.Path, code: str | None = None) -> str:
    """Return the JavaScript of the code, by default the code of the page. Raises :class:`Wrong`."""
    text = code_of(PAGE.read_text(encoding="utf-8"), "ts") if code is None else code
    (folder / "chat.ts").write_text(text, encoding="utf-8")
    schema = ROOT / "django_convmemory/api/openapi.yaml"
    run("openapi-typescript", str(schema), "--output", "schema.d.ts", folder=folder)
    run("tsc", *OPTIONS.split(), "chat.ts", folder=folder)
    return (folder / "chat.js").read_text(encoding="utf-8")


def run(program: str, *arguments: str, folder: pathlib.Path) -> None:
    """Run an installed program in the folder. Raises :class:`Wrong`."""
    command = [str(PROGRAMS / program), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(done.stdout + done.stderr)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        try:
            compile_page(pathlib.Path(name))
        except Wrong as wrong:
            sys.exit(f"{PAGE.relative_to(ROOT)} does not compile.\n{wrong}")
