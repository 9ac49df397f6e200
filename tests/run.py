"""Run a tier of the tests: ``python -m tests.run quick|all|release [options of pytest]``. See tests/tiers.py.

The tests run on each database of the tier that is available. To choose databases, name them in
``CONVMEMORY_TEST_DATABASES``, separated by spaces.
"""

import os
import subprocess
import sys

import pytest

from tests import servers, tiers

DATABASES = {
    tiers.QUICK: ("sqlite",),
    tiers.ALL: ("sqlite", "postgresql", "mariadb"),
    tiers.RELEASE: ("sqlite", "postgresql", "mariadb"),
}


def main(tier: str, pytest_args: list[str]) -> int:
    absent = {} if tier == tiers.QUICK else {name: why for name in servers.ALL if (why := servers.why_absent(name))}
    for name, why in absent.items():
        print(f"{name}: NOT AVAILABLE ({why})")
    if absent and servers.REQUIRED:
        print(f"CONVMEMORY_TEST_SERVICES is all, but not available: {', '.join(absent)}.", file=sys.stderr)
        return 1

    chosen = os.environ.get("CONVMEMORY_TEST_DATABASES", "").split() or DATABASES[tier]
    if unknown := set(chosen) - set(DATABASES[tier]):
        print(
            f"CONVMEMORY_TEST_DATABASES names databases that are not in this tier: {', '.join(unknown)}.",
            file=sys.stderr,
        )
        return 1
    failed = []
    for database in [name for name in chosen if name not in absent]:
        print(f"\nTests on {database}", flush=True)
        command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", "--tier", tier, *pytest_args]
        environ = {"CONVMEMORY_TEST_DATABASE": database, servers.ABSENT: ", ".join(absent)}
        code = subprocess.call(command, env=os.environ | environ)
        if code == pytest.ExitCode.NO_TESTS_COLLECTED and pytest_args:
            print(f"This is no failure: none of the tests that you chose runs on {database} in the tier {tier}.")
        elif code != 0:
            failed.append(database)
    if failed:
        print(f"Tests failed on {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
