"""Measures the commands that read or write everything: ``python -m benchmarks.large_jobs``.

Fills a database of the local PostgreSQL with sessions of a hundred messages, and runs one command after the other in a
process of its own. Meanwhile a site appends twenty messages a second to sessions at random. Prints for each command
the messages a second, the peak memory of its process, and the longest append. ``--commands`` names some of them: all of
them take two hours for ten million messages. The databases are dropped at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import psycopg

ROOT = pathlib.Path(__file__).parents[2]
MESSAGES_EACH = 100
OWNERS = 50
COMMANDS = ("check", "recount", "reindex", "export", "erase", "prune", "import")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_jobs", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS, help="(default: all)")
    arguments = parser.parse_args()
    wanted = set(arguments.commands)
    if "import" in wanted and "export" not in wanted:
        parser.error("--commands: import needs the file of export.")
    sessions = arguments.messages // MESSAGES_EACH
    messages, of_one = sessions * MESSAGES_EACH, sessions // OWNERS * MESSAGES_EACH
    name = f"bench_jobs_{os.getpid()}"
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.admin_pages.settings"
    with tempfile.TemporaryDirectory() as folder, database(name), database(f"{name}_copy"):
        path = pathlib.Path(folder) / "conversations.jsonl"
        os.environ["BENCH_DATABASE"] = name
        python("benchmarks.large_jobs.filling", "sessions", str(sessions), str(OWNERS))
        with site() as longest:
            for command, count, options in (
                ("check", messages, []),
                ("recount", messages, ["--recount"]),
                ("reindex", messages, ["--reindex"]),
                ("export", messages, ["--output", str(path)]),
                ("erase", of_one, ["--owner", "user1", "--no-input"]),
                ("prune", messages - of_one if "erase" in wanted else messages, ["--inactive-for", "1m"]),
            ):
                if command not in wanted:
                    continue
                if command in ("recount", "reindex"):
                    python("benchmarks.large_jobs.filling", f"to-{command}")
                name = "check" if command in ("recount", "reindex") else command
                run(longest, count, f"convmemory_{name}", *options)
        if "export" in wanted:
            print(f"The export has {path.stat().st_size / 1e6:,.0f} MB.")
        if "import" in wanted:
            os.environ["BENCH_DATABASE"] = f"{name}_copy"
            python("benchmarks.large_jobs.filling", "users", str(OWNERS))
            run(None, messages, "convmemory_import", str(path))


@contextlib.contextmanager
def database(name: str) -> Iterator[None]:
    with psycopg.connect("postgresql://postgres@127.0.0.1:5432/postgres", autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            yield
        finally:
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def python(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, check=True)


@contextlib.contextmanager
def site() -> Iterator[subprocess.Popen[str]]:
    """Run the site. It answers each line on its input with the longest append since the last one, in seconds."""
    command = [sys.executable, "-m", "benchmarks.large_jobs.site"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def longest_append(site: subprocess.Popen[str]) -> float:
    assert site.stdin is not None
    assert site.stdout is not None
    print(file=site.stdin, flush=True)
    return float(site.stdout.readline())


def run(site: subprocess.Popen[str] | None, messages: int, *command: str) -> None:
    if site is not None:
        longest_append(site)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "django", *command, "--verbosity", "0"], cwd=ROOT)
    # This process is small. A child's peak memory is never below that of its parent when it was started.
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    if status:
        raise SystemExit(f"{command[0]} has failed. See its output above.")
    print(
        f"{' '.join(command[:2]):<30} {seconds:8.1f} s, {messages / seconds:9,.0f} messages a second, "
        f"{usage.ru_maxrss / 1024:6.1f} MB of memory",
        "" if site is None else f", longest append {longest_append(site) * 1e3:6.0f} ms",
        sep="",
        flush=True,
    )


if __name__ == "__main__":
    main()
