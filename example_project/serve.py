#!/usr/bin/env python
"""Run the example until Ctrl-C: the site, a Celery worker that folds, and Celery beat that sweeps.

It needs no server, no key and no network. mysite/settings.py tells how to use real servers. The variable DEMO_MODEL
names a model that replies and summarizes. Its key is OPENAI_API_KEY, and its address OPENAI_BASE_URL. Without
DEMO_MODEL, neither is used.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import worker

HOST = "127.0.0.1"
HERE = Path(__file__).resolve().parent
# Seconds that the site may take to start, and a process to end.
START, END = 60.0, 10.0


class Supervisor:
    """Processes that run together. When one of them ends, all are stopped."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        self.environment = environment
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start Python with these arguments. The output goes into the file ``NAME.log``."""
        with (self.logs / f"{name}.log").open("wb") as log:
            # In its own session, so that Ctrl-C does not reach it. stop() ends it.
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command],
                cwd=HERE,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ended(self) -> str | None:
        """Return the name of a process that has ended, or None."""
        return next((name for name, process in self.processes.items() if process.poll() is not None), None)

    def stop(self) -> None:
        """Terminate all processes; kill them after :data:`END` seconds, or at another signal."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, frame: self.kill())
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + END
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill()
                process.wait()

    def kill(self) -> None:
        """Kill all processes and their children."""
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000, help="0 for any free port (default: 8000)")
    options = parser.parse_args()
    if not 0 <= options.port < 65536:
        parser.error(f"--port must be a number from 0 to 65535, not {options.port}.")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Background jobs of a shell script ignore SIGINT.
    port = free(options.port)
    if port is None:
        print(f"Port {options.port} is in use. Choose another one: make demo PORT=8001", file=sys.stderr)
        return 1
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    offline = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    try:
        model = chosen_model(os.environ)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    # The model does not fold the example conversations: that would be hundreds of calls.
    for command in (["migrate", "--verbosity", "0", "--no-input"], ["seed_demo"]):
        if subprocess.call([sys.executable, "manage.py", *command], cwd=HERE, env=offline):
            return 1
    from mysite import settings

    supervisor = Supervisor(settings.DATA_DIR, offline | model)
    try:
        # There is no proxy in front, so its headers must not be trusted.
        site = ["uvicorn", "mysite.asgi:application", "--no-proxy-headers", f"--host={HOST}", f"--port={port}"]
        supervisor.start("site", "-m", *site)
        supervisor.start("worker", "-m", "celery", "-A", "mysite", "worker", *worker.OPTIONS)
        supervisor.start("beat", "-m", "celery", "-A", "mysite", "beat", f"--schedule={settings.DATA_DIR / 'beat'}")
        return watch(supervisor, port, described(model))
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0
    finally:
        supervisor.stop()


def chosen_model(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the model that DEMO_MODEL names; none without it, whatever a shell has set.

    Raises ``ValueError`` if neither a key nor an address is given.
    """
    name, key, address = (environ.get(each) or "" for each in ("DEMO_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL"))
    if not name:
        return {}
    if not key and not address:
        raise ValueError(
            f"DEMO_MODEL is {name}, but there is no key. Set OPENAI_API_KEY for OpenAI, or OPENAI_BASE_URL for another "
            "server."
        )
    # The client requires a key, also for a server without keys.
    variables = {"OPENAI_MODEL": name, "OPENAI_API_KEY": key or "none"}
    return variables | {"OPENAI_BASE_URL": address} if address else variables


def described(model: Mapping[str, str]) -> str:
    """Return a line about who replies. It has no key and no password."""
    if not model:
        return "No model is used: an offline responder replies. To use one, set DEMO_MODEL and OPENAI_API_KEY."
    server = urlsplit(model.get("OPENAI_BASE_URL", "https://api.openai.com/v1")).netloc.rpartition("@")[2]
    key = "without a key" if model["OPENAI_API_KEY"] == "none" else "with the key in OPENAI_API_KEY"
    return f"The model {model['OPENAI_MODEL']} at {server} replies and summarizes, {key}."


def free(port: int) -> int | None:
    """Return ``port`` if it is free, or any free port for 0, or None."""
    try:
        with socket.create_server((HOST, port)) as bound:
            free_port: int = bound.getsockname()[1]
    except OSError:
        return None
    return free_port


def watch(supervisor: Supervisor, port: int, description: str) -> int:
    """Print a message with ``description`` when the site answers. Return the exit code when a process has ended."""
    announced, deadline = False, time.monotonic() + START
    while (ended := supervisor.ended()) is None:
        if not announced and answers(port):
            announced = True
            print(description)
            print(f"http://{HOST}:{port}/ is the site. Sign in as demo with the password demo.")
            print(f"The logs are in {supervisor.logs}. Press Ctrl-C to stop.", flush=True)
        if not announced and time.monotonic() > deadline:
            print(f"The site does not answer. See {supervisor.logs / 'site.log'}.", file=sys.stderr)
            return 1
        time.sleep(0.2)
    lines = (supervisor.logs / f"{ended}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    print(
        f"The process {ended} has ended. The end of {supervisor.logs / ended}.log:",
        *lines[-12:],
        sep="\n",
        file=sys.stderr,
    )
    return 1


def answers(port: int) -> bool:
    """Return whether the site answers, with any status: a production site answers with a redirect."""
    connection = http.client.HTTPConnection(HOST, port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status > 0
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
