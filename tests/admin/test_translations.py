"""The catalogues are complete and compiled."""

from __future__ import annotations

import gettext
import io
import pathlib
import shutil
import subprocess

import pytest
from django.core.management import call_command
from django.utils import translation

import django_convmemory
from tests import servers

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


def test_there_are_german_and_chinese() -> None:
    assert LANGUAGES == ["de", "zh_Hans"]
    with translation.override("de"):
        assert translation.gettext("Compact now") == "Jetzt verdichten"
    with translation.override("zh-hans"):
        assert translation.gettext("Compact now") == "立即压缩"


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
