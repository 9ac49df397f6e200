from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests import servers as required
from tests.chaos import servers
from tests.howto.test_databases import URLS, Site
from tests.howto.test_pages import code_of
from tests.replicas.standby import Standby, catch_up, go_on

MONITORING = 'urlpatterns.append(path("monitoring/", include("django_convmemory.monitoring.urls")))\n'


class Replicated(NamedTuple):
    """A site of the page docs/howto/databases.md, with its database and a streaming replica."""

    folder: pathlib.Path
    primary: servers.PostgreSQL
    replica: Standby
    site: Site

    def catch_up(self) -> None:
        catch_up(self.primary, self.replica)


@pytest.fixture(scope="module")
def clusters() -> Iterator[Replicated]:
    """A site whose database has a streaming replica. Both servers are stopped and deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="convmemory-replicas-") as path:
        folder = pathlib.Path(path)
        try:
            with servers.PostgreSQL(folder) as primary, Standby(folder, primary) as replica:
                settings = code_of("databases", "settings_production.py")
                settings += f"DATABASES['replica'] |= {replica.database()!r}\n"
                project = folder / "site"
                project.mkdir()
                site = Site(project, {"default": primary.database()}, "replicas", settings=settings)
                (project / "mysite" / "urls.py").write_text(URLS + MONITORING)
                site.manage("migrate")
                yield Replicated(folder, primary, replica, site)
        except servers.Absent as absent:
            (pytest.fail if required.REQUIRED else pytest.skip)(str(absent))


@pytest.fixture
def replicated(clusters: Replicated) -> Replicated:
    """The site with the conversations ``main`` and ``other``, and with a replica that has caught up."""
    go_on(clusters.replica)
    clusters.site.python("from tests.replicas import site\nsite.begin('main', 'other')\nsite.report(None)")
    clusters.catch_up()
    return clusters
