"""Celery's eager mode does what docs/howto/eager.md says."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING

import pytest
from django.core import checks
from django.db import transaction

from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session
from tests import projects
from tests.howto.test_pages import module_of
from tests.projects import project, scripted

if TYPE_CHECKING:
    from pytest_django import Settings

TURN = ChatMessage.human("A castle. " * 500)


@pytest.fixture(params=[False, True], ids=["", "propagates"])
def eager(request: pytest.FixtureRequest, settings: Settings) -> projects.Project:
    """A project with the page's setting and no broker."""
    page = module_of("eager", "settings_demo.py")
    app = request.getfixturevalue("app")
    app.app.conf.task_always_eager = page["CELERY_TASK_ALWAYS_EAGER"]
    app.app.conf.task_eager_propagates = request.param
    settings.CONVMEMORY = {"default": {"CHAT_MODEL": scripted(replies=["They saw castles."] * 3)}}
    return app  # type: ignore[no-any-return]


@pytest.fixture
def app() -> object:
    with project("") as made:
        yield made


@pytest.mark.django_db(transaction=True)
def test_the_request_folds_after_the_commit(eager: projects.Project) -> None:
    session = memories["default"].session("main")
    with transaction.atomic():
        session.append(TURN, TURN, TURN)
        assert session.load().summary is None
    assert session.load().summary == "They saw castles."


@pytest.mark.django_db(transaction=True)
def test_a_failure_does_not_fail_the_append(eager: projects.Project, settings: Settings) -> None:
    settings.CONVMEMORY = {"default": {"CHAT_MODEL": scripted(replies=[ZeroDivisionError()])}}

    assert memories["default"].session("main").append(TURN, TURN, TURN).last_position == 3

    row = Session.objects.get()
    assert "ZeroDivisionError" in row.last_error
    assert row.due_since is not None


@pytest.mark.django_db
def test_a_test_case_runs_what_waits_for_the_commit(eager: projects.Project) -> None:
    case = module_of("eager", "test_folding.py")["FoldingTests"]
    result = unittest.TestResult()

    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)

    assert (result.testsRun, result.failures, result.errors) == (1, [], [])


@pytest.mark.django_db
def test_without_the_commit_nothing_is_folded(eager: projects.Project) -> None:
    session = memories["default"].session("main")
    session.append(TURN, TURN, TURN)
    assert session.load().summary is None


@pytest.mark.django_db
def test_no_check_warns(eager: projects.Project, settings: Settings) -> None:
    assert settings.DEBUG is False
    assert found() == []
    eager.app.conf.task_always_eager = False
    assert found() == ["convmemory.W008"]


def found() -> list[str | None]:
    """The ids of this app's warnings, without those about the tests' databases."""
    ids = [message.id for message in checks.run_checks(databases=["default"])]
    return [each for each in ids if each in ("convmemory.W002", "convmemory.W008")]
