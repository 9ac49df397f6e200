"""Puts the example's chat site under load: ``python -m benchmarks.chat_site``.

The example runs with uvicorn, PostgreSQL, Redis, a Celery worker with threads, and a model that takes two seconds for
each call. Visitors chat at the same time. In each turn a visitor sends a message, waits for the streamed reply, and
fetches the stored messages. Meanwhile the visitor follows the conversation by its events, as the page does.

With ``--reload``, the visitors do what the page did before replies stayed in place: they load it again after each
reply, and poll the panel, every second during activity and less often afterwards.

Prints the times of the page's requests, which do not wait for a model. At the end it checks that nothing was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import html
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator

import aiohttp
import yarl

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = ROOT / "example_project"
DATABASE = f"bench_chat_{os.getpid()}"
TAG = r'data-tag="([^"]+)"'
# Seconds for the worker to finish the last sessions: a few model calls, or a sweep if a task was lost.
PATIENCE = 150
TEXT = "We talked about this and that, and then about the weather in Lisbon, which was fine. " * 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chat_site", description=__doc__.split("\n")[0])
    parser.add_argument("--chats", type=int, default=200, help="visitors at the same time")
    parser.add_argument("--turns", type=int, default=8, help="messages of each visitor")
    parser.add_argument("--pause", type=float, default=20.0, help="seconds that a visitor reads and writes")
    parser.add_argument("--reload", action="store_true", help="load the page again after each reply, and poll")
    arguments = parser.parse_args()

    from benchmarks.http_api.__main__ import free_port, wait_for
    from tests.openai_server import Behaviour, OpenAIServer

    with (
        OpenAIServer() as model,
        database() as url,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        model.default = Behaviour(text="A fine answer to what was asked, in a few words more.", latency=2.0)
        environment = os.environ | {
            "DATABASE_URL": url,
            "CELERY_BROKER_URL": "redis://127.0.0.1:6379/10",
            "OPENAI_MODEL": "fake",
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": model.base_url,
            "CHAT_RATE": "100000/min",
            # As in production, behind a proxy that ends HTTPS.
            "SECRET_KEY": "of a benchmark " * 5,
            "ALLOWED_HOSTS": "127.0.0.1",
            "EXAMPLE_DATA_DIR": folder,
            "DJANGO_SETTINGS_MODULE": "mysite.settings",
        }
        python = [sys.executable]
        subprocess.run([*python, "manage.py", "migrate", "--verbosity", "0"], cwd=EXAMPLE, env=environment, check=True)
        port = free_port()
        uvicorn = ["uvicorn", "mysite.asgi:application", "--port", str(port), "--workers", "2", "--log-level", "error"]
        worker = ["celery", "-A", "mysite", "worker", "--queues", "convmemory", "--pool", "threads"]
        beat = ["celery", "-A", "mysite", "beat", "--schedule", f"{folder}/beat", "--loglevel", "ERROR"]
        for command in (uvicorn, [*worker, "--concurrency", "32", "--loglevel", "ERROR"], beat):
            stack.enter_context(running([*python, "-m", *command], environment))
        wait_for(port)
        times = asyncio.run(talk(f"http://127.0.0.1:{port}", arguments))
        for name, seconds in sorted(times.items()):
            print(f"{name:<22} {len(seconds):6d} requests; {percentiles(seconds)}")
        wait_until_folded(url)
        count_messages(url, 2 * arguments.chats * arguments.turns)
        subprocess.run([*python, "manage.py", "convmemory_check"], cwd=EXAMPLE, env=environment, check=True)


async def talk(site: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    # Shorter than the 5 s after which uvicorn closes a connection.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    async with contextlib.AsyncExitStack() as stack:
        chats = []
        for number in range(arguments.chats):
            # Each visitor has cookies of its own. All share the connections.
            jar = aiohttp.CookieJar(unsafe=True, treat_as_secure_origin=[yarl.URL(site)])
            proxied = {"X-Forwarded-Proto": "https", "Referer": f"https://127.0.0.1:{yarl.URL(site).port}/"}
            # And an address of its own: the events that one address may follow are limited.
            proxied["X-Forwarded-For"] = f"10.0.{number // 250}.{number % 250 + 1}"
            client = aiohttp.ClientSession(connector=connector, connector_owner=False, cookie_jar=jar, headers=proxied)
            await stack.enter_async_context(client)
            chats.append(chat(client, site, number, arguments, times))
        await asyncio.gather(*chats)
    await connector.close()
    return times


async def chat(
    client: aiohttp.ClientSession, site: str, number: int, arguments: argparse.Namespace, times: dict[str, list[float]]
) -> None:
    await asyncio.sleep(number / arguments.chats * arguments.pause)
    _, page = await request(client, times, "GET the start page", "GET", f"{site}/")
    token = first_group(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    form = {"csrfmiddlewaretoken": token, "text": f"{TEXT} {number}", "key": uuid.uuid4().hex}
    address, page = await request(client, times, "POST the first message", "POST", f"{site}/begin/", data=form)
    headers, tag = {"X-CSRFToken": token}, first_group(TAG, page)
    for turn in range(arguments.turns):
        if turn:
            form = {"text": f"{TEXT} {number}, {turn}", "key": uuid.uuid4().hex}
            await request(client, times, "POST a message", "POST", f"{address}send/", data=form, headers=headers)
        stop = asyncio.Event()
        follower = poll if arguments.reload else follow
        following = asyncio.create_task(follower(client, address, tag, times, stop))
        began = time.perf_counter()
        lines = headers | {"Accept": "application/x-ndjson"}
        async with client.post(f"{address}reply/", headers=lines) as reply:
            await reply.content.readany()
            times["(reply, first word)"].append(time.perf_counter() - began)
            text = await reply.text()
        assert '"error"' not in text, text
        if arguments.reload:
            stop.set()
            await following
            _, page = await request(client, times, "GET the conversation", "GET", address)
            tag = first_group(TAG, page)
            stop = asyncio.Event()
            following = asyncio.create_task(follower(client, address, tag, times, stop))
        else:
            await request(client, times, "GET the messages", "GET", f"{address}messages/?from={max(2 * turn - 1, 1)}")
        await asyncio.sleep(arguments.pause)
        stop.set()
        await following


async def follow(
    client: aiohttp.ClientSession, address: str, tag: str, times: dict[str, list[float]], stop: asyncio.Event
) -> None:
    """Follow the conversation as the page does: see following.js."""
    events = asyncio.create_task(listen(client, address, tag, times))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((events, stopped), return_when=asyncio.FIRST_COMPLETED)
    if events.done():
        events.result()
    for task in (events, stopped):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def listen(client: aiohttp.ClientSession, address: str, tag: str, times: dict[str, list[float]]) -> None:
    events = f"{address.replace('/c/', '/api/memory/sessions/')}events/"
    async with client.get(events, headers={"Accept": "text/event-stream"}, timeout=aiohttp.ClientTimeout()) as stream:
        assert stream.status == 200, stream
        async for line in stream.content:
            if line.startswith(b"event: "):
                tag = await look(client, address, tag, times)


async def look(client: aiohttp.ClientSession, address: str, tag: str, times: dict[str, list[float]]) -> str:
    """Fetch the panel if it has changed, and return its tag."""
    began = time.perf_counter()
    async with client.get(f"{address}panel/", headers={"If-None-Match": html.unescape(tag)}) as answer:
        await answer.text()
        name = "GET the panel, 304" if answer.status == 304 else "GET the panel"
        times[name].append(time.perf_counter() - began)
        assert answer.status in (200, 304), answer
        return answer.headers["ETag"]


async def poll(
    client: aiohttp.ClientSession, address: str, tag: str, times: dict[str, list[float]], stop: asyncio.Event
) -> None:
    """Poll the panel: every second during activity, and less often afterwards."""
    pause, busy = 1.0, False
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), pause)
    while not stop.is_set():
        began = time.perf_counter()
        async with client.get(f"{address}panel/", headers={"If-None-Match": html.unescape(tag)}) as answer:
            text = await answer.text()
            name = "GET the panel, 304" if answer.status == 304 else "GET the panel"
            times[name].append(time.perf_counter() - began)
            assert answer.status in (200, 304), answer
            tag = answer.headers["ETag"]
        if answer.status == 200:
            busy = "state compacting" in text or "state due" in text
        pause = 1.0 if busy or answer.status == 200 else min(pause * 2, 16.0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)


async def request(
    client: aiohttp.ClientSession, times: dict[str, list[float]], name: str, method: str, url: str, **options: object
) -> tuple[str, str]:
    began = time.perf_counter()
    async with client.request(method, url, **options) as answer:  # type: ignore[arg-type]
        page = await answer.text()
        assert answer.status == 200, (answer.status, page[:300])
    times[name].append(time.perf_counter() - began)
    return str(answer.url), page


def first_group(pattern: str, page: str) -> str:
    match = re.search(pattern, page)
    assert match, page[:300]
    return match[1]


def percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p50, p95, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3 for part in (0.5, 0.95, 0.99))
    return f"p50 {p50:.0f} ms, p95 {p95:.0f} ms, p99 {p99:.0f} ms"


@contextlib.contextmanager
def database() -> Iterator[str]:
    import psycopg

    with psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{DATABASE}"')
        try:
            yield f"postgresql://postgres@127.0.0.1:5432/{DATABASE}"
        finally:
            server.execute(f'DROP DATABASE "{DATABASE}" WITH (FORCE)')


def wait_until_folded(url: str) -> None:
    """Wait until no session is due and no worker holds a lease, so that the figures include the last summaries."""
    import psycopg

    deadline = time.monotonic() + PATIENCE
    unfinished = "SELECT count(*) FROM convmemory_session WHERE due_since IS NOT NULL OR lease_token <> ''"
    with psycopg.connect(url, autocommit=True) as connection:
        while sessions := connection.execute(unfinished).fetchall()[0][0]:
            if time.monotonic() > deadline:
                raise SystemExit(f"After {PATIENCE} s, the worker has not finished {sessions} sessions.")
            # The worker folds meanwhile. Nothing tells this process of its end.
            time.sleep(0.2)


def count_messages(url: str, expected: int) -> None:
    import psycopg

    with psycopg.connect(url) as connection:
        [stored] = connection.execute("SELECT count(*) FROM convmemory_message").fetchone() or [0]
    if stored != expected:
        raise SystemExit(f"{stored} messages are stored, but {expected} were sent and received.")


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    """Run a command, and print at its end how long it kept a processor busy."""
    process = subprocess.Popen(command, cwd=EXAMPLE, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{command[2]}: {seconds:.0f} s of a processor")


if __name__ == "__main__":
    main()
