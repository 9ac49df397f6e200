"""Measures the time that an append spends on sending its task, for a broker that is healthy, refuses, or hangs.

``python benchmarks/publish.py [URL …]`` prints milliseconds for the first task of a process and for the next ones. It
measures this app's scheduler and, on the healthy broker, also Celery's own ``apply_async``.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import django
from celery import Celery
from django.conf import settings

DEFAULT = ["redis://127.0.0.1:6379/", "amqp://guest:guest@127.0.0.1:5672//"]
QUEUE = "convmemory-benchmark"
FOLLOWING = 200


@contextlib.contextmanager
def port(*, hangs: bool) -> Iterator[int]:
    """Yield a port that refuses connections, or that accepts them and never answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if hangs:
            bound.listen(16)
        yield bound.getsockname()[1]


def milliseconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def measure(title: str, url: str, send: Callable[[], object]) -> None:
    app = Celery("benchmark", broker=url)
    app.conf.task_create_missing_queues = True
    app.set_current()
    first = milliseconds(send)
    following = sorted(milliseconds(send) for _ in range(FOLLOWING))
    print(
        f"{title:<44} first {first:8.2f} ms   then median {statistics.median(following):6.2f}, "
        f"99 of 100 below {following[FOLLOWING * 99 // 100]:6.2f} ms"
    )
    app.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "urls", nargs="*", default=DEFAULT, metavar="URL", help=f"of running brokers (default: {' '.join(DEFAULT)})"
    )
    urls = parser.parse_args().urls
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_convmemory"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        CONVMEMORY={
            "default": {
                "CHAT_MODEL": {"BACKEND": "django_convmemory.chat_models.extractive.ExtractiveChatModel"},
                "SCHEDULER": {"BACKEND": "django_convmemory.tasks.CeleryScheduler", "OPTIONS": {"queue": QUEUE}},
            }
        },
    )
    django.setup()
    from django_convmemory import tasks
    from django_convmemory.memory import memories
    from django_convmemory.sender import sender

    logging.disable()
    memory = memories["default"]

    def hint() -> None:
        memory.scheduler.schedule(memory, 1)

    def sent() -> None:
        memory.scheduler.send(memory, 1)

    def celery() -> None:
        tasks.compact.apply_async(("default", 1), queue=QUEUE)

    for url in urls:
        scheme = urlsplit(url).scheme
        measure(f"{scheme}, healthy, until it is sent", url, sent)
        measure(f"{scheme}, healthy", url, hint)
        measure(f"{scheme}, healthy, by apply_async", url, celery)
        with Celery("purge", broker=url).connection_for_write() as connection:
            connection.default_channel.queue_purge(QUEUE)
        for hangs, behaviour in ((False, "refuses"), (True, "hangs")):
            sender().close()
            with port(hangs=hangs) as number:
                measure(f"{scheme}, {behaviour}", f"{scheme}://127.0.0.1:{number}//", hint)
        sender().close()


if __name__ == "__main__":
    main()
