"""Says what of the needs of ``make bench`` is not there, before an hour is spent: ``python -m benchmarks.needs``."""

from __future__ import annotations

import shutil
import socket
import sys

import psycopg

from benchmarks.growth.__main__ import SERVER

# Bytes: what the tables of ten million messages take, and the indexes of them while they are made.
DISK = 20 * 10**9


def missing() -> list[str]:
    found = []
    try:
        with psycopg.connect(SERVER, autocommit=True) as server:
            [folder] = server.execute("SHOW data_directory").fetchone() or ("",)
            try:
                free = shutil.disk_usage(folder).free
            except OSError:  # on a disk that this process does not see
                free = DISK
            if free < DISK:
                found.append(f"{DISK / 1e9:.0f} GB free in {folder}, where there are {free / 1e9:.0f}")
    except psycopg.OperationalError as error:
        found.append(f"PostgreSQL at {SERVER}: {error}")
    try:
        socket.create_connection(("127.0.0.1", 6379), timeout=5).close()
    except OSError as error:
        found.append(f"Redis at 127.0.0.1:6379: {error}")
    return found


if __name__ == "__main__":
    if found := missing():
        sys.exit("\n".join(f"Missing: {one}." for one in found))
    print("All is there.")
