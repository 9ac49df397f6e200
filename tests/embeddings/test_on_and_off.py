"""Turning embeddings on and off, as the page says, and with the app left out of ``INSTALLED_APPS``."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests import processes
from tests.openai_server import OpenAIServer

pytestmark = pytest.mark.slow

SETTINGS = """
from tests.settings import *

DATABASES = {"default": DATABASES["default"] | {"ENGINE": "django.db.backends.sqlite3", "NAME": %(database)r}}
DATABASES["default"]["OPTIONS"] = {}
if not %(app)r:
    INSTALLED_APPS.remove("django_convmemory.contrib.embeddings")
CONVMEMORY["default"]["RERANKER"] = %(reranker)r
"""
MODULES = """
from django.core.management import call_command
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session

memory = memories["default"]
"""
TURN_ON = """
call_command("migrate", verbosity=0)
for key in "ab":
    if not memory.history(key):
        memory.append(key, *(ChatMessage.human(f"heron number {number}") for number in range(3)))
call_command("convmemory_embed")
"""
USE = """
memory.redact("a", memory.search("heron", session="a")[0].position)
print(len(memory.search("heron", session="a")), "found.")
"""
REMOVE = 'call_command("convmemory_embed", "--remove")\n'
DROP = 'call_command("migrate", "convmemory_embeddings", "zero")\n'
DELETE = 'print(Session.objects.get(key="a").delete()[0], "deleted.")\n'


class Site:
    """A project in a folder of its own, whose settings change."""

    def __init__(self, folder: pathlib.Path, provider: OpenAIServer) -> None:
        self.folder = folder
        options = {"model": "small", "base_url": provider.base_url, "api_key": "none", "timeout": 20.0}
        path = "django_convmemory.contrib.embeddings.reranker.EmbeddingReranker"
        self.reranker = {"BACKEND": path, "OPTIONS": options}

    def deploy(self, *, app: bool, reranker: bool) -> None:
        values = {"database": f"{self.folder}/db", "app": app, "reranker": self.reranker if reranker else None}
        (self.folder / "site_settings.py").write_text(SETTINGS % values)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        paths = {"DJANGO_SETTINGS_MODULE": "site_settings", "PYTHONPATH": f"{self.folder}{os.pathsep}{processes.ROOT}"}
        return processes.run([sys.executable, "-m", "django", *arguments], self.folder, {**os.environ, **paths})

    def shell(self, *code: str) -> subprocess.CompletedProcess[str]:
        return self.run("shell", "--verbosity", "0", "--command", MODULES + "".join(code))


@pytest.fixture
def own_site(tmp_path: pathlib.Path, provider: OpenAIServer) -> Site:
    return Site(tmp_path, provider)


@pytest.mark.parametrize(("remove", "removed"), [((REMOVE, USE), "5 embeddings removed."), ((DROP,), "OK")])
def test_embeddings_are_turned_off_and_on_again_without_an_error(
    own_site: Site, remove: tuple[str, ...], removed: str
) -> None:
    def works(*code: str) -> str:
        done = own_site.shell(*code)
        assert done.returncode == 0, done.stdout
        return done.stdout

    own_site.deploy(app=True, reranker=True)
    assert "6 messages embedded." in works(TURN_ON)
    own_site.deploy(app=True, reranker=False)
    assert removed in works(USE, *remove)
    own_site.deploy(app=False, reranker=False)
    assert "deleted." in works(USE, DELETE)
    own_site.deploy(app=True, reranker=True)
    assert "6 messages embedded." in works(TURN_ON)


def test_a_reranker_without_its_app_is_an_error_of_every_use(own_site: Site) -> None:
    own_site.deploy(app=False, reranker=True)
    hint = 'Add "django_convmemory.contrib.embeddings" to INSTALLED_APPS.'
    check, use = own_site.run("check"), own_site.shell(USE)
    assert "(convmemory.E015)" in check.stdout
    assert f"HINT: {hint}" in check.stdout
    assert f"cannot be imported. {hint}" in use.stdout
    assert check.returncode == use.returncode == 1
    unchecked = own_site.run("makemigrations", "--dry-run", "--skip-checks")
    assert "No changes detected" in unchecked.stdout
