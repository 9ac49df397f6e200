#!/usr/bin/env python
"""Serve the example: the site, a Celery worker that folds, and beat that sweeps, until Ctrl-C.

It needs no server, no key and no network; see mysite/settings.py for how to put real ones in their place.
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
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
# Seconds in which the site answers, and in which a process ends when it is told to.
START, END = 60.0, 10.0


class Supervisor:
    """Processes that run together: when one of them ends, all do."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start ``python -m`` with this command; what it says goes into a file of its name."""
        with (self.logs / f"{name}.log").open("wb") as log:
            # In sessions of their own, where Ctrl-C does not reach them: they end when we say so.
            self.processes[name] = subprocess.Popen(
                [sys.executable, *command], cwd=HERE, stdout=log, stderr=log, start_new_session=True
            )

    def ended(self) -> str | None:
        """Return the name of a process that has ended, or None."""
        return next((name for name, process in self.processes.items() if process.poll() is not None), None)

    def stop(self) -> None:
        """End all of them, in their own time first, and by force after that, or when told so again meanwhile."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, frame: self.kill())
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        ends = time.monotonic() + END
        for process in self.processes.values():
            try:
                process.wait(max(0.1, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill()
                process.wait()

    def kill(self) -> None:
        """End all of them at once, with what they have started."""
        for process in self.processes.values():
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 for any that is free")
    options = parser.parse_args()
    if not 0 <= options.port < 65536:
        parser.error(f"A port is a number from 0 to 65535, not {options.port}.")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell script's background jobs ignore
    port = free(options.host, options.port)
    if port is None:
        print(f"Port {options.port} is taken. Choose another: make demo PORT=8001", file=sys.stderr)
        return 1
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    for command in (["migrate", "--verbosity", "0", "--no-input"], ["seed_demo"]):
        if subprocess.call([sys.executable, "manage.py", *command], cwd=HERE):
            return 1
    from mysite import settings

    supervisor = Supervisor(settings.DATA_DIR)
    try:
        # There is no proxy in front of it whose word would count.
        site = ["uvicorn", "mysite.asgi:application", "--no-proxy-headers", f"--host={options.host}", f"--port={port}"]
        supervisor.start("site", "-m", *site)
        supervisor.start("worker", "-m", "celery", "-A", "mysite", "worker", *WORKER)
        supervisor.start("beat", "-m", "celery", "-A", "mysite", "beat", f"--schedule={settings.DATA_DIR / 'beat'}")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)  # noqa: S104
        return watch(supervisor, f"http://[{host}]:{port}/" if host == "::1" else f"http://{host}:{port}/")
    except KeyboardInterrupt:
        print("\nStopped.")
        return 0
    finally:
        supervisor.stop()


# One process with threads, so that none is left when it ends. One worker needs no talk among workers.
WORKER = [
    *("--queues=convmemory", "--pool=threads", "--concurrency=4", "--loglevel=INFO"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
]


def free(host: str, port: int) -> int | None:
    """Return the port, or one that is free for 0; None where it is taken."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, port))
        except OSError:
            return None
        found: int = bound.getsockname()[1]
        return found


def watch(supervisor: Supervisor, url: str) -> int:
    """Say when the site answers, and return when a process has ended."""
    said, gives_up = False, time.monotonic() + START
    while (ended := supervisor.ended()) is None:
        if not said and answers(url):
            said = True
            print(f"{url} is the site; sign in as demo, password demo.\nLogs: {supervisor.logs}. Ctrl-C ends it.")
            sys.stdout.flush()
        if not said and time.monotonic() > gives_up:
            print(f"The site does not answer; see {supervisor.logs / 'site.log'}.", file=sys.stderr)
            return 1
        time.sleep(0.2)
    lines = (supervisor.logs / f"{ended}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    print(f"The {ended} ended. The end of {supervisor.logs / ended}.log:", *lines[-12:], sep="\n", file=sys.stderr)
    return 1


def answers(url: str) -> bool:
    """Return whether there is an answer, of whatever kind: in production it leads elsewhere."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=1)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status > 0
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
