"""Holds event streams open on one process: ``python -m benchmarks.event_streams``.

Starts uvicorn with one worker on the local PostgreSQL, in a database that is dropped at the end. Each stream follows a
conversation of its own. First nothing happens for a while, and then messages are stored at a steady rate.

Prints what the server takes: statements a second, processor time, memory, threads, and connections to the database. It
also prints the time from the end of an append to its event in the client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import random
import threading
import time
from typing import Any

import aiohttp
import django
import psycopg

from benchmarks.http_api.__main__ import DATABASE, database, free_port, percentiles, running, wait_for


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.event_streams", description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0, help="the time of each of the two measurements")
    parser.add_argument(
        "--rate",
        type=float,
        default=20.0,
        help="appends a second in the second measurement; 0 stores one in each conversation, as fast as possible",
    )
    arguments = parser.parse_args()
    os.environ |= {"BENCH_DATABASE": DATABASE, "DJANGO_SETTINGS_MODULE": "benchmarks.event_streams.settings"}
    with database(), contextlib.ExitStack() as stack:
        cookie, ids = prepare(arguments.streams)
        port = free_port()
        command = ["uvicorn", "--factory", "django.core.asgi:get_asgi_application", "--port", str(port)]
        server = stack.enter_context(running(*command, "--log-level", "error"))
        wait_for(port)
        asyncio.run(measure(server.pid, f"http://127.0.0.1:{port}", cookie, ids, arguments))


def prepare(count: int) -> tuple[str, dict[int, str]]:
    """Create a user and the conversations. Return the user's cookie, and the conversations' public ids."""
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    from django_convmemory import models
    from django_convmemory.memory import memories
    from django_convmemory.messages import ChatMessage

    call_command("migrate", verbosity=0)
    anna = User.objects.create_user("anna")
    for number in range(count):
        memories["wide"].session(str(number), owner=anna).append(ChatMessage.human("Hello."))
    client = Client()
    client.force_login(anna)
    ids = models.Session.objects.values_list("pk", "public_id")
    return client.cookies["sessionid"].value, {pk: str(public_id) for pk, public_id in ids}


async def measure(pid: int, root: str, cookie: str, ids: dict[int, str], arguments: argparse.Namespace) -> None:
    received: dict[tuple[int, int], float] = {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, cookies={"sessionid": cookie}) as client:
        async with client.get(f"{root}/api/sessions/") as response:  # The process has imported what it needs.
            assert response.status == 200
        before = Usage(pid)
        opened = asyncio.Semaphore(0)
        followers = [
            asyncio.create_task(follow(client, f"{root}/api/sessions/{public_id}/events/", pk, received, opened))
            for pk, public_id in ids.items()
        ]
        async with asyncio.timeout(120):
            for _ in followers:
                await opened.acquire()
        await asyncio.sleep(5)
        after = Usage(pid)
        print(f"{len(followers)} streams, {after.connections} connections to the database, {after.threads} threads")
        per_stream = (after.memory - before.memory) / len(followers)
        print(f"memory: {after.memory / 1024:.0f} MB, {per_stream:.0f} kB for each stream")

        await asyncio.sleep(arguments.seconds)
        quiet = Usage(pid)
        print(f"nothing happens: {quiet.since(after)}")

        stored: dict[tuple[int, int], float] = {}
        writer = threading.Thread(target=write, args=(list(ids), stored, arguments))
        writer.start()
        await asyncio.to_thread(writer.join)
        await asyncio.sleep(10)
        await asyncio.gather(*(follower for follower in followers if follower.done()))
        print(f"{arguments.rate:.0f} appends a second: {Usage(pid).since(quiet)}, less those of the appends")
        delays = [received[key] - moment for key, moment in stored.items()]
        print(f"{len(stored)} appends, all received; from the append to the event: {percentiles(delays)}")
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


async def follow(
    client: aiohttp.ClientSession,
    url: str,
    pk: int,
    received: dict[tuple[int, int], float],
    opened: asyncio.Semaphore,
) -> None:
    """Follow a conversation, and connect again when its stream ends."""
    last = ""
    while True:
        async with client.get(url, headers={"Last-Event-ID": last} if last else {}) as response:
            assert response.status == 200, await response.text()
            name = ""
            async for line in response.content:
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    last = value
                elif field == "data" and name == "reset":
                    opened.release()
                elif field == "data" and name == "message":
                    received[pk, json.loads(value)["position"]] = time.monotonic()
        await asyncio.sleep(1)


def write(ids: list[int], stored: dict[tuple[int, int], float], arguments: argparse.Namespace) -> None:
    """Store messages at the rate, each in a random conversation, or one in each."""
    from django_convmemory import models
    from django_convmemory.memory import memories
    from django_convmemory.messages import ChatMessage

    rows: Any = models.Session.objects.in_bulk(ids)
    began = time.monotonic()
    chosen = random.choices(ids, k=int(arguments.rate * arguments.seconds)) if arguments.rate else ids
    for number, pk in enumerate(chosen):
        if arguments.rate:
            # The next append is due at this moment.
            time.sleep(max(0.0, began + number / arguments.rate - time.monotonic()))
        receipt = memories["wide"].append(rows[pk], ChatMessage.human("What is new?"))
        stored[pk, receipt.last_position] = time.monotonic()


class Usage:
    """What a process has used until now, on Linux: memory in kB, and the processor in seconds."""

    def __init__(self, pid: int) -> None:
        self.time = time.monotonic()
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        values = dict(line.split(":", 1) for line in status.splitlines())
        self.memory = int(values["VmRSS"].split()[0])
        self.threads = int(values["Threads"])
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.processor = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        with psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres") as connection:
            row: Any = connection.execute(
                "SELECT xact_commit + xact_rollback, numbackends FROM pg_stat_database WHERE datname = %s", [DATABASE]
            ).fetchone()
        # Each statement is a transaction of its own. One of the connections is that of the benchmark.
        self.statements, self.connections = row[0], row[1] - 1

    def since(self, earlier: Usage) -> str:
        seconds = self.time - earlier.time
        statements = (self.statements - earlier.statements) / seconds
        processor = 100 * (self.processor - earlier.processor) / seconds
        return f"{statements:.1f} statements a second, {processor:.1f} % of a core"


if __name__ == "__main__":
    main()
