"""A site under test: its database, its broker, its model, its workers, and the processes that serve requests."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import threading
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from tests.chaos import servers
from tests.chaos.gates import Gates
from tests.chaos.site_processes import ROOT, Client, Worker
from tests.openai_server import OpenAIServer

DATABASES = ("sqlite", "postgresql", "pooled", "mariadb", "pgbouncer", "routed")
# What Celery sends tasks through.
BROKERS = ("redis", "rabbitmq")
# In place of a broker: the tasks of Django's own framework are rows of the database.
DATABASE_TASKS = "django-tasks"
# The exit code of a run whose servers are not installed.
ABSENT = 77
# How many processes serve requests.
CLIENTS = 4
# The chat model's deadline, in seconds. A lease is then 32 s.
DEADLINE = 2.0
# A session is due after few messages, and its summary has room for the marks of all messages.
LIMITS = {"max_token_limit": 120, "max_summary_tokens": 8000, "max_chunk_tokens": 400}
# Of the alias "fallback": its fallback stands in after two attempts and so many seconds.
TWO_ATTEMPTS = {"max_attempts": 2, "fallback_after": 20.0}
CELERY = "django_convmemory.tasks.CeleryScheduler"
DJANGO_TASKS = "django_convmemory.contrib.django_tasks.DjangoTasksScheduler"


def database_of_process(**entry: Any) -> dict[str, str]:
    """Return the environment of a process with these settings of the conversations' database."""
    return {"CONVMEMORY_CHAOS_DATABASE": json.dumps(entry)}


@dataclasses.dataclass
class Site:
    """What is running. Made by :func:`running`. ``broker`` is None where Django's own tasks do the work of Celery."""

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
            before, self.clients = self.clients, self.new_clients(len(self.clients), environment)
        for client in before:
            client.kill()

    def new_clients(self, count: int, environment: dict[str, str] | None = None) -> list[Client]:
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
                self.clients[self.clients.index(client)] = self.new_clients(1, client.environment)[0]

    def complaints(self) -> int:
        """How often the processes of the site have logged that they cannot reach the broker."""
        return sum(log.read_text().count("Cannot send tasks") for log in self.folder.glob("*.log"))

    def close(self) -> None:
        for process in [*self.workers, *self.clients]:
            process.kill()


def memory(model: OpenAIServer, queue: str, scheduler: str, options: dict[str, Any], fallback: Any) -> dict[str, Any]:
    """Return the settings of one memory of the site."""
    chat_model = {"model": "fake", "api_key": "none", "base_url": model.base_url, "timeout": DEADLINE}
    return {
        "MEMORY": "django_convmemory.memory.ConversationSummaryBufferMemory",
        "OPTIONS": options,
        "CHAT_MODEL": {"BACKEND": "tests.chaos.chat_models.GatedChatModel", "OPTIONS": chat_model},
        "FALLBACK_CHAT_MODEL": fallback,
        "SCHEDULER": {"BACKEND": scheduler, "OPTIONS": {"queue": queue}},
    }


@contextlib.contextmanager
def running(
    folder: pathlib.Path,
    database: str,
    broker: str,
    *,
    old: str = "",
    clients: int = CLIENTS,
    **options: Any,
) -> Iterator[Site]:
    """Start a site on servers of its own, and set this process up as one of the site's. Once in a process.

    ``options`` are those of its memories, beside the usual ones.

    Raises :class:`~.servers.Absent` where a server is not installed.
    """
    limits = LIMITS | options
    with contextlib.ExitStack() as stack:
        served, databases, routers = _databases(stack, folder, database)
        queued = _broker(stack, folder, broker)
        scheduler = CELERY if queued else DJANGO_TASKS
        model = stack.enter_context(OpenAIServer())
        name = f"convmemory-{uuid.uuid4().hex[:8]}"
        fallback = {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"}
        settings = {
            "databases": databases,
            "routers": routers,
            "broker": queued.url if queued else None,
            "queue": name,
            "gates": str(folder / "gates"),
            "memories": {
                "default": memory(model, name, scheduler, limits, None),
                "fallback": memory(model, name, scheduler, limits | TWO_ATTEMPTS, fallback),
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
        site.start_worker()
        site.clients = site.new_clients(clients)
        yield site


def _broker(stack: contextlib.ExitStack, folder: pathlib.Path, name: str) -> servers.Redis | servers.RabbitMQ | None:
    if name == DATABASE_TASKS:
        if find_spec("django_tasks_db") is None:
            raise servers.Absent("django-tasks-db is not installed")
        return None
    broker = servers.Redis(folder) if name == "redis" else servers.RabbitMQ(folder)
    stack.enter_context(broker)
    return broker


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
