"""A site that appends to sessions at random: ``python -m benchmarks.large_jobs.site``.

It answers each line on its input with the longest append since the last one, in seconds.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time

import django

# Seconds between two appends.
PAUSE = 0.05


class Appends(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0

    def run(self) -> None:
        from benchmarks import tables
        from django_convmemory import models
        from django_convmemory.exceptions import UnknownSession

        memory, chance = tables.memory(10**9), random.Random(1)
        last = models.Session.objects.order_by("-pk").values_list("pk", flat=True)[0]
        while True:
            # The pace of a site that is used beside the job.
            time.sleep(PAUSE)
            row = models.Session.objects.filter(pk__gte=chance.randrange(last)).order_by("pk").first()
            if row is None:
                continue
            began = time.perf_counter()
            # A command may delete the session meanwhile.
            with contextlib.suppress(UnknownSession):
                memory.append(row, {"role": "user", "content": "And what about Lisbon?"})
            self.longest = max(self.longest, time.perf_counter() - began)


def main() -> None:
    django.setup()
    appends = Appends()
    appends.start()
    for _ in sys.stdin:
        if not appends.is_alive():
            raise SystemExit("The appends have failed. See above.")
        print(appends.longest, flush=True)
        appends.longest = 0.0


if __name__ == "__main__":
    main()
