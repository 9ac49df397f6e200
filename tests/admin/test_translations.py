"""The catalogues are complete and compiled."""

from __future__ import annotations

import gettext
import html
import io
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.utils import translation

import django_convmemory
from django_convmemory import models
from django_convmemory.testing import ScriptedMemories
from tests import servers
from tests.admin import showcase
from tests.admin.test_sessions import LIST

PACKAGE = pathlib.Path(django_convmemory.__file__).parent
CATALOGUES = sorted(PACKAGE.glob("locale/*/LC_MESSAGES/django.po"))
LANGUAGES = [path.parts[-3] for path in CATALOGUES]


def texts(compiled: bytes) -> dict[object, str]:
    catalogue = gettext.GNUTranslations(io.BytesIO(compiled))._catalog  # type: ignore[attr-defined]
    return {name: text for name, text in catalogue.items() if name}


@pytest.fixture
def tools() -> None:
    if shutil.which("msgfmt") is None or shutil.which("xgettext") is None:
        if servers.REQUIRED:
            pytest.fail("gettext's tools are required but not there.")
        pytest.skip("gettext's tools are not there.")


@pytest.mark.parametrize("language", ["de", "zh-hans"])
def test_the_pages_have_no_english_text_that_is_translated(
    language: str, convmemory: ScriptedMemories, settings: Any, admin_client: Client
) -> None:
    settings.LANGUAGE_CODE = language
    convmemory.allow_unused_replies = True
    showcase.trip(User.objects.create_user("maya"), convmemory)
    showcase.others()
    showcase.outage()
    catalogue = PACKAGE / f"locale/{translation.to_locale(language)}/LC_MESSAGES/django.mo"
    ours = texts(catalogue.read_bytes())
    english = {name for name, text in ours.items() if isinstance(name, str) and "%" not in name and name != text}
    session = models.Session.objects.get(key="portugal-in-may")
    for path in ("", "overview/", "?q=shellfish", f"{session.pk}/change/?find=shellfish"):
        content = admin_client.get(LIST + path).content.decode().partition('<div id="content"')[2]
        shown = {html.unescape(text.strip()) for text in re.findall(r">([^<>]+)<", content)}
        # Roles are not translated.
        assert english & shown - {"system"} == set(), path


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("catalogue", CATALOGUES, ids=LANGUAGES)
def test_a_catalogue_is_complete_and_compiled(
    catalogue: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(PACKAGE, tmp_path / "package", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(copied)
    call_command("makemessages", locale=[catalogue.parts[-3]], verbosity=0)
    collected = copied / catalogue.relative_to(PACKAGE)
    done = subprocess.run(
        ["msgfmt", "--check-format", "--statistics", "-o", tmp_path / "new.mo", collected],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "untranslated" not in done.stderr, "Run 'make messages', and translate."
    assert "fuzzy" not in done.stderr
    compiled = catalogue.with_suffix(".mo").read_bytes()
    assert texts(compiled) == texts((tmp_path / "new.mo").read_bytes()), "Run 'make messages'."
