"""A storm of turns: ``python -m tests.chaos.turns --database postgresql --server asgi --turns 1000 --seed 1``.

Clients send each question twice at the same time, and again until they have its reply. Meanwhile the processes of the
site are killed, the model fails, and a worker folds. At the end, the stored rows and the notes of the site are compared
with what turns promise. Ends with 1 if a promise was broken. The seed decides the questions and the kills.
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.chaos import guard, servers, site as sites
from tests.servers import REQUIRED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.turns", description=__doc__.split("\n")[0])
    parser.add_argument("--database", choices=sites.DATABASES, default="postgresql")
    parser.add_argument("--server", choices=("wsgi", "asgi"), default="asgi")
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    with guard.guarded() as folder:
        try:
            # A turn without a sign of life lasts for six seconds.
            with sites.running(folder, arguments.database, "redis", clients=0, turn_timeout=6.0) as site:
                from tests.chaos.runs import Run
                from tests.chaos.storm import Proof, Storm

                print(f"{site.name}, {arguments.server}, seed {arguments.seed}", flush=True)
                storm = Storm(Run(site, arguments.seed), arguments.server, arguments.turns)
                storm.rage()
                problems = Proof(storm).problems
        except servers.Absent as absent:
            print(f"Not run: {absent}.", file=sys.stderr)
            return sites.ABSENT if REQUIRED else 0
    print(*problems, f"{len(problems)} problems", sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
