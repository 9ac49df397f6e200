"""The typed client of docs/reference/api.md compiles against the schema of the API."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from tests.processes import ROOT
from tests.typescript import compiler

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
CODE = compiler.code_of(PAGE, "ts")
INSTALL, TYPES = re.findall(r"^\$ (.*)", compiler.code_of(PAGE, "console"), re.MULTILINE)
OPTIONS = "--noEmit --strict --noUnusedLocals --target es2022 --module es2022 --moduleResolution bundler"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with the types, made by the command of the page."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.yaml").symlink_to(ROOT / "django_convmemory/api/openapi.yaml")
    _npx, program, *arguments = TYPES.split()
    compiler.run(program, *arguments, folder=folder)
    return folder


def compile_client(folder: pathlib.Path, code: str) -> None:
    (folder / "client.ts").write_text(code, encoding="utf-8")
    compiler.run("tsc", *OPTIONS.split(), "client.ts", folder=folder)


def test_the_client_compiles(folder: pathlib.Path) -> None:
    compile_client(folder, CODE)


def test_a_misspelt_field_does_not_compile(folder: pathlib.Path) -> None:
    with pytest.raises(compiler.Wrong, match=r"titel.* does not exist"):
        compile_client(folder, CODE.replace("= { title }", "= { titel: title }"))


def test_the_packages_of_the_page_are_those_that_compile_it_here() -> None:
    pinned = json.loads((pathlib.Path(compiler.__file__).parent / "package.json").read_text())["devDependencies"]
    packages = [f"{name}@{pinned[name].partition('.')[0]}" for name in ("typescript", "openapi-typescript")]
    assert f"npm install --save-dev {' '.join(packages)}" == INSTALL
