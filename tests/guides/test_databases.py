"""The set-ups of docs/guides/databases.md work on real databases."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests import processes, servers
from tests.guides.test_pages import PAGES, code_of

pytestmark = [pytest.mark.slow, pytest.mark.vendors]

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = """
DATABASES = {"default": %r}
SECRET_KEY = "none"
USE_TZ = True
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "mysite.urls"
"""
URLS = """
from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("api/", include("django_convmemory.api.urls"))]
"""


class Site:
    """A project in a folder, with the databases ``default`` and the one that the page adds."""

    def __init__(
        self, folder: pathlib.Path, databases: dict[str, dict[str, Any]], *modules: str, settings: str
    ) -> None:
        self.folder = folder
        package = folder / "mysite"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "urls.py").write_text(URLS)
        for name in modules:
            (package / f"{name}.py").write_text(code_of("databases", f"{name}.py"))
        names = ("INSTALLED_APPS", "MIDDLEWARE", "TEMPLATES", "CONVMEMORY", "DEFAULT_AUTO_FIELD", "STATIC_URL")
        (package / "settings.py").write_text(
            f"from tests.settings import {', '.join(names)}\n"
            + SETTINGS % databases["default"]
            + settings
            + "".join(f"DATABASES[{alias!r}] = {entry!r}\n" for alias, entry in databases.items())
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"DJANGO_SETTINGS_MODULE": "mysite.settings", "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}"}
        return processes.run([sys.executable, *arguments], self.folder, {**os.environ, **environment})

    def manage(self, *arguments: str) -> str:
        done = self.run("-m", "django", *arguments)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def python(self, code: str) -> Any:
        """Run code in the project, and return the JSON document that it prints."""
        done = self.run("-c", f"import django, json\ndjango.setup()\n{code}")
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def made(vendor: str, folder: pathlib.Path, *aliases: str) -> Iterator[dict[str, dict[str, Any]]]:
    """Make an empty database for each alias, and yield the setting ``DATABASES``."""
    if vendor == "sqlite":
        options = {"init_command": "PRAGMA journal_mode=WAL;", "transaction_mode": "IMMEDIATE", "timeout": 20}
        engine = "django.db.backends.sqlite3"
        yield {
            alias: {"ENGINE": engine, "NAME": str(folder / f"{alias}.sqlite3"), "OPTIONS": options} for alias in aliases
        }
        return
    import psycopg

    if reason := servers.why_absent(vendor):
        (pytest.fail if servers.REQUIRED else pytest.skip)(f"{vendor} is not available: {reason}")
    names = {alias: f"test_{alias}_{uuid.uuid4().hex}" for alias in aliases}
    with psycopg.connect(servers.POSTGRESQL, dbname="postgres", autocommit=True) as server:
        for name in names.values():
            server.execute(f'CREATE DATABASE "{name}"'.encode())
        try:
            entry = {"ENGINE": "django.db.backends.postgresql", **servers.django_database(servers.POSTGRESQL)}
            yield {alias: {**entry, "NAME": name} for alias, name in names.items()}
        finally:
            for name in names.values():
                server.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture(params=["sqlite", "postgresql"])
def separate(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Site]:
    """The page's site with a database for the conversations."""
    with made(request.param, tmp_path, "default", "conversations") as databases:
        settings = code_of("databases", "settings.py")
        settings += 'CONVMEMORY_API = {"SCOPE": "mysite.conversations.SeparateScope"}\n'
        assert '`CONVMEMORY_API = {"SCOPE": "mysite.conversations.SeparateScope"}`' in PAGES["databases"]
        yield Site(tmp_path, databases, "routers", "conversations", settings=settings)


TALK = """
from django.contrib.auth.models import User
from django.test import Client
from django_convmemory import exceptions, models
from mysite.conversations import conversation

ann = User.objects.create_superuser("ann")
session = conversation(ann)
while not session.append({"role": "user", "content": "In this place we see a castle and a museum. " * 10}).due:
    pass
outcome = session.compact()
client = Client()
client.force_login(ann)
listed = client.get("/api/sessions/").json()["results"]
created = client.post("/api/sessions/", {"key": "second"}, content_type="application/json").status_code
paths = ("", "?q=main", "?q=ann", f"{models.Session.objects.first().pk}/change/")
pages = [client.get(f"/admin/convmemory/session/{path}").status_code for path in paths]
try:
    conversation(ann).memory.session("main", owner=ann).append({"role": "user", "content": "hello"})
    refused = ""
except exceptions.InvalidSession as error:
    refused = str(error)
fork = session.fork(at=1, key="copy")
before = models.Session.objects.count()
others = [models.Session.objects.using("default").count(), User.objects.using("conversations").count()]
ann.delete()
print(json.dumps([outcome, len(listed), created, pages, refused, before, others, models.Session.objects.count()]))
"""


def test_conversations_in_a_database_of_their_own(separate: Site) -> None:
    assert "no issues" in separate.manage("check")
    separate.manage("migrate")
    separate.manage("migrate", "--database", "conversations")

    outcome, listed, created, pages, refused, before, others, after = separate.python(TALK)

    assert (outcome, listed, created) == ("published", 1, 201)
    assert pages == [200] * 4
    assert "There is no user" in refused
    assert (before, others, after) == (3, [0, 0], 0)
    assert "Nothing is wrong" in separate.manage("convmemory_check")


ROUTER = """
class ReplicaRouter:
    def db_for_read(self, model, **hints):
        return "replica" if model._meta.app_label == "convmemory" else "default"

    def db_for_write(self, model, **hints):
        return "default"

    def allow_relation(self, first, second, **hints):
        return True
"""

READ = """
import io
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext, setup_test_environment
from django_convmemory.memory import memories
from django_convmemory.models import Session

setup_test_environment()
read_in_replica = CaptureQueriesContext(connections["replica"])
read_in_replica.__enter__()
ann = User.objects.create_superuser("ann")
client = Client()
client.force_login(ann)
memory = memories["default"]
session = memory.session("main", owner=ann)
while not session.append({"role": "user", "content": "In this place we see a castle and a museum. " * 10}).due:
    pass
outcome = session.compact()
row = Session.objects.using("default").get()
address = f"/api/sessions/{row.public_id}/"
exported = io.StringIO()
call_command("convmemory_export", stdout=exported)
call_command("convmemory_check", stdout=io.StringIO())
call_command("check", stdout=io.StringIO())
seen = {
    "history": len(session.history()),
    "search": len(session.search("castle")),
    "search of many": len(memory.search("castle", owner=ann)),
    "load": len(session.load()),
    "recall": len(session.load(recall="castle")),
    "sessions": len(client.get("/api/sessions/").json()["results"]),
    "messages": len(client.get(address + "messages/").json()["results"]),
    "search over HTTP": len(client.get(address + "search/?q=castle").json()["results"]),
    "export over HTTP": len(b"".join(client.get(address + "export/"))),
    "export": len(exported.getvalue()),
    "admin": len(client.get("/admin/convmemory/session/").context["cl"].result_list),
    "admin's export": len(b"".join(client.get(f"/admin/convmemory/session/{row.pk}/export/"))),
}
print(json.dumps([outcome, seen, [query["sql"] for query in read_in_replica if "convmemory" in query["sql"]]]))
"""


def test_all_reads_go_to_the_database_that_the_router_gives_for_writing(tmp_path: pathlib.Path) -> None:
    with made("sqlite", tmp_path, "default", "replica") as databases:
        site = Site(tmp_path, databases, settings='DATABASE_ROUTERS = ["mysite.routers.ReplicaRouter"]\n')
        (tmp_path / "mysite" / "routers.py").write_text(ROUTER)
        site.manage("migrate")

        outcome, seen, read_in_replica = site.python(READ)

    assert outcome == "published"
    assert all(seen.values()), seen
    assert read_in_replica == []
