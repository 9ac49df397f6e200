"""The wheel: complete, installable, and importable without Django."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = "django_convmemory"


def files_of_the_package() -> Iterator[str]:
    for path in (ROOT / PACKAGE).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix()


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    matches = (re.match(r"([\w.-]+)(?:\[.*\])?==([\w.]+)", line) for line in lines)
    return {match[1].lower(): match[2] for match in matches if match}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / PACKAGE, source / PACKAGE)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "."],
        cwd=source,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    [built] = (source / "dist").glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == set(files_of_the_package())
    assert f"{PACKAGE}/py.typed" in names
    assert any(name.endswith(".mo") for name in names)


def test_the_core_depends_on_five_projects(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    required = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    core = {re.split(r"[^\w-]", requirement)[0].lower() for requirement in required if "extra ==" not in requirement}

    assert core == {"celery", "django", "djangorestframework", "openai", "snowballstemmer"}


@pytest.mark.slow
def test_the_pure_modules_import_where_nothing_else_is_installed(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    code = f"import {PACKAGE}.messages, {PACKAGE}.rules.strategies, {PACKAGE}.store.in_memory, {PACKAGE}.tokens"

    subprocess.run([python, "-I", "-W", "error", "-c", code], cwd=tmp_path, check=True)


def test_the_lowest_versions_tested_are_the_lowest_admitted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [
        project["dependencies"],
        *(
            project["optional-dependencies"][name]
            for name in project["optional-dependencies"]
            if name not in ("test", "docs", "bench", "lint")
        ),
    ]
    floors = (re.match(r"([\w-]+)(?:\[.*\])?>=([\w.]+)", requirement) for group in groups for requirement in group)
    lowest = pins("lowest.txt") | pins("lowest-integrations.txt")

    for floor in filter(None, floors):
        assert lowest[floor[1].lower()].removesuffix(".0") == floor[2].removesuffix(".0")
