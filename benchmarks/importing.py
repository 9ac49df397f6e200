"""Measures the speed and the memory of ``convmemory_import``: ``python -m benchmarks.importing``.

Writes conversations of a hundred messages each to a file. A process imports them into a database of the local
PostgreSQL, which is dropped at the end. Prints the messages a second and the peak memory of the process, for each of
``--messages``.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
MESSAGES_EACH = 100
TEXT = "We talked about this and that, and then about the weather in Lisbon, which was fine. "


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.importing", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    import psycopg

    name = f"bench_import_{os.getpid()}"
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "benchmarks.admin_pages.settings", "BENCH_DATABASE": name}
    with (
        tempfile.TemporaryDirectory() as folder,
        psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as server,
    ):
        for messages in arguments.messages:
            path = pathlib.Path(folder) / "conversations.jsonl"
            write(path, messages)
            server.execute(f'CREATE DATABASE "{name}"')
            try:
                command = [sys.executable, "-m", "django"]
                subprocess.run([*command, "migrate", "--verbosity", "0"], cwd=ROOT, env=environment, check=True)
                began = time.perf_counter()
                process = subprocess.Popen(
                    [*command, "convmemory_import", str(path), "--verbosity", "0"], cwd=ROOT, env=environment
                )
                _, status, usage = os.wait4(process.pid, 0)
                seconds = time.perf_counter() - began
                if status:
                    raise SystemExit(f"The import failed with status {status}. See its output above.")
                with psycopg.connect(f"postgresql://postgres@127.0.0.1:5432/{name}") as filled:
                    [stored] = filled.execute("SELECT count(*) FROM convmemory_message").fetchone()  # type: ignore[misc]
                print(
                    f"{stored:>11,} messages, {path.stat().st_size / 1e6:7.1f} MB: {seconds:7.1f} s, "
                    f"{stored / seconds:7,.0f} messages a second, {usage.ru_maxrss / 1024:6.1f} MB of memory at most",
                    flush=True,
                )
            finally:
                server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def write(path: pathlib.Path, messages: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(messages // MESSAGES_EACH):
            turns = [
                {"role": "assistant" if turn % 2 else "user", "content": TEXT * (1 + turn % 3)}
                for turn in range(MESSAGES_EACH)
            ]
            file.write(json.dumps({"key": f"conversation {number}", "messages": turns}) + "\n")


if __name__ == "__main__":
    main()
