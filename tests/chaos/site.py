"""A site under test: its database, its broker, its model, its workers, and the processes that serve requests."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Any

from tests.chaos import servers
from tests.chaos.gates import Gates
from tests.openai_server import OpenAIServer

ROOT = pathlib.Path(__file__).parent.parent.parent
DATABASES = ("sqlite", "postgresql", "pooled", "mariadb", "pgbouncer", "routed")
BROKERS = ("redis", "rabbitmq")
# The exit code of a run whose servers are not installed.
ABSENT = 77
# The chat model's deadline, in seconds. A lease is then 32 s.
DEADLINE = 2.0
# A session is due after few messages, and its summary has room for the marks of all messages.
LIMITS = {"max_token_limit": 120, "max_summary_tokens": 8000, "max_chunk_tokens": 400}
# Of the alias "fallback": its fallback stands in after two attempts and so many seconds.
TWO_ATTEMPTS = {"max_attempts": 2, "fallback_after": 20.0}


def database_of_process(**entry: Any) -> dict[str, str]:
    """Return the environment of a process with these settings of the conversations' database."""
    return {"CONVMEMORY_CHAOS_DATABASE": json.dumps(entry)}


class Died(Exception):
    """The process ended before it answered."""


class Process:
    """A process of the site."""

    def __init__(
        self,
        site: Site,
        name: str,
        *arguments: str,
        environment: dict[str, str] | None = None,
        folder: pathlib.Path = ROOT,
        stdin: int | None = None,
        stdout: int | None = None,
    ) -> None:
        self.environment = environment or {}
        self.log = site.folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=folder,
                env=site.environment | self.environment,
                stderr=log,
                start_new_session=True,
                stdin=stdin,
                stdout=log if stdout is None else stdout,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Kill the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(servers.PATIENCE)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Worker(Process):
    """A Celery worker of the app's queue, with two processes that run its tasks."""

    def __init__(
        self, site: Site, name: str, *, environment: dict[str, str] | None = None, folder: pathlib.Path = ROOT
    ) -> None:
        super().__init__(
            site,
            name,
            *("celery", "--app", "tests.chaos.app", "worker", "--queues", site.queue, "--pool", "prefork"),
            *("--concurrency", "2", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            *("--hostname", f"{name}@%h", "--loglevel", "INFO"),
            environment=environment,
            folder=folder,
        )

    def children(self) -> list[int]:
        """Return the ids of the processes that run the tasks."""
        with contextlib.suppress(FileNotFoundError):
            return [int(pid) for pid in pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    @property
    def ready(self) -> bool:
        return " ready." in self.log.read_text()


class Beat(Process):
    """Celery beat, which sends the task of the sweep each minute."""

    def __init__(self, site: Site, name: str) -> None:
        schedule = site.folder / f"{name}.schedule"
        super().__init__(site, name, "celery", "--app", "tests.chaos.app", "beat", "--schedule", str(schedule))


class Client(Process):
    """A process that serves requests, one after the other."""

    def __init__(self, site: Site, name: str, environment: dict[str, str] | None = None) -> None:
        super().__init__(
            *(site, name, "tests.chaos.client"),
            environment=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._turn = threading.Lock()

    def wait_until_ready(self) -> None:
        self._answer()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer. Raises :class:`Died`."""
        with self._turn:
            try:
                self._requests.write(json.dumps(request).encode() + b"\n")
                self._requests.flush()
            except BrokenPipeError:
                raise Died from None
            return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line.endswith(b"\n"):
            raise Died
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclasses.dataclass
class Site:
    """What is running. Made by :func:`running`."""

    folder: pathlib.Path
    database: Any
    broker: Any
    model: OpenAIServer
    environment: dict[str, str]
    queue: str
    gates: Gates
    name: str
    # The tag or commit whose code an old worker runs, or "".
    old: str = ""
    workers: list[Worker] = dataclasses.field(default_factory=list)
    clients: list[Client] = dataclasses.field(default_factory=list)
    started: int = 0
    replacing: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def start_worker(self, environment: dict[str, str] | None = None, folder: pathlib.Path = ROOT) -> Worker:
        self.started += 1
        worker = Worker(self, f"worker{self.started}", environment=environment, folder=folder)
        self.workers.append(worker)
        servers.until(lambda: worker.ready or not worker.runs, "the worker is ready")
        if not worker.runs:
            raise RuntimeError(worker.log.read_text()[-2000:])
        return worker

    def stop_workers(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers.clear()

    @contextlib.contextmanager
    def other_workers(self, environment: dict[str, str] | None = None, folder: pathlib.Path = ROOT) -> Iterator[Worker]:
        """Have one worker with this environment and code, instead of the usual ones, until the end of the block."""
        self.stop_workers()
        try:
            yield self.start_worker(environment, folder)
        finally:
            self.stop_workers()
            self.start_worker()

    @contextlib.contextmanager
    def other_clients(self, environment: dict[str, str]) -> Iterator[None]:
        """Have clients with this environment, instead of the usual ones, until the end of the block."""
        self.restart_clients(environment)
        try:
            yield
        finally:
            self.restart_clients()

    def restart_clients(self, environment: dict[str, str] | None = None) -> None:
        with self.replacing:
            before, self.clients = self.clients, self._new_clients(len(self.clients), environment)
        for client in before:
            client.kill()

    def start_clients(self, count: int) -> None:
        self.clients += self._new_clients(count)

    def _new_clients(self, count: int, environment: dict[str, str] | None = None) -> list[Client]:
        new = []
        for _ in range(count):
            self.started += 1
            new.append(Client(self, f"client{self.started}", environment))
        for client in new:
            client.wait_until_ready()
        return new

    def replace(self, client: Client) -> None:
        """Replace a worker that died, unless another thread already has."""
        with self.replacing:
            if client in self.clients:
                self.started += 1
                other = Client(self, f"client{self.started}", client.environment)
                other.wait_until_ready()
                self.clients[self.clients.index(client)] = other

    def complaints(self) -> int:
        """How often the processes of the site have logged that they cannot reach the broker."""
        return sum(log.read_text().count("Cannot send tasks") for log in self.folder.glob("*.log"))

    def close(self) -> None:
        for process in [*self.workers, *self.clients]:
            process.kill()


class Memory(dict[str, Any]):
    """Settings of one memory of the site."""

    def __init__(self, model: OpenAIServer, queue: str, **more: Any) -> None:
        super().__init__(
            MEMORY="django_convmemory.memory.ConversationSummaryBufferMemory",
            OPTIONS=LIMITS | more.pop("options", {}),
            CHAT_MODEL={
                "BACKEND": "tests.chaos.chat_models.GatedChatModel",
                "OPTIONS": {
                    "model": "fake",
                    "api_key": "none",
                    "base_url": more.pop("base_url", model.base_url),
                    "timeout": more.pop("timeout", DEADLINE),
                },
            },
            FALLBACK_CHAT_MODEL=None,
            SCHEDULER={"BACKEND": "django_convmemory.tasks.CeleryScheduler", "OPTIONS": {"queue": queue}},
            **more,
        )


@contextlib.contextmanager
def running(
    folder: pathlib.Path,
    database: str,
    broker: str,
    *,
    workers: int = 1,
    clients: int = 4,
    deadline: float = DEADLINE,
    old: str = "",
) -> Iterator[Site]:
    """Start a site on servers of its own, and set this process up as one of the site's. Once in a process.

    Raises :class:`~.servers.Absent` where a server is not installed.
    """
    with contextlib.ExitStack() as stack:
        served, databases, routers = _databases(stack, folder, database)
        queued: servers.Redis | servers.RabbitMQ
        queued = servers.Redis(folder) if broker == "redis" else servers.RabbitMQ(folder)
        stack.enter_context(queued)
        model = stack.enter_context(OpenAIServer())
        name = f"convmemory-{uuid.uuid4().hex[:8]}"
        fallback = {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"}
        settings = {
            "databases": databases,
            "routers": routers,
            "broker": queued.url,
            "queue": name,
            "gates": str(folder / "gates"),
            "memories": {
                "default": Memory(model, name, timeout=deadline),
                "fallback": Memory(model, name, options=TWO_ATTEMPTS) | {"FALLBACK_CHAT_MODEL": fallback},
            },
        }
        (folder / "site.json").write_text(json.dumps(settings))
        environment = {
            **os.environ,
            "CONVMEMORY_CHAOS": str(folder / "site.json"),
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
        }
        os.environ.update({key: environment[key] for key in ("CONVMEMORY_CHAOS", "DJANGO_SETTINGS_MODULE")})
        _set_up(list(databases))
        closable = Gates(folder / "gates")
        site = Site(folder, served, queued, model, environment, name, closable, f"{database}, {broker}", old)
        stack.callback(site.close)
        for _ in range(workers):
            site.start_worker()
        site.start_clients(clients)
        yield site


def _databases(stack: contextlib.ExitStack, folder: pathlib.Path, name: str) -> tuple[Any, dict[str, Any], list[str]]:
    """Start the database servers, and return them with the settings that name them."""
    if name == "sqlite":
        return None, {"default": _sqlite(folder / "main.sqlite3")}, []
    if name == "mariadb":
        mariadb = stack.enter_context(servers.MariaDB(folder))
        return mariadb, {"default": mariadb.database()}, []
    postgresql = stack.enter_context(servers.PostgreSQL(folder))
    if name == "pgbouncer":
        bouncer = stack.enter_context(servers.PgBouncer(folder, postgresql))
        return postgresql, {"default": bouncer.database()}, []
    if name == "routed":
        # Users in one database, conversations in another.
        databases = {"default": _sqlite(folder / "main.sqlite3"), "memory": postgresql.database()}
        return postgresql, databases, ["tests.chaos.routers.MemoryRouter"]
    database = postgresql.database()
    if name == "pooled":
        # A pool in each process keeps the connections, not Django.
        database |= {"OPTIONS": {"pool": {"min_size": 1, "max_size": 4}}, "CONN_MAX_AGE": 0}
    return postgresql, {"default": database}, []


def _sqlite(path: pathlib.Path) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;",
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
        },
    }


def _set_up(databases: list[str]) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    import tests.chaos.app  # noqa: F401  Celery's current app

    for alias in databases:
        call_command("migrate", database=alias, verbosity=0)
