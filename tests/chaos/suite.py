"""Runs faults on every kind of site, three sites at a time: ``python -m tests.chaos.suite --runs 1000 --seed 1``.

Without ``--runs`` each fault is had once on a site of each database, which is the short form. Prints a table, in
Markdown, of what came of each kind of fault, and ends with 1 where anything was lost, doubled or wrong. With
``CONVMEMORY_TEST_SERVICES=all`` a server or another program that is not installed is a failure too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import django

from tests import servers
from tests.chaos import guard
from tests.chaos.site import ABSENT, BROKERS, DATABASE_TASKS, DATABASES

# Each database and each broker is on a site.
SHORT = (("postgresql", "redis"), ("mariadb", "rabbitmq"), ("sqlite", "redis"))
LONG = tuple((database, broker) for database in DATABASES for broker in BROKERS)
# For ``--django-tasks``, in the short form and the long one.
TASKS_SHORT = tuple((database, DATABASE_TASKS) for database, _ in SHORT)
TASKS_LONG = tuple((database, DATABASE_TASKS) for database in DATABASES)

SITES_AT_ONCE = 3

COLUMNS = ("faults of", "runs", "messages", "calls wasted", "most in a run", "recovery, median (s)", "worst (s)")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.suite", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--site", action="append", help="only these, such as 'mariadb, redis'; may be given repeatedly")
    parser.add_argument("--django-tasks", action="store_true", help="sites whose work is sent by Django's own tasks")
    parser.add_argument("--fault", action="append", help="only these; more than one may be given")
    parser.add_argument("--old", default="", help="the tag or commit whose code an old worker runs")
    arguments = parser.parse_args()
    short, long = (TASKS_SHORT, TASKS_LONG) if arguments.django_tasks else (SHORT, LONG)
    sites = long if arguments.runs else short
    if arguments.site:
        sites = tuple((database, broker) for database, broker in long if f"{database}, {broker}" in arguments.site)
    if not sites:
        parser.error(f"There is no such site. Use one of these: {'; '.join(map(', '.join, long))}.")
    with guard.guarded() as folder, concurrent.futures.ThreadPoolExecutor(SITES_AT_ONCE) as threads:
        done = [
            threads.submit(run_site, folder, database, broker, arguments, number, len(sites))
            for number, (database, broker) in enumerate(sites)
        ]
        failed = [share.result() for share in done]
        reports = [
            json.loads(line)
            for path in sorted(folder.glob("*.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        # The faults use Django's models.
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        django.setup()
        print("\n".join(summary(reports)))
    print(f"\nSeed {arguments.seed}.")
    return 1 if any(failed) else 0


def run_site(
    folder: pathlib.Path, database: str, broker: str, arguments: argparse.Namespace, number: int, sites: int
) -> bool:
    """Run one site's share of the faults, and return whether it failed."""
    runs = -(-arguments.runs // sites)
    command = [sys.executable, "-m", "tests.chaos", "--database", database, "--broker", broker]
    command += ["--report", str(folder / f"{number}.jsonl"), "--seed", str(arguments.seed + number * max(runs, 1000))]
    command += ["--runs", str(runs)] if runs else []
    command += [f"--fault={name}" for name in arguments.fault or ()]
    command += ["--old", arguments.old] if arguments.old else []
    # If this process is killed, its guard terminates the site, whose own guard ends the servers.
    environment = {**os.environ, guard.ENDS_BY: "SIGTERM"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == ABSENT and not servers.REQUIRED:
        print(f"{database}, {broker}: NOT RUN. {done.stderr.strip()}", flush=True)
        return False
    if done.returncode:
        print(f"{database}, {broker}: failed. Again with {' '.join(command[1:3])} and a run's seed.\n{done.stderr}")
    print(done.stdout.splitlines()[-1] if done.stdout else f"{database}, {broker}: nothing was run", flush=True)
    return done.returncode != 0


def summary(reports: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of ``docs/inside/reliability.md``, and what was measured, did not run, and failed."""
    from tests.chaos.faults import registry

    made: dict[str, list[dict[str, Any]]] = {name: [] for name in registry.faults()}
    for report in reports:
        if not report["not_run"]:
            made[report["fault"]].append(report)
    absent = {f"{report['fault']} on {report['site']}: {report['not_run']}" for report in reports if report["not_run"]}
    failed = [report for report in reports if report["problems"]]
    runs = sum(map(len, made.values()))
    lines = [row(*COLUMNS), f"| --- |{' --: |' * (len(COLUMNS) - 1)}"]
    for heading in registry.Heading:
        of_heading = [
            run for fault in registry.faults().values() if fault.heading == heading for run in made[fault.name]
        ]
        lines += [row(heading, *figures(of_heading))] if of_heading else []
    return [
        *lines,
        "",
        *measured(made),
        *(f"NOT RUN: {line}." for line in sorted(absent)),
        *(f"FAILED: {report['fault']} on {report['site']}, seed {report['seed']}" for report in failed),
        f"{runs} runs, {len(reports) - runs} not run, {len(failed)} failed.",
    ]


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def figures(runs: Sequence[dict[str, Any]]) -> list[object]:
    """Return the cells after the first one."""
    recoveries = [run["recovery"] for run in runs]
    wasted = [run["waste"] for run in runs]
    times = [f"{seconds:.1f}" for seconds in (statistics.median(recoveries), max(recoveries))]
    return [len(runs), sum(run["messages"] for run in runs), sum(wasted), max(wasted), *times]


def measured(made: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """What faults measure besides, a line for each figure."""
    for fault, runs in made.items():
        for name in dict.fromkeys(name for run in runs for name in run["figures"]):
            values = [run["figures"][name] for run in runs if name in run["figures"]]
            median = f"{statistics.median(values):.4g} (median of {len(values)})"
            yield f"{fault}: {name}: {median}, {max(values):.4g} at most"


if __name__ == "__main__":
    sys.exit(main())
