"""What is measured, as a process of its own: each library in its own environment, one beside the other.

``python contender.py NAME PLACE`` reads orders from its standard input and answers each, in lines of JSON: ``fill`` a
session, ``append`` to it or ``load`` it so many times, each timed. ``PLACE`` is the URL of a PostgreSQL database, or a
folder for SQLite. It imports nothing of this project, for the environments of the others do not have it.
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

# Of a load: the tokens of the context, and about as many messages.
TOKENS, MESSAGES = 2000, 40
TEXT = (
    "The customer reported a duplicate shipment since Tuesday morning. Our billing team keeps showing the March "
    "invoice after the last deploy, which is blocking the release. Could you help me sort this out? {number}"
)


class Contender(abc.ABC):
    """Stores conversations in one way. ``append`` and ``load`` may be coroutines."""

    def __init__(self, place: str) -> None:
        self.place = place

    @property
    def postgresql(self) -> bool:
        """Whether ``place`` is a database of PostgreSQL."""
        return self.place.startswith("postgresql")

    def session(self, name: str) -> Any:
        """Return what stands for the conversation ``name``, as a web request has to make it."""
        return name

    @abc.abstractmethod
    def fill(self, name: str, texts: list[str]) -> Any:
        """Store a conversation."""

    @abc.abstractmethod
    def append(self, session: Any, role: str, text: str) -> Any:
        """Store a message, so that it is there after a crash."""

    @abc.abstractmethod
    def load(self, session: Any) -> Any:
        """Return what to send to a model, as texts: about 2 000 tokens of the newest messages."""


def serve(contender: Contender) -> None:
    """Carry out the orders: coroutines on one event loop, and what is synchronous beside none, as in a view."""
    appended = 0
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            order = json.loads(line)
            name, times = order["session"], order["times"]
            taken: list[int] = []
            if order["do"] == "fill":
                filled = contender.fill(name, [TEXT.format(number=number) for number in range(times)])
                if inspect.iscoroutine(filled):
                    runner.run(filled)
            else:
                calls: list[tuple[Any, ...]] = [(contender.session(name),) for _ in range(times)]
                if order["do"] == "append":
                    numbers = range(appended, appended := appended + times)
                    calls = [
                        (*call, "assistant" if number % 2 else "user", TEXT.format(number=number))
                        for call, number in zip(calls, numbers, strict=True)
                    ]
                operation = getattr(contender, order["do"])
                gc.collect()
                if inspect.iscoroutinefunction(operation):
                    taken = runner.run(timed_awaiting(operation, calls))
                else:
                    taken = timed(operation, calls)
            print(json.dumps({"ns": taken}), flush=True)


def timed(operation: Any, calls: list[tuple[Any, ...]]) -> list[int]:
    """Return the nanoseconds that each call takes."""
    taken = []
    for arguments in calls:
        began = time.perf_counter_ns()
        operation(*arguments)
        taken.append(time.perf_counter_ns() - began)
    return taken


async def timed_awaiting(operation: Any, calls: list[tuple[Any, ...]]) -> list[int]:
    """:func:`timed` for a coroutine function."""
    taken = []
    for arguments in calls:
        began = time.perf_counter_ns()
        await operation(*arguments)
        taken.append(time.perf_counter_ns() - began)
    return taken


def main() -> None:
    name, place = sys.argv[1:]
    module, _, kind = name.partition(":")
    contender = getattr(importlib.import_module(module), kind)(place)
    serve(contender)


if __name__ == "__main__":
    # The contenders' modules import this one by its name.
    sys.modules["contender"] = sys.modules["__main__"]
    main()
