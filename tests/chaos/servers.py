"""Private servers to kill, freeze and restart: PostgreSQL, PgBouncer, MariaDB, Redis and RabbitMQ.

Each is the Debian package's program, on a free port of the loopback and a folder of its own.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any, ClassVar, Self

from tests.chaos import guard

# Seconds to wait for a server to start or end.
PATIENCE = 60.0


class NotRun(Exception):
    """A fault cannot occur here."""


class Absent(NotRun):
    """A program is not installed."""


def program(*names: str) -> str:
    """Return the path of the first program that is installed. A name may be a pattern. Raises :class:`Absent`."""
    for name in names:
        path = shutil.which(name) or max(glob.glob(name), default=None)  # noqa: PTH207
        if path:
            return path
    raise Absent(f"{names[0]} is not installed")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Server:
    """A server process and its files. As root, run it as ``user``, because some servers refuse to run as root."""

    user: ClassVar[str] = ""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder / type(self).__name__.lower()
        self.folder.mkdir()
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        for parent in (folder, self.folder):
            parent.chmod(0o755)
        if self._identity:
            shutil.chown(self.folder, self.user, self.user)
        self.prepare()

    # For each server to define.

    def prepare(self) -> None:
        """Make the files that the first start needs."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def ping(self) -> None:
        """Raise an error unless the server can be used."""
        raise NotImplementedError

    # For all servers.

    def start(self) -> Self:
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._identity,
            )
        until(self._answers, f"{type(self).__name__} starts")
        return self

    def crash(self) -> None:
        """Kill the server."""
        self._signal(signal.SIGKILL)
        self._wait()

    def freeze(self) -> None:
        """Freeze the server: it accepts connections and does not answer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.crash()

    @property
    def _identity(self) -> dict[str, Any]:
        return {"user": self.user, "group": self.user, "extra_groups": []} if self.user and os.getuid() == 0 else {}

    @property
    def _environment(self) -> dict[str, str]:
        # The server's user can write only in its own folder.
        return {**os.environ, "TMPDIR": str(self.folder), **self.environment()}

    def run(self, *command: str) -> None:
        """Run a program to its end, as the server's user. Raises CalledProcessError with its output."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            **self._identity,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{type(self).__name__} has ended: {(self.folder / 'output').read_text()[-2000:]}")
        try:
            self.ping()
        except Exception:  # noqa: BLE001  each client has its own errors; any of them means: not yet
            return False
        return True

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(PATIENCE)


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    """Wait until ``condition`` holds. Raises TimeoutError, naming ``what``, if it never does."""
    ends = time.monotonic() + patience
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError(f"never happened: {what}")
        time.sleep(0.02)


class PostgreSQL(Server):
    """A PostgreSQL cluster. Its crash is an "immediate shutdown": it recovers at the next start."""

    user = "postgres"

    def prepare(self) -> None:
        programs = program("/usr/lib/postgresql/*/bin/initdb", "initdb")
        self._programs = pathlib.Path(programs).parent
        self.run(programs, "--pgdata=data", "--auth=trust", "--username=postgres", "--no-sync", "--no-locale", "-EUTF8")

    def command(self) -> list[str]:
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "200"}
        settings = [f"--{name}={value}" for name, value in options.items()]
        return [str(self._programs / "postgres"), "-D", "data", "-p", str(self.port), *settings]

    def environment(self) -> dict[str, str]:
        # Killed by another signal, it would leave shared memory behind.
        return {guard.ENDS_BY: "SIGQUIT"}

    def crash(self) -> None:
        # The first process makes the others end at once. If it were killed, they would keep the shared memory.
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._wait()

    def ping(self) -> None:
        import psycopg

        psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", connect_timeout=3).close()

    def database(self, name: str = "postgres") -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "USER": "postgres",
        }


class PgBouncer(Server):
    """PgBouncer in front of a PostgreSQL, by default with a server connection for each transaction."""

    user = "postgres"

    def __init__(
        self, folder: pathlib.Path, behind: PostgreSQL, *, pool_mode: str = "transaction", pool_size: int = 4
    ) -> None:
        self.behind = behind
        self.pool_mode = pool_mode
        self.pool_size = pool_size
        super().__init__(folder)

    def prepare(self) -> None:
        self._program = program("pgbouncer", "/usr/sbin/pgbouncer")
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={self.behind.port} user=postgres",
            "[pgbouncer]",
            f"listen_port = {self.port}",
            "listen_addr = 127.0.0.1",
            "unix_socket_dir =",
            "auth_type = any",
            f"pool_mode = {self.pool_mode}",
            f"default_pool_size = {self.pool_size}",
            "max_client_conn = 500",
        ]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [self._program, "pgbouncer.ini"]

    def ping(self) -> None:
        import psycopg

        psycopg.connect(f"postgresql://postgres@127.0.0.1:{self.port}/postgres", connect_timeout=3).close()

    def database(self) -> dict[str, Any]:
        # As Django's documentation says about transaction pooling.
        return {
            **self.behind.database(),
            "PORT": str(self.port),
            "DISABLE_SERVER_SIDE_CURSORS": True,
        }


class MariaDB(Server):
    """A MariaDB server, with InnoDB's ordinary durability."""

    user = "mysql"

    def prepare(self) -> None:
        self._program = program("mariadbd", "/usr/sbin/mariadbd")
        self.run(
            program("mariadb-install-db"),
            *("--no-defaults", f"--datadir={self.folder}/data", "--auth-root-authentication-method=normal"),
            *("--skip-test-db", "--innodb-log-file-size=16M"),
        )

    def command(self) -> list[str]:
        return [
            *(self._program, "--no-defaults", f"--datadir={self.folder}/data", f"--port={self.port}"),
            *("--bind-address=127.0.0.1", f"--socket={self.folder}/socket", f"--pid-file={self.folder}/pid"),
            *("--innodb-log-file-size=16M", "--max-connections=200"),
        ]

    def ping(self) -> None:
        import MySQLdb

        connection = MySQLdb.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=3)
        connection.cursor().execute("CREATE DATABASE IF NOT EXISTS convmemory CHARACTER SET utf8mb4")
        connection.close()

    def database(self) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": "convmemory",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
            "USER": "root",
            "OPTIONS": {"charset": "utf8mb4"},
        }


class Redis(Server):
    """A Redis without persistence: a crash loses its data."""

    def prepare(self) -> None:
        self._program = program("redis-server")

    def command(self) -> list[str]:
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        return [self._program, *(word for name, value in options.items() for word in (f"--{name}", value))]

    def ping(self) -> None:
        import redis

        with redis.Redis(port=self.port, socket_timeout=3) as client:
            client.ping()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class RabbitMQ(Server):
    """A RabbitMQ node."""

    def prepare(self) -> None:
        self._program = program("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
        self._distribution_port, self._names_port = free_port(), free_port()
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\n")

    def command(self) -> list[str]:
        return [self._program]

    def environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.folder),
            # Its own name server, which ends with it. The default port may be that of another node's.
            "ERL_EPMD_PORT": str(self._names_port),
            "RABBITMQ_NODENAME": f"chaos{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            # Its schedulers spin while they wait, which takes too much of two cores.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def ping(self) -> None:
        import kombu

        with kombu.Connection(self.url, connect_timeout=3) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=3)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"
