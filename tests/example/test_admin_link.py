"""A conversation of the example leads staff who may view sessions to its page in the admin."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.example.conftest import begin, served
from tests.test_example_project import PROJECT, environment

if TYPE_CHECKING:
    from playwright.sync_api import Page

USERS = """
from django.contrib.auth.models import Permission, User
for name, is_staff, permissions in [
    ("agent", True, ["view_session"]), ("editor", True, ["view_message"]), ("guest", False, ["view_session"])
]:
    user = User.objects.create_user(name, password=name, is_staff=is_staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
"""


@pytest.fixture(scope="module")
def staffed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site with users of several kinds."""
    folder = tmp_path_factory.mktemp("staffed")
    with served(folder) as site:
        command = [sys.executable, "manage.py", "shell", "-c", USERS]
        subprocess.run(command, cwd=PROJECT, env=environment(folder), check=True)
        yield site


@pytest.mark.parametrize(("name", "linked"), [("agent", True), ("editor", False), ("guest", False)])
def test_staff_who_may_view_sessions_have_a_link_to_the_admin(
    staffed: str, page: Page, name: str, linked: bool
) -> None:
    page.goto(f"{staffed}/sign-in/")
    page.fill("#id_username", name)
    page.fill("#id_password", name)
    page.locator("form.login button").click()
    page.wait_for_url(f"{staffed}/")
    begin(page, staffed, "I am allergic to peanuts.")
    link = page.get_by_role("link", name="Open in the admin")
    assert link.count() == linked
    if linked:
        link.click()
        page.wait_for_url("**/admin/convmemory/session/*/change/")
        assert "I am allergic to peanuts." in page.locator("#timeline").inner_text()
