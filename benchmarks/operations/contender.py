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


async def serve(contender: Contender) -> None:
    appended = 0
    for line in sys.stdin:
        order = json.loads(line)
        name, taken, length = order["session"], [], 0
        if order["do"] == "fill":
            texts = [TEXT.format(number=number) for number in range(order["times"])]
            await finished(contender.fill(name, texts))
        else:
            gc.collect()
            for _ in range(order["times"]):
                session = contender.session(name)
                appended += 1
                text, role = TEXT.format(number=appended), "assistant" if appended % 2 else "user"
                began = time.perf_counter_ns()
                if order["do"] == "append":
                    await finished(contender.append(session, role, text))
                else:
                    length = len(await finished(contender.load(session)))
                taken.append(time.perf_counter_ns() - began)
        print(json.dumps({"ns": taken, "length": length}), flush=True)


async def finished(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def main() -> None:
    name, place = sys.argv[1:]
    module, _, kind = name.partition(":")
    contender = getattr(importlib.import_module(module), kind)(place)
    asyncio.run(serve(contender))


if __name__ == "__main__":
    # The contenders' modules import this one by its name.
    sys.modules["contender"] = sys.modules["__main__"]
    main()
