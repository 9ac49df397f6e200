"""The supervisors of docs/howto/production.md keep a worker and beat running."""

from __future__ import annotations

import configparser
import contextlib
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import yaml

from tests import processes
from tests.chaos import servers
from tests.howto.test_pages import PAGES
from tests.openai_server import Behaviour
from tests.test_new_site import VISIT, Site, project

pytestmark = pytest.mark.slow

HOME = "/srv/mysite"
STATE = "/var/lib/mysite-beat"
ENVIRONMENT = "/etc/mysite.env"
BLOCKS = dict(re.findall(r"```(?:ini|yaml)\n# (\S+)\n(.*?)```", PAGES["production"], re.DOTALL))
UNITS = {path.rpartition("/")[2]: text for path, text in BLOCKS.items() if path.endswith(".service")}
COMPOSE = yaml.safe_load(BLOCKS["compose.yaml"])["services"]


def section_of(unit: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNITS[unit])
    return dict(parser["Service"])


class Supervisor:
    """Starts a command again when it ends, as ``Restart=always`` and ``restart: unless-stopped`` do."""

    def __init__(self, site: Site, command: list[str], log: pathlib.Path) -> None:
        self.site, self.command, self.log = site, command, log
        self.started = 0
        self._stopping = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, name="supervisor")
        self._thread.start()

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        processes.stop(self._process)

    def _start(self) -> subprocess.Popen[bytes]:
        self.started += 1
        with self.log.open("ab") as output:
            return subprocess.Popen(
                self.command, cwd=self.site.folder, env=self.site.environment, stdout=output, stderr=output
            )

    def _watch(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)
                self._process = self._start()


@contextlib.contextmanager
def supervised(site: Site, commands: dict[str, list[str]]) -> Iterator[dict[str, Supervisor]]:
    """Run the commands until the end of the block."""
    with contextlib.ExitStack() as stack:
        running = {}
        for name, command in commands.items():
            running[name] = Supervisor(site, command, site.folder / f"{name}.log")
            stack.callback(running[name].stop)
        yield running


def commands_of(supervisor: str, site: Site) -> dict[str, list[str]]:
    """Return the commands of the page. Their folders are those of the site."""
    (site.folder / ".venv").symlink_to(sys.prefix)
    folder = str(site.folder)
    if supervisor == "systemd":
        return {
            name: shlex.split(
                section_of(f"mysite-{name}.service")["ExecStart"].replace(HOME, folder).replace(STATE, folder)
            )
            for name in ("worker", "beat")
        }
    return {
        name: [f"{folder}/.venv/bin/{program}", *(word.replace("/tmp/", f"{folder}/") for word in arguments)]  # noqa: S108
        for name, service in COMPOSE.items()
        for program, *arguments in [shlex.split(service["command"])]
    }


@pytest.fixture
def site(tmp_path: pathlib.Path, broker_url: str) -> Iterator[Site]:
    with project(tmp_path, broker_url) as made:
        yield made


def test_the_page_has_a_worker_and_a_beat_for_each_supervisor() -> None:
    assert sorted(UNITS) == ["mysite-beat.service", "mysite-worker.service"]
    assert sorted(COMPOSE) == ["beat", "worker"]


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, tmp_path: pathlib.Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    file = tmp_path / unit
    file.write_text(UNITS[unit].replace(HOME, str(tmp_path)))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    assert [line for line in done.stdout.splitlines() if unit in line or str(file) in line] == []
    assert done.returncode == 0, done.stdout


def test_every_process_is_always_started_again() -> None:
    for unit in UNITS:
        service = section_of(unit)
        assert service["Restart"] == "always"
        # systemd gives up after five starts within ten seconds.
        assert int(service["RestartSec"]) > 2
    assert {service["restart"] for service in COMPOSE.values()} == {"unless-stopped"}


@pytest.mark.release  # The chaos suite kills workers, and restarts Redis, too.
@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_killed_processes_come_back_and_fold(site: Site) -> None:
    site.manage("migrate")
    with supervised(site, commands_of("systemd", site)) as running:
        site.manage("shell", "--command", VISIT)
        processes.wait_until(site.is_idle, "all is folded")

        for process in running.values():
            process.kill()
        site.manage("shell", "--command", VISIT)

        processes.wait_until(site.is_idle, "all is folded again")
        assert [process.started for process in running.values()] == [2, 2]


@pytest.mark.release
def test_redis_restarts_while_a_task_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "site").mkdir()
    try:
        redis = servers.Redis(tmp_path)
    except servers.Absent as error:
        pytest.skip(str(error))
    with redis, project(tmp_path / "site", redis.url) as site:
        site.manage("migrate")
        site.manage("shell", "--command", VISIT)
        site.server.forget()
        site.server.queue(Behaviour(text="A fine place.", latency=2.0))
        with supervised(site, commands_of("compose", site)):
            assert site.server.wait_for(lambda log: len(log) == 1, processes.PATIENCE)

            redis.crash()
            redis.start()

            # The worker may end now, but only after its task.
            processes.wait_until(site.is_idle, "all is folded")
            assert len(site.server.log) == 1
            site.manage("shell", "--command", VISIT)
            processes.wait_until(site.is_idle, "all is folded again")
        assert "Nothing is wrong" in site.manage("convmemory_check")
