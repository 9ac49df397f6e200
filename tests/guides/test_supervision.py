"""The supervisors of docs/guides/production.md start a worker and beat."""

from __future__ import annotations

import configparser
import contextlib
import pathlib
import re
import shlex
import shutil
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests import processes
from tests.guides.test_pages import PAGES
from tests.test_new_site import VISIT, Site, project

pytestmark = pytest.mark.slow

HOME = "/srv/mysite"
STATE = "/var/lib/mysite-beat"
BLOCKS = dict(re.findall(r"```(?:ini|yaml)\n# (\S+)\n(.*?)```", PAGES["production"], re.DOTALL))
UNITS = {path.rpartition("/")[2]: text for path, text in BLOCKS.items() if path.endswith(".service")}
COMPOSE = yaml.safe_load(BLOCKS["compose.yaml"])["services"]


def section_of(unit: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNITS[unit])
    return dict(parser["Service"])


def commands_of(supervisor: str, site: Site) -> list[list[str]]:
    """Return the commands of the page that start a worker and beat. Their folders are those of the site."""
    (site.folder / ".venv").symlink_to(sys.prefix)
    folder = str(site.folder)
    if supervisor == "systemd":
        commands = [section_of(f"mysite-{name}.service")["ExecStart"] for name in ("worker", "beat")]
        return [shlex.split(command.replace(HOME, folder).replace(STATE, folder)) for command in commands]
    return [
        [f"{folder}/.venv/bin/{program}", *(word.replace("/tmp/", f"{folder}/") for word in arguments)]  # noqa: S108
        for service in COMPOSE.values()
        for program, *arguments in [shlex.split(service["command"])]
    ]


@pytest.fixture
def site(tmp_path: pathlib.Path, broker_url: str) -> Iterator[Site]:
    with project(tmp_path, broker_url) as made:
        yield made


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, tmp_path: pathlib.Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    file = tmp_path / unit
    file.write_text(UNITS[unit].replace(HOME, str(tmp_path)))

    output = processes.output_of(["systemd-analyze", "verify", "--man=no", file])

    assert [line for line in output.splitlines() if unit in line or str(file) in line] == []


def test_every_process_is_always_started_again() -> None:
    for unit in UNITS:
        service = section_of(unit)
        assert service["Restart"] == "always"
        # systemd gives up after five starts within ten seconds.
        assert int(service["RestartSec"]) > 2
    assert {service["restart"] for service in COMPOSE.values()} == {"unless-stopped"}


@pytest.mark.release  # The chaos suite kills workers and restarts Redis.
@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
@pytest.mark.parametrize("supervisor", ["systemd", "compose"])
def test_the_commands_start_a_worker_and_beat(site: Site, supervisor: str) -> None:
    site.manage("migrate")
    with contextlib.ExitStack() as running:
        for command in commands_of(supervisor, site):
            running.enter_context(site.running(*command))
        site.manage("shell", "--command", VISIT)

        processes.wait_until(site.is_idle, "all is folded")
    assert "Nothing is wrong" in site.manage("convmemory_check")
