"""Compares the HTTP API with a minimal DRF endpoint: ``python -m benchmarks.http_api``.

Starts gunicorn with two workers, a Celery worker on the local Redis, and a model that takes two seconds. The database
is on the local PostgreSQL and is dropped at the end. The endpoints are measured in turns, in rounds, so that other
activity of the machine affects all of them. Prints requests a second, percentiles and ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import django

DATABASE = f"bench_http_{os.getpid()}"
TURN = "word " * 40
LONG = "word " * 2200


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_api", description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="the time of each endpoint in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--appends", type=int, default=200, help="the appends that make a session due")
    arguments = parser.parse_args()

    from benchmarks.worker_rate.__main__ import wait_for_first
    from tests.openai_server import Behaviour, OpenAIServer

    with OpenAIServer() as model, database(), contextlib.ExitStack() as stack:
        model.default = Behaviour(text="A summary of what was said.", latency=2.0)
        os.environ |= {
            "BENCH_DATABASE": DATABASE,
            "BENCH_MODEL_URL": model.base_url,
            "DJANGO_SETTINGS_MODULE": "benchmarks.http_api.settings",
            "BENCH_BROKER": "redis://127.0.0.1:6379/9",
        }
        sessions, token = prepare(arguments.clients)
        port = free_port()
        command = ["gunicorn", "benchmarks.http_api.site:application", "--bind", f"127.0.0.1:{port}", "--workers", "2"]
        stack.enter_context(running(*command, "--worker-class", "gthread", "--threads", "4", "--log-level", "error"))
        wait_for(port)
        if arguments.rounds:
            measure(port, token, sessions, arguments)
        measure_triggering(port, token, arguments, "no worker")
        worker = [
            "celery",
            "--app",
            "benchmarks.http_api.site:app",
            "worker",
            "--queues",
            "convmemory",
            "--pool",
            "threads",
        ]
        process = stack.enter_context(running(*worker, "--concurrency", "8", "--loglevel", "error"))
        # The worker folds the sessions that the last measurement made due.
        from django_convmemory.models import Session

        wait_for_first(process, Session.objects)
        measure_triggering(port, token, arguments, "a worker folding")


def prepare(count: int) -> tuple[list[str], str]:
    """Create the user and the sessions. Each has a context of 2 000 tokens, half of it in the tail."""
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from rest_framework.authtoken.models import Token

    from django_convmemory import models
    from django_convmemory.chat_models.scripted import ScriptedChatModel
    from django_convmemory.memory import ConversationSummaryBufferMemory
    from django_convmemory.messages import ChatMessage
    from django_convmemory.store.orm import ORMStore

    call_command("migrate", verbosity=0)
    anna = User.objects.create_user("anna")
    memory = ConversationSummaryBufferMemory(ORMStore(), ScriptedChatModel(["a word " * 100] * 1000), 2000)
    for number in range(count):
        for _ in range(35):
            memory.session(f"s{number}", owner=anna).append(ChatMessage.human(TURN), ChatMessage.ai(TURN))
    ids = [str(public_id) for public_id in models.Session.objects.values_list("public_id", flat=True)]
    return ids, Token.objects.create(user=anna).key


def measure(port: int, token: str, sessions: list[str], arguments: argparse.Namespace) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hello there"}]})
    endpoints: dict[str, Callable[[str], tuple[str, str, str | None]]] = {
        "GET context, minimal": lambda session: ("GET", f"/plain/sessions/{session}/context/", None),
        "GET context": lambda session: ("GET", f"/api/sessions/{session}/context/", None),
        "POST message, minimal": lambda session: ("POST", f"/plain/sessions/{session}/messages/", body),
        "POST message": lambda session: ("POST", f"/api/sessions/{session}/messages/", body),
    }
    # The contexts are read first, because appended messages make them longer.
    times: dict[str, list[float]] = {name: [] for name in endpoints}
    rates: dict[str, list[float]] = {name: [] for name in endpoints}
    names = list(endpoints)
    for pair in (names[:2], names[2:]):
        # The minimal endpoint does not maintain the memory's counters, so it writes to separate sessions.
        for _, name in itertools.product(range(arguments.rounds + 1), pair):
            targets = (
                sessions[: len(sessions) // 2]
                if "minimal" in name and "POST" in name
                else sessions[len(sessions) // 2 :]
            )
            seconds, durations = load(port, token, [endpoints[name](session) for session in targets], arguments)
            times[name] += durations
            rates[name].append(len(durations) / seconds)
    for name in names:
        del rates[name][0]  # The first round is the warm-up.
        print(f"{name}: {statistics.median(rates[name]):.0f} a second; {percentiles(times[name])}")
    for name in ("GET context", "POST message"):
        ratios = [ours / plain for ours, plain in zip(rates[name], rates[f"{name}, minimal"], strict=True)]
        print(
            f"{name}: {statistics.median(ratios):.2f} times the requests of the minimal endpoint, "
            f"{min(ratios):.2f} at least"
        )


def measure_triggering(port: int, token: str, arguments: argparse.Namespace, label: str) -> None:
    """Append the same to sessions that become due by it, and to sessions of a memory with a larger limit, in turns."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times: dict[str, list[float]] = {"wide": [], "default": []}
    for number in range(2 * arguments.appends):
        alias = "default" if number % 2 else "wide"
        session = json.dumps({"alias": alias, "key": f"{label} {number}"})
        status, answer = call(connection, token, "POST", "/api/sessions/", session)
        assert status == 201, answer
        path = f"/api/sessions/{json.loads(answer)['id']}/messages/"
        # Twice, because the newest exchange alone never makes a session due.
        for text in (LONG[:100], LONG):
            body = json.dumps({"messages": [{"role": "user", "content": text}]})
            began = time.perf_counter()
            status, answer = call(connection, token, "POST", path, body)
            duration = time.perf_counter() - began
        times[alias].append(duration)
        assert json.loads(answer)["due"] == (alias == "default"), answer
    plain, due = times["wide"], times["default"]
    print(f"POST message of {len(LONG)} characters, {label}: nothing due {percentiles(plain)}")
    print(f"POST message of {len(LONG)} characters, {label}: compaction due {percentiles(due)}")
    added = statistics.median(due) - statistics.median(plain)
    print(f"{label}: {statistics.median(due) / statistics.median(plain):.2f} times, {added * 1e3:+.1f} ms")


def load(
    port: int, token: str, requests: list[tuple[str, str, str | None]], arguments: argparse.Namespace
) -> tuple[float, list[float]]:
    """Let every client repeat its request. Return the total seconds, and the seconds of each request."""
    times: list[list[float]] = [[] for _ in range(arguments.clients)]
    deadline = time.perf_counter() + arguments.seconds

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        method, path, body = requests[number % len(requests)]
        while time.perf_counter() < deadline:
            began = time.perf_counter()
            status, answer = call(connection, token, method, path, body)
            times[number].append(time.perf_counter() - began)
            assert status in (200, 201), answer

    threads = [threading.Thread(target=client, args=(number,)) for number in range(arguments.clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, [duration for durations in times for duration in durations]


def call(
    connection: http.client.HTTPConnection, token: str, method: str, path: str, body: str | None = None
) -> tuple[int, bytes]:
    connection.request(
        method, path, body, headers={"Authorization": f"Token {token}", "Content-Type": "application/json"}
    )
    response = connection.getresponse()
    return response.status, response.read()


def percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3 for part in (0.5, 0.99))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"


@contextlib.contextmanager
def database() -> Iterator[None]:
    import psycopg

    with psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{DATABASE}"')
        try:
            yield
        finally:
            connection.execute(f'DROP DATABASE "{DATABASE}" WITH (FORCE)')


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            # The server starts meanwhile.
            time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: Any = bound.getsockname()[1]
        return int(port)


if __name__ == "__main__":
    main()
