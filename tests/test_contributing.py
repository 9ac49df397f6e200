"""What CONTRIBUTING.md, SECURITY.md and docs/inside/architecture.md name exists: files, layers, targets, variables."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

from tests import servers

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "django_convmemory"
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "docs/inside/architecture.md")
FOLDERS = "django_convmemory|tests|docs|benchmarks|example_project|scripts|\\.ci|\\.github"
# Variables that the runs of the tests set for each other.
INTERNAL = {servers.ABSENT, "CONVMEMORY_TEST_RUN", "CONVMEMORY_TEST_DATABASE_NAME"}
PYTHON = "\n".join(
    path.read_text(encoding="utf-8") for folder in (PACKAGE, ROOT / "tests") for path in folder.rglob("*.py")
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_of(page: str) -> list[str]:
    """Return the code spans and the blocks of code of a page."""
    text = text_of(page)
    blocks = re.findall(r"^ *```\w+\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return blocks + re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_every_path_exists(page: str) -> None:
    paths = {path for code in code_of(page) for path in re.findall(rf"(?<![\w/.])(?:{FOLDERS})/[\w./-]*", code)}

    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_file_that_the_architecture_names_in_the_package_exists() -> None:
    names = {
        code
        for code in code_of("docs/inside/architecture.md")
        if re.fullmatch(r"[\w/]+(?:\.py|/)", code) and "\n" not in code
    }

    assert len(names) > 30
    assert [name for name in sorted(names) if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_target_of_make_exists(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    named = {name for code in code_of(page) for name in re.findall(r"(?:^|\s)make ([a-z-]+)", code)}

    assert named <= targets


def test_the_table_of_variables_is_complete() -> None:
    table = text_of("CONTRIBUTING.md").partition("### Servers")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(CONVMEMORY_TEST_\w+)` +\| (?:`([^`]*)`)?", table, re.MULTILINE))

    assert set(rows) == set(re.findall(r"\bCONVMEMORY_TEST_[A-Z]+(?:_[A-Z]+)*\b", PYTHON)) - INTERNAL
    defaults = re.findall(r'environ\.get\("(CONVMEMORY_TEST_\w+)", "([^"]+)"\)', PYTHON)
    assert defaults
    assert {name: rows[name] for name, _ in defaults} == dict(defaults)


# The drawings.


def test_the_table_of_folders_is_complete() -> None:
    table = text_of("docs/inside/architecture.md").partition("## The folders")[2].partition("\n## ")[0]
    folders = {path.parent for path in PACKAGE.glob("*/__init__.py")}
    folders |= {path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}

    for folder in folders:
        assert f"`{folder.name}/`" in table


# The workflows.


def test_the_nightly_workflow_runs_each_part_of_make_test_release() -> None:
    [job] = yaml.safe_load(text_of(".github/workflows/nightly.yml"))["jobs"].values()
    [parts] = re.findall(r"^RELEASE := (.*)", text_of("Makefile"), re.MULTILINE)

    assert [f"release-{part}" for part in job["strategy"]["matrix"]["part"]] == parts.split()


def test_the_workflows_install_what_the_tests_need() -> None:
    action = yaml.safe_load(text_of(".github/actions/servers/action.yml"))["runs"]
    script = "\n".join(step.get("run", "") for step in action["steps"])

    assert set(re.findall(r"echo (CONVMEMORY_\w+)=(?!all)", script)) == {
        f"CONVMEMORY_TEST_{name.upper()}" for name in servers.ALL
    }
    [versions] = [step["with"]["python-version"] for step in action["steps"] if "setup-python" in step.get("uses", "")]
    assert set(versions.split()) == set(re.findall(r"\$\(find_python ([\d.]+)\)", text_of(".ci/run")))
