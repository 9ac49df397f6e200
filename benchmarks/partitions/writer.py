"""Appends at a steady rate: ``python -m benchmarks.partitions.writer DATABASE SESSIONS RATE``.

Each line of its output is the time at which an append was due, by the clock of ``time.monotonic()``, and the
milliseconds from then until it was stored. So an append that had to wait for the one before it counts as slow too.
SIGTERM ends it after the append at hand.
"""

from __future__ import annotations

import random
import signal
import sys
import time

from benchmarks.growth.__main__ import OWNERS
from benchmarks.growth.contender import Ours


def main() -> None:
    database, sessions, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    contender, chance = Ours(database), random.Random(2)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    due = time.monotonic()
    while not stopped:
        due += 1 / rate
        # The next append is due at this moment.
        time.sleep(max(0.0, due - time.monotonic()))
        number = chance.randint(1, sessions)
        contender.append(contender.session(f"user{number % OWNERS}", f"chat {number}"))
        print(due, (time.monotonic() - due) * 1000, flush=True)


if __name__ == "__main__":
    main()
