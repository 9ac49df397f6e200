"""Runs faults on every kind of site, three sites at a time: ``python -m tests.chaos.suite --runs 1000 --seed 1``.

Without ``--runs`` each fault is had once on a site of each database, which is the short form. Prints a table, in
Markdown, of what came of each fault, and ends with 1 where anything was lost, doubled or wrong. With
``CONVMEMORY_TEST_SERVICES=all`` a server that is not installed is a failure too.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests import servers
from tests.chaos.site import ABSENT, BROKERS, DATABASES

# Each database and each broker is on a site.
SHORT = (("postgresql", "redis"), ("mariadb", "rabbitmq"), ("sqlite", "redis"))
LONG = tuple((database, broker) for database in DATABASES for broker in BROKERS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.suite", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--report", type=pathlib.Path, help="where to add what came of each run, as JSON")
    arguments = parser.parse_args()
    sites = LONG if arguments.runs else SHORT
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as threads:
        done = [
            threads.submit(run_site, pathlib.Path(folder), database, broker, arguments, number, len(sites))
            for number, (database, broker) in enumerate(sites)
        ]
        failed = [share.result() for share in done]
        reports = [
            json.loads(line)
            for path in sorted(pathlib.Path(folder).glob("*.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
    if arguments.report:
        with arguments.report.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(report) + "\n" for report in reports)
    print("\n".join(table(reports)))
    print(
        f"\n{len(reports)} runs, {sum(bool(report['problems']) for report in reports)} failed; seed {arguments.seed}."
    )
    return 1 if any(failed) else 0


def run_site(
    folder: pathlib.Path, database: str, broker: str, arguments: argparse.Namespace, number: int, sites: int
) -> bool:
    """Run one site's share of the faults, and return whether it failed."""
    runs = -(-arguments.runs // sites)
    command = [sys.executable, "-m", "tests.chaos", "--database", database, "--broker", broker]
    command += ["--report", str(folder / f"{number}.jsonl"), "--seed", str(arguments.seed + number * max(runs, 1000))]
    command += ["--runs", str(runs)] if runs else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == ABSENT and not servers.REQUIRED:
        print(f"{database}, {broker}: NOT RUN. {done.stderr.strip()}", flush=True)
        return False
    if done.returncode:
        print(f"{database}, {broker}: failed. Again with {' '.join(command[1:3])} and a run's seed.\n{done.stderr}")
    print(done.stdout.splitlines()[-1] if done.stdout else f"{database}, {broker}: nothing was run", flush=True)
    return done.returncode != 0


def table(reports: Iterable[dict[str, Any]]) -> list[str]:
    """Return the results, one line for each fault."""
    by_fault: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for report in reports:
        by_fault[report["fault"]].append(report)
    lines = [
        "| fault | runs | messages | summaries | wrong runs | calls wasted | most in a run | recovery (s) | worst |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for fault, runs in by_fault.items():
        recoveries = [run["recovery"] for run in runs]
        cells = [
            fault.replace("_", " "),
            len(runs),
            sum(run["messages"] for run in runs),
            sum(run["summaries"] for run in runs),
            sum(bool(run["problems"]) for run in runs),
            sum(run["waste"] for run in runs),
            max(run["waste"] for run in runs),
            f"{statistics.median(recoveries):.1f}",
            f"{max(recoveries):.1f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
