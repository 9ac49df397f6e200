"""The wheel is complete, and the pure modules are importable without Django."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tomllib
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
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with what a build needs."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, source)
    (source / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/long_description.py", source / "scripts")
    shutil.copytree(ROOT / PACKAGE, source / PACKAGE)
    return source


@pytest.fixture(scope="module")
def wheel(source: pathlib.Path) -> pathlib.Path:
    return build(source, "dist", "--wheel")


def build(source: pathlib.Path, folder: str, *options: str) -> pathlib.Path:
    """Build in ``source``, and return the wheel, which is in ``folder``."""
    command = [sys.executable, "-m", "build", *options, "--no-isolation", "--outdir", folder, "."]
    subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    [built] = (source / folder).glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == set(files_of_the_package())
    assert f"{PACKAGE}/py.typed" in names
    assert any(name.endswith(".mo") for name in names)


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(source: pathlib.Path, wheel: pathlib.Path) -> None:
    """Without options, ``build`` makes the wheel from the sdist."""
    assert build(source, "from_sdist").read_bytes() == wheel.read_bytes()


@pytest.mark.slow
def test_the_readme_of_the_wheel_has_no_relative_link(wheel: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()

    assert "# " in text.partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]*)\)", text) + re.findall(r'(?:src|href)="([^"]*)', text)
    assert [link for link in links if not link.startswith("https:")] == []


def test_the_core_depends_on_five_projects() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    core = {re.split(r"[^\w-]", requirement)[0].lower() for requirement in required}

    assert core == {"celery", "django", "djangorestframework", "openai", "snowballstemmer"}


@pytest.mark.slow
def test_the_pure_modules_import_where_nothing_else_is_installed() -> None:
    code = f"import {PACKAGE}.messages, {PACKAGE}.rules.strategies, {PACKAGE}.store.in_memory, {PACKAGE}.tokens"

    # Without the module site, Python finds no installed package.
    subprocess.run([sys.executable, "-E", "-S", "-W", "error", "-c", code], cwd=ROOT, check=True)


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
    lowest = pins("lowest.txt") | pins("lowest-integrations.txt") | pins("lowest-mcp.txt")

    for floor in filter(None, floors):
        assert lowest[floor[1].lower()].removesuffix(".0") == floor[2].removesuffix(".0")
