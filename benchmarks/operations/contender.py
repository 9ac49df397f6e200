"""The process of one contender. Each library runs in its own environment.

``python contender.py NAME PLACE`` reads orders from standard input and answers each, in lines of JSON. An order is to
``fill`` a session, or to do an operation with it a number of times, such as ``append`` or ``load``. The operations are
timed. ``PLACE`` is the URL of a PostgreSQL database, or a folder for SQLite.

It imports nothing of this project, because the environments of the other contenders do not have it.
"""

from __future__ import annotations

import abc
import asyncio
import gc
import importlib
import inspect
import json
import sys
import time
from typing import Any

# The tokens of a loaded context, and about the number of its messages.
TOKENS, MESSAGES = 2000, 40
TEXT = (
    "The customer reported a duplicate shipment since Tuesday morning. Our billing team keeps showing the March "
    "invoice after the last deploy, which is blocking the release. Could you help me sort this out? {number}"
)


class Contender(abc.ABC):
    """Stores conversations with one library. ``append`` and ``load`` may be coroutines."""

    def __init__(self, place: str) -> None:
        self.place = place

    @property
    def postgresql(self) -> bool:
        """Whether ``place`` is a database of PostgreSQL."""
        return self.place.startswith("postgresql")

    def session(self, name: str) -> Any:
        """Return the library's object for the conversation ``name``, as a web request would create it."""
        return name

    @abc.abstractmethod
    def fill(self, name: str, texts: list[str]) -> Any:
        """Store a conversation."""

    @abc.abstractmethod
    def append(self, session: Any, role: str, text: str) -> Any:
        """Store a message durably, so that it survives a crash."""

    @abc.abstractmethod
    def load(self, session: Any) -> Any:
        """Return the context for a model as texts: about 2 000 tokens of the newest messages."""


def serve(contender: Contender) -> None:
    """Carry out the orders: coroutines on one event loop, synchronous operations without one, as in a view."""
    appended = 0
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            order = json.loads(line)
            name, times = order["session"], order["times"]
            durations: list[int] = []
            if order["do"] == "fill":
                filled = contender.fill(name, [TEXT.format(number=number) for number in range(times)])
                if inspect.iscoroutine(filled):
                    runner.run(filled)
            else:
                calls: list[tuple[Any, ...]] = [(contender.session(name),) for _ in range(times)]
                if order["do"] != "load":
                    numbers = range(appended, appended := appended + times)
                    calls = [
                        (*call, "assistant" if number % 2 else "user", TEXT.format(number=number))
                        for call, number in zip(calls, numbers, strict=True)
                    ]
                operation = getattr(contender, order["do"])
                gc.collect()
                if inspect.iscoroutinefunction(operation):
                    durations = runner.run(timed_awaiting(operation, calls))
                else:
                    durations = timed(operation, calls, getattr(time, order["clock"]))
            print(json.dumps({"ns": durations}), flush=True)


def timed(operation: Any, calls: list[tuple[Any, ...]], clock: Any) -> list[int]:
    """Return the nanoseconds that each call takes by ``clock``."""
    durations = []
    for arguments in calls:
        began = clock()
        operation(*arguments)
        durations.append(clock() - began)
    return durations


async def timed_awaiting(operation: Any, calls: list[tuple[Any, ...]]) -> list[int]:
    """:func:`timed` for a coroutine function."""
    durations = []
    for arguments in calls:
        began = time.perf_counter_ns()
        await operation(*arguments)
        durations.append(time.perf_counter_ns() - began)
    return durations


def main() -> None:
    name, place = sys.argv[1:]
    module, _, kind = name.partition(":")
    contender = getattr(importlib.import_module(module), kind)(place)
    serve(contender)


if __name__ == "__main__":
    # The contenders' modules import this one by its name.
    sys.modules["contender"] = sys.modules["__main__"]
    main()
