"""Run the tests on every available database: ``python -m tests.run [options of pytest]``.

All tests run on SQLite. Tests that use a database also run on the others (see conftest.py). To choose databases, name
them in ``CONVMEMORY_TEST_DATABASES``, separated by spaces.
"""

import os
import subprocess
import sys

import pytest

from tests import servers

DATABASES = ("sqlite", "postgresql", "mariadb")


def main(pytest_args: list[str]) -> int:
    absent = {name: reason for name in servers.ALL if (reason := servers.why_absent(name))}
    for name in servers.ALL:
        print(f"{name}: NOT AVAILABLE ({absent[name]})" if name in absent else f"{name}: available")
    if absent and servers.REQUIRED:
        print(f"CONVMEMORY_TEST_SERVICES is all, but not available: {', '.join(absent)}.", file=sys.stderr)
        return 1

    failed = []
    wanted = os.environ.get("CONVMEMORY_TEST_DATABASES", "").split() or DATABASES
    if unknown := set(wanted) - set(DATABASES):
        print(f"CONVMEMORY_TEST_DATABASES names unknown databases: {', '.join(unknown)}.", file=sys.stderr)
        return 1
    for database in [name for name in wanted if name not in absent]:
        print(f"\nTests on {database}", flush=True)
        command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", *pytest_args]
        environ = {"CONVMEMORY_TEST_DATABASE": database, servers.ABSENT: ", ".join(absent)}
        code = subprocess.call(command, env=os.environ | environ)
        if code == pytest.ExitCode.NO_TESTS_COLLECTED and database != "sqlite":
            print(f"This is no failure: on {database}, only tests that use a database run, and you chose none of them.")
        elif code != 0:
            failed.append(database)
    if failed:
        print(f"Tests failed on {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
