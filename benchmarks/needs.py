"""Checks that everything that ``make bench`` needs is present: ``python -m benchmarks.needs``.

``make bench`` takes about an hour, so it runs this check first.
"""

from __future__ import annotations

import shutil
import socket
import sys

import psycopg

from benchmarks.growth.__main__ import SERVER

# Bytes of the tables of ten million messages, and of their indexes during the build.
DISK = 20 * 10**9


def missing() -> list[str]:
    problems = []
    try:
        with psycopg.connect(SERVER, autocommit=True) as server:
            [folder] = server.execute("SHOW data_directory").fetchone() or ("",)
            try:
                free = shutil.disk_usage(folder).free
            except OSError:  # The folder is not visible to this process.
                free = DISK
            if free < DISK:
                problems.append(f"{DISK / 1e9:.0f} GB free in {folder}, which has {free / 1e9:.0f} GB free")
    except psycopg.OperationalError as error:
        problems.append(f"PostgreSQL at {SERVER}: {error}")
    try:
        socket.create_connection(("127.0.0.1", 6379), timeout=5).close()
    except OSError as error:
        problems.append(f"Redis at 127.0.0.1:6379: {error}")
    return problems


if __name__ == "__main__":
    if problems := missing():
        sys.exit("\n".join(f"Missing: {problem}." for problem in problems))
    print("Everything is present.")
