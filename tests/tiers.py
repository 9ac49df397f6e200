"""Which tests run when, and on which database.

===========  ==============================================================================================
``quick``    SQLite: everything that is not slow. For ``make test``.
``all``      What ``quick`` leaves out. PostgreSQL: everything that uses a database. MariaDB: what depends on
             the database. SQLite: slow tests that use no database, or depend on it. For ``make test-all``.
``release``  Everything, on each database. For ``make test-release``, and for pytest without ``--tier``.
===========  ==============================================================================================

A slow test that does not depend on the database runs on PostgreSQL only, or on SQLite where PostgreSQL is absent.
"""

from __future__ import annotations

import dataclasses
import os

from tests import servers

QUICK, ALL, RELEASE = TIERS = ("quick", "all", "release")

MARKERS = (
    "only_on(database): the test runs on these databases only",
    "slow: starts processes, servers or a browser, or simulates minutes; not in the quick tier",
    "vendors: depends on the database (SQL, rows, transactions), so it runs on each one in the tier `all`",
    "release: in the tier `release` only",
)

# A test that asks for one of these is slow, even without the marker.
SLOW_FIXTURES = frozenset({"broker_url", "browser", "live_server", "local_site", "page", "site"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """What the markers and the fixtures of a test say. ``database`` is whether it uses one."""

    database: bool
    only_on: tuple[str, ...]
    slow: bool
    vendors: bool
    release: bool


def runs(test: Needs, tier: str, database: str) -> bool:
    """Return whether a test runs in ``tier`` on ``database``: sqlite, postgresql or mariadb."""
    if database not in (test.only_on or ("sqlite", "postgresql", "mariadb")):
        return False
    if not test.database and not test.only_on and database != "sqlite":
        return False
    if tier == RELEASE:
        return True
    if test.release:
        return False
    if tier == QUICK:
        return database == "sqlite" and not test.slow
    if not test.database or test.vendors or test.only_on:
        return database != "sqlite" or test.slow
    return database == "postgresql" or (database == "sqlite" and test.slow and _postgresql_is_absent())


def _postgresql_is_absent() -> bool:
    return "postgresql" in os.environ.get(servers.ABSENT, "").split(", ")
