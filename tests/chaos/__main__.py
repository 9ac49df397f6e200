"""Runs faults on a site: ``python -m tests.chaos --database postgresql --broker redis --runs 100 --seed 1``.

Each run takes a fault by chance, or the one that is named; a run's seed, given with ``--runs 1``, replays it. Without
``--runs`` each fault is had once. What came of each is written to ``--report``, a JSON object a line. Ends with 1 where
anything was lost, doubled or wrong.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import sys
import traceback
from typing import TYPE_CHECKING, Any

from tests.chaos import guard, servers, site as sites
from tests.servers import REQUIRED

if TYPE_CHECKING:
    from tests.chaos.faults.registry import Fault
    from tests.chaos.runs import Run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--database", choices=sites.DATABASES, default="postgresql")
    parser.add_argument("--broker", choices=(*sites.BROKERS, sites.DATABASE_TASKS), default="redis")
    parser.add_argument("--fault", action="append", help="only these; more than one may be given")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--old", default="", help="the tag or commit whose code an old worker runs")
    parser.add_argument("--report", type=pathlib.Path)
    arguments = parser.parse_args()
    with guard.guarded() as folder:
        try:
            with sites.running(folder, arguments.database, arguments.broker, old=arguments.old) as site:
                return run_all(site, arguments)
        except servers.Absent as absent:
            print(f"Not run: {absent}.", file=sys.stderr)
            return sites.ABSENT


def run_one(run: Run, fault: Fault) -> dict[str, Any]:
    """Run one fault, and return its report: ``recovery`` is in seconds, ``not_run`` says why it could not occur.

    If its program is not installed, it is not run; with ``CONVMEMORY_TEST_SERVICES=all`` it fails.
    """
    recovery, not_run = 0.0, ""
    try:
        fault.inject(run)
        recovery = run.recover()
    except servers.NotRun as absent:
        not_run = str(absent)
        if REQUIRED and isinstance(absent, servers.Absent):
            run.problems.append(f"{fault.name} was not run, because {absent}")
    except Exception:  # noqa: BLE001  reported as what is wrong with the run
        run.problems.append(traceback.format_exc())
    return run.report() | {"fault": fault.name, "recovery": recovery, "not_run": not_run}


def run_all(site: sites.Site, arguments: argparse.Namespace) -> int:
    from tests.chaos.faults import registry
    from tests.chaos.runs import Run

    faults = registry.faults()
    names = arguments.fault or registry.drawn(site.name, long=arguments.runs > 0)
    names = [name for name in names if faults[name].possible(site.name)]
    chosen = names * (arguments.runs == 0)
    chosen += [random.Random(arguments.seed + number).choice(names) for number in range(arguments.runs)]
    failed = 0
    for number, name in enumerate(chosen):
        report = run_one(Run(site, arguments.seed + number), faults[name])
        problems, not_run = report["problems"], report["not_run"]
        failed += bool(problems)
        result = "FAILED" if problems else f"NOT RUN, {not_run}" if not_run else "ok"
        details = f" ({report['details']})" if report["details"] else ""
        figures = "".join(f", {figure} {value:.4g}" for figure, value in report["figures"].items())
        print(f"{report['seed']} {name}{details}: {result}, {report['recovery']:.1f} s{figures}", flush=True)
        for problem in problems:
            print(problem, file=sys.stderr, flush=True)
        if arguments.report:
            with arguments.report.open("a") as file:
                file.write(json.dumps(report) + "\n")
    print(f"{site.name}: {len(chosen)} runs, {failed} failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
