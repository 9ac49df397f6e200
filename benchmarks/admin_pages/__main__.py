"""Measures the admin's pages with millions of rows: ``python -m benchmarks.admin_pages``.

Creates a database on the local PostgreSQL, fills it, and drops it at the end. With ``--keep`` the database stays and is
used again. Prints for each page the median and the longest time in the server, in milliseconds, and the number of
statements.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import django

PAGES = {
    "list": "",
    "list, page 100": "?p=100",
    "list, one memory": "?alias=default",
    "list, failing": "?state=failing",
    "list, due": "?state=due",
    "search: an owner": "?q=user500",
    "search: owner/key": "?q=user500/chat 500",
    "search: a public id": "?q={public_id}",
    "search: nothing there": "?q=nobody",
    "search: words that are said": "?q=the weather in Lisbon",
    "search: owner/words": "?q=user500/weather in Lisbon",
    "session of 10 messages": "{short}/change/",
    "long session": "{long}/change/",
    "its middle": "{long}/change/?before=50000",
    "its messages with words": "{long}/change/?find=weather in Lisbon",
    "its messages without words": "{long}/change/?find=nobody said this",
    "session of 10 messages, those": "{short}/change/?before=11",
    "long session, its first 10": "{long}/change/?before=11",
    "session of 200 messages": "{medium}/change/",
    "overview": "overview/",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admin_pages", description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, default=1_000_000, help="of ten messages each")
    parser.add_argument("--long", type=int, default=100_000, help="the messages of the long session")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keep", action="store_true", help="keep the database, or use the one kept before")
    arguments = parser.parse_args()
    name = f"bench_admin_{arguments.sessions}"
    os.environ |= {"DJANGO_SETTINGS_MODULE": "benchmarks.admin_pages.settings", "BENCH_DATABASE": name}

    import psycopg

    with psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as server:
        exists = server.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
        if not exists:
            server.execute(f'CREATE DATABASE "{name}"')
        django.setup()
        if not exists:
            fill(arguments)
        measure(arguments)
        if not arguments.keep:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def fill(arguments: argparse.Namespace) -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command

    from benchmarks import tables

    began = time.perf_counter()
    call_command("migrate", verbosity=0)
    User.objects.create_superuser("staff")
    tables.conversation("short", 10)
    tables.conversation("medium", 200)
    tables.conversation("long", arguments.long)
    tables.fill(arguments.sessions)
    print(f"filled in {time.perf_counter() - began:.0f} s")


def measure(arguments: argparse.Namespace) -> None:
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from django_convmemory import models

    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.get(username="staff"))
    values = {
        "public_id": str(models.Session.objects.order_by("pk").last().public_id),  # type: ignore[union-attr]
        "short": models.Session.objects.get(key="short").pk,
        "medium": models.Session.objects.get(key="medium").pk,
        "long": models.Session.objects.get(key="long").pk,
    }
    print(f"{models.Session.objects.count():,} sessions, {models.Message.objects.count():,} messages")
    times: dict[str, list[float]] = {page: [] for page in PAGES}
    statements = {}
    for page, path in PAGES.items():
        with CaptureQueriesContext(connection) as captured:
            response = client.get("/admin/convmemory/session/" + path.format(**values))
            assert response.status_code == 200, (page, response)
            response.getvalue()
        statements[page] = len(captured)
    for _ in range(arguments.rounds):
        for page, path in PAGES.items():
            began = time.perf_counter()
            client.get("/admin/convmemory/session/" + path.format(**values)).getvalue()  # renders the page
            times[page].append((time.perf_counter() - began) * 1e3)
    for page, page_times in times.items():
        median, longest = statistics.median(page_times), max(page_times)
        print(f"{page:<30} {median:7.1f} ms, {longest:7.1f} at most, {statements[page]:3d} statements")
    for many, few in (
        ("long session", "session of 10 messages"),
        ("long session, its first 10", "session of 10 messages, those"),
        ("long session", "session of 200 messages"),
    ):
        print(f"{many} / {few}: {statistics.median(times[many]) / statistics.median(times[few]):.2f}")


if __name__ == "__main__":
    main()
