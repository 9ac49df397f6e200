"""The fixture and the mixin of the test kit in a project of a site, and the page that shows them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.test_readme import read_blocks
from tests.test_testing import ALIAS, ROOT

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

SITE_SETTINGS = f"""
SECRET_KEY = "none"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_convmemory"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
USE_TZ = True
CONVMEMORY = {{"default": {ALIAS!r}}}
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a site's settings, for the processes that are started there."""
    pytester.makepyfile(site_settings=SITE_SETTINGS)
    for name in [name for name in os.environ if name.startswith(("CONVMEMORY_", "PYTEST_XDIST_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")  # errors are not cut
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "site_settings")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(pytester.path), str(ROOT)]))
    pytester.makeini(
        "[pytest]\nfilterwarnings = error\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    return pytester


FIXTURE_TESTS = """
import pytest

from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.tasks import CeleryScheduler

TURNS = [ChatMessage.human("The cat sat on the mat. " * 8)] * 2


def forgotten():
    memory = memories["default"]
    assert isinstance(memory.model, OpenAIChatModel)
    assert isinstance(memory.scheduler, CeleryScheduler)
    assert "testing" not in OpenAIChatModel.chat.__code__.co_filename


def test_forgotten_before():
    forgotten()


@pytest.mark.django_db
def test_passes(convmemory):
    convmemory.reply("They spoke of a cat.")
    memories["default"].append("s", *TURNS)
    assert convmemory.run() == ["published"]
    assert memories["default"].load("s").summary == "They spoke of a cat."


def test_unused(convmemory):
    convmemory.reply("Nobody asks for this.")


def test_fails_once(convmemory):
    convmemory.reply("Nobody asks for this.")
    assert not "the test's own failure"


def test_skips(convmemory):
    convmemory.reply("Nobody asks for this.")
    pytest.skip()


@pytest.mark.xfail
def test_expects_to_fail(convmemory):
    convmemory.reply("Nobody asks for this.")
    assert not "the test's own failure"


@pytest.fixture
def broken(convmemory):
    convmemory.reply("Nobody asks for this.")
    raise LookupError("a fixture's own failure")


def test_with_a_broken_fixture(broken):
    pass


def test_forgotten_after(request):
    forgotten()
    plugins = request.config.pluginmanager.get_plugins()
    assert not [plugin for plugin in plugins if type(plugin).__module__ == "django_convmemory.testing"]
"""


@pytest.mark.parametrize("way", ["pytest_plugins = ['django_convmemory.testing']", "as xdist's workers import it"])
def test_the_fixture(project: pytest.Pytester, way: str) -> None:
    plugin = way.startswith("pytest_plugins")
    project.makeconftest(way if plugin else "from django_convmemory.testing import convmemory")
    project.makepyfile(test_chat=FIXTURE_TESTS)

    result = project.runpytest_subprocess(*([] if plugin else ["-n2"]), "-rEF")

    result.assert_outcomes(passed=4, failed=1, errors=2, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines_random(
        [
            "ERROR test_chat.py::test_unused - django_convmemory.testing.UnusedReplies: *",
            "ERROR test_chat.py::test_with_a_broken_fixture - LookupError: a fixture's own failure",
            "FAILED test_chat.py::test_fails_once - *",
        ]
    )


MIXIN_TESTS = """
import unittest

from django.test import SimpleTestCase, TestCase, TransactionTestCase

from django_convmemory.chat_models.openai import OpenAIChatModel
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.tasks import CeleryScheduler
from django_convmemory.testing import ConvMemoryTestMixin

TURNS = [ChatMessage.human("The cat sat on the mat. " * 8)] * 2


class Folding(ConvMemoryTestMixin):
    def test_folds(self):
        self.convmemory.reply("They spoke of a cat.")
        memories["default"].append("s", *TURNS)
        self.assertEqual(len(self.convmemory.queued), 1)
        self.assertEqual(self.convmemory.run(), ["published"])
        self.assertEqual(memories["default"].load("s").summary, "They spoke of a cat.")

    def test_subtests(self):
        for key in "abc":
            with self.subTest(key):
                self.convmemory.reply(f"They spoke of {key}.")
                memories["default"].append(key, *TURNS)
                self.assertEqual(self.convmemory.run(), ["published"])


class MixinTests(Folding, TestCase):
    pass


class LastInTheListTests(TestCase, Folding):
    pass


class TransactionTests(Folding, TransactionTestCase):
    pass


del Folding


class SimpleTests(ConvMemoryTestMixin, SimpleTestCase):
    def setUp(self):
        super().setUp()
        self.assertEqual(self.convmemory.run(), [])

    def test_unused(self):
        self.convmemory.reply("Nobody asks for this.")

    def test_unused_in_a_cleanup(self):
        self.addCleanup(self.convmemory.reply, "Nobody asks for this.")

    def test_fails_once(self):
        self.convmemory.reply("Nobody asks for this.")
        self.fail("the test's own failure")

    def test_a_subtest_fails_once(self):
        self.convmemory.reply("Nobody asks for this.")
        with self.subTest():
            self.fail("the subtest's own failure")

    def test_skips(self):
        self.convmemory.reply("Nobody asks for this.")
        self.skipTest("half way")

    @unittest.expectedFailure
    def test_expects_to_fail(self):
        self.convmemory.reply("Nobody asks for this.")
        self.fail("as expected")


class ZForgottenTests(SimpleTestCase):
    def test_is_not_affected(self):
        self.assertIsInstance(memories["default"].model, OpenAIChatModel)
        self.assertIsInstance(memories["default"].scheduler, CeleryScheduler)
        self.assertFalse(hasattr(self, "convmemory"))
"""


def test_the_mixin_without_pytest(project: pytest.Pytester) -> None:
    project.makepyfile(tests=MIXIN_TESTS, sitecustomize="import sys\nsys.modules['pytest'] = None\n")

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "django", "test", "tests"],
        cwd=project.path,
        check=False,
        capture_output=True,
        text=True,
    )

    output = ended.stderr
    assert "Ran 13 tests" in output
    assert "FAILED (failures=4, skipped=1, expected failures=1)" in output
    failed = sorted(
        line.partition(" ")[2].partition(" ")[0] for line in output.splitlines() if line.startswith("FAIL:")
    )
    assert failed == [
        "test_a_subtest_fails_once",
        "test_fails_once",
        "test_unused",
        "test_unused_in_a_cleanup",
    ]
    assert output.count("UnusedReplies: ") == 2


def test_every_block_of_the_manual_runs(project: pytest.Pytester) -> None:
    blocks = read_blocks((ROOT / "docs" / "guides" / "testing.md").read_text(encoding="utf-8"))
    assert {block.language for block in blocks} == {"python"}
    files = [block.file for block in blocks]
    assert len(set(files)) == len(files), "each block is a file of its own"
    for block in blocks:
        (project.path / block.file).write_text(block.code, encoding="utf-8")
    project.makepyfile(site_settings=SITE_SETTINGS + 'del CONVMEMORY["default"]["OPTIONS"]\n')
    with_tests = {block.file for block in blocks if "def test_" in block.code}
    assert set(files) - with_tests == {"chat.py", "conftest.py"}

    result = project.runpytest_subprocess("-v", *with_tests)

    assert result.ret == 0
    result.stdout.fnmatch_lines_random([f"{file}::*PASSED*" for file in with_tests])
