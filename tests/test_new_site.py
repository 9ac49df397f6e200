"""A new project, set up as README.md says, and every command in README.md and the docs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator

import pytest
import redis

from tests import processes
from tests.openai_server import Behaviour, OpenAIServer

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent
# Without the variables that a make which runs these tests sets for its programs: they would apply here too.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTEST_", "DJANGO_", "PIP_", "MAKE")) and name not in {"MFLAGS", "ARGS"}
}
# The tutorial begins a project of its own: test_tutorial.py. Django's tasks need an app that is not here:
# integration_tests/django_tasks. Partitions need PostgreSQL: tests/partitioning.
ELSEWHERE = {ROOT / "docs/start/tutorial.md", ROOT / "docs/guides/development.md", ROOT / "docs/guides/partitions.md"}
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - ELSEWHERE)]


def blocks(page: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


COMMANDS = [shlex.split(line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
MAKE = [rest for program, *rest in COMMANDS if program == "make"]
PIP = [rest for program, *rest in COMMANDS if [program, *rest[:2]] == ["python", "-m", "pip"]]
MANAGE = [rest for program, *rest in COMMANDS if [program, *rest[:1]] == ["python", "manage.py"]]
CELERY = [rest for program, *rest in COMMANDS if program == "celery"]

# README.md assumes that a view has a URL.
URLS = """
from django.urls import path

from mysite import views

urlpatterns = [path("chat/", views.chat)]
"""
# Talks until there is something to fold.
VISIT = """
import uuid
from django.contrib.auth.models import User
from django.test import Client

client = Client()
client.force_login(User.objects.get_or_create(username="ada")[0])
key = uuid.uuid4()
for number in range(12):
    headers = {"Idempotency-Key": f"{key}-{number}"}
    answer = client.post("/chat/", {"text": f"In place {number} I see a castle. " * 40}, headers=headers)
    assert answer.json() == {"text": "A fine place."}, answer
"""


class Site:
    """The project in ``folder``, whose model is ``server``."""

    def __init__(self, folder: pathlib.Path, server: OpenAIServer) -> None:
        self.folder = folder
        self.server = server
        self.environment = ENVIRONMENT | {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}

    def manage(self, *arguments: str) -> str:
        """Run ``manage.py``, and return what it prints, warnings included."""
        return processes.output_of([sys.executable, "manage.py", *arguments], self.folder, self.environment)

    @contextlib.contextmanager
    def running(self, *command: str) -> Iterator[pathlib.Path]:
        """Run a process, and yield the file of its log."""
        log = self.folder / f"{uuid.uuid4().hex}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=output, stderr=output)
        try:
            yield log
        finally:
            processes.stop(process)

    def is_idle(self) -> bool:
        code = (
            "from django_convmemory import clock, models\n"
            "sessions = models.Session.objects.filter(last_position__gt=0)\n"
            "leased = sessions.filter(lease_expires_at__gt=clock.Clock())\n"
            "print(sessions.exists() and not sessions.due().exists() and not leased.exists())"
        )
        return self.manage("shell", "--verbosity", "0", "--command", code).strip() == "True"


@contextlib.contextmanager
def project(folder: pathlib.Path, broker_url: str) -> Iterator[Site]:
    """Make the project of ``startproject``, changed as README.md says, in ``folder``."""
    readme = ROOT / "README.md"
    subprocess.run([sys.executable, "-m", "django", "startproject", "mysite", folder], check=True)
    package = folder / "mysite"
    for name in ("celery.py", "__init__.py"):
        shutil.copy(ROOT / "example_project/mysite" / name, package)
    for block in blocks(readme, "python"):
        if block.startswith("# views.py"):
            (package / "views.py").write_text(block)
    (package / "urls.py").write_text(URLS)
    prefix = uuid.uuid4().hex
    pages = (readme, ROOT / "docs/guides/production.md")
    settings = "".join(
        block for page in pages for block in blocks(page, "python") if block.startswith("# settings.py\n")
    )
    # "Remove SCHEDULER", the second page says.
    settings, removed = re.subn(r'    "SCHEDULER": .*\n', "", settings, count=1)
    assert removed
    assert settings.count('"schedule": 60.0') == 1
    with (package / "settings.py").open("a") as file:
        file.write(settings.replace('"schedule": 60.0', '"schedule": 1.0'))
        # The site's own settings: a broker, shared with other tests here, and SQLite as the checks want it.
        file.write(f"""
CELERY_BROKER_URL = {broker_url!r}
CELERY_BROKER_TRANSPORT_OPTIONS = {{"global_keyprefix": "{prefix}:"}}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
ALLOWED_HOSTS = ["testserver"]
DATABASES["default"]["OPTIONS"] = {{
    "init_command": "PRAGMA journal_mode=WAL;", "transaction_mode": "IMMEDIATE", "timeout": 20
}}
""")
    with OpenAIServer() as server:
        server.default = Behaviour(text="A fine place.")
        yield Site(folder, server)
    with redis.Redis.from_url(broker_url) as client:
        for key in client.scan_iter(match=f"{prefix}:*"):
            client.delete(key)


@pytest.fixture
def site(tmp_path: pathlib.Path, broker_url: str) -> Iterator[Site]:
    with project(tmp_path, broker_url) as made:
        yield made


def test_every_command_is_of_a_kind_that_is_run_here() -> None:
    assert len(MAKE) + len(PIP) + len(MANAGE) + len(CELERY) == len(COMMANDS)
    assert all((MAKE, PIP, MANAGE, CELERY))
    for page in PAGES:
        assert set(re.findall(r"^```(\w+)", page.read_text(encoding="utf-8"), re.MULTILINE)) <= {
            *("python", "pycon", "sh", "text", "http", "json"),
            *("ini", "yaml"),  # tests/guides/test_supervision.py
            "diff",  # tests/test_readme.py
            *("console", "html", "ts", "tsx"),  # tests/typescript
        }, page


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_the_site_works_and_so_does_every_command(site: Site) -> None:
    for _, *arguments in MANAGE:
        output = site.manage(*arguments)
        assert "WARNING" not in output, (arguments, output)

    [beat] = [arguments for arguments in CELERY if "beat" in arguments]
    with site.running(sys.executable, "-m", "celery", *beat):
        for worker in [each for each in CELERY if each != beat]:
            site.manage("shell", "--command", VISIT)
            assert not site.is_idle()
            with site.running(sys.executable, "-m", "celery", *worker) as log:
                processes.wait_until(site.is_idle, f"all is folded by celery {shlex.join(worker)}")
                if "INFO" in worker:
                    processes.wait_until(lambda: "Task convmemory.sweep" in log.read_text(), "beat has it sweep")
    assert "Nothing is wrong" in site.manage("convmemory_check")


def make(target: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start ``make`` with the packages that are installed here, instead of a new environment."""
    installed = [f"--old-file={sys.prefix}/.{name}" for name in ("example", "lint", "runtime", "test")]
    return subprocess.Popen(
        ["make", "--no-print-directory", *installed, target, f"VENV={sys.prefix}", *arguments],
        cwd=ROOT,
        env=ENVIRONMENT | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("command", MAKE, ids=" ".join)
def test_make(command: list[str], tmp_path: pathlib.Path) -> None:
    match command:
        case ["demo", *variables]:
            # A server of this machine takes the place of the provider.
            with (
                OpenAIServer() as model,
                make(
                    *command,
                    *([f"OPENAI_BASE_URL={model.base_url}"] if variables else []),
                    "PORT=0",
                    EXAMPLE_DATA_DIR=str(tmp_path),
                ) as process,
            ):
                assert process.stdout is not None
                line = next((line for line in process.stdout if " is the site" in line), "")
                address = re.match(r"(http://\S+)/ is the site", line)
                named = dict(variable.split("=", 1) for variable in variables).get("DEMO_MODEL")
                try:
                    assert address
                    with urllib.request.urlopen(f"{address[1]}/") as page:  # noqa: S310
                        shown = page.read().decode()
                    assert 'href="/sign-in/' in shown
                    assert (named or "the offline responder") in shown
                finally:
                    process.terminate()
        case ["test"]:
            with make(*command, "ARGS=tests/test_validation.py", CONVMEMORY_TEST_DATABASES="sqlite") as process:
                assert process.stdout is not None
                assert re.search(r"\d+ passed", process.stdout.read())
            assert process.returncode == 0
        case _:
            pytest.fail(f"This test does not know how to run: make {shlex.join(command)}")


@pytest.mark.parametrize("command", PIP, ids=" ".join)
def test_pip_finds_every_extra(command: list[str], tmp_path: pathlib.Path) -> None:
    """Install from a clone, as README.md says, with the packages that are installed here."""
    *rest, name = command
    extras = re.fullmatch(r"django-convmemory(\[.*\]|)", name)
    assert extras
    offline = ("--dry-run", "--no-index", "--no-build-isolation", "--ignore-installed", "--no-deps", "--quiet")
    output = processes.output_of([sys.executable, *rest, *offline, f"{ROOT}{extras[1]}"], tmp_path, ENVIRONMENT)
    assert "does not provide the extra" not in output
