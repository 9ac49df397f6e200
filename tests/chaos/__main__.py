"""Runs faults on a site: ``python -m tests.chaos --database postgresql --broker redis --runs 100 --seed 1``.

Each run takes a fault by chance, or the one that is named; a run's seed, given with ``--runs 1``, replays it. Without
``--runs`` each fault is had once. What came of each is written to ``--report``, a JSON object a line. Ends with 1 where
anything was lost, doubled or wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import random
import sys
import tempfile
import traceback

from tests.chaos import servers, site as sites


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--database", choices=sites.DATABASES, default="postgresql")
    parser.add_argument("--broker", choices=sites.BROKERS, default="redis")
    parser.add_argument("--fault", action="append", help="only these; more than one may be given")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--report", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        try:
            with sites.running(pathlib.Path(folder), arguments.database, arguments.broker) as site:
                return run_all(site, arguments)
        except servers.Absent as absent:
            print(f"Not run: {absent}.", file=sys.stderr)
            return sites.ABSENT


def run_all(site: sites.Site, arguments: argparse.Namespace) -> int:
    from tests.chaos import faults
    from tests.chaos.runs import Run

    names = [name for name in arguments.fault or faults.FAULTS if faults.possible(name, site.name)]
    chosen = names * (arguments.runs == 0)
    chosen += [random.Random(arguments.seed + number).choice(names) for number in range(arguments.runs)]
    failed = 0
    for number, name in enumerate(chosen):
        run = Run(site, arguments.seed + number)
        recovery = 0.0
        try:
            (faults.FAULTS | faults.SLOW)[name](run)
            recovery = run.recover()
        except Exception:  # noqa: BLE001  reported as what is wrong with the run
            run.problems.append(traceback.format_exc())
        report = run.report(name, recovery)
        failed += bool(report.problems)
        print(f"{report.seed} {name}: {'FAILED' if report.problems else 'ok'}, {recovery:.1f} s", flush=True)
        for problem in report.problems:
            print(problem, file=sys.stderr, flush=True)
        if arguments.report:
            with arguments.report.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(report)) + "\n")
    print(f"{site.name}: {len(chosen)} runs, {failed} failed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
