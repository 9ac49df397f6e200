"""One run of compaction, as a generator, and the two ways to carry it out.

A run yields each model call and does everything else itself. So the same code serves a worker that blocks and an
event loop that must not.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Generator
from typing import NamedTuple

from asgiref.sync import sync_to_async

from django_convmemory import observers
from django_convmemory.chat_models.base import ChatResponse
from django_convmemory.observers import Call


class Outcome(enum.StrEnum):
    """The result of a run."""

    PUBLISHED = "published"
    NOT_DUE = "not_due"
    BUSY = "busy"
    STALLED = "stalled"


class Result(NamedTuple):
    """What came of a run. ``again``: the session is still due; a task should fold it in ``delay`` seconds.

    ``recovered``: the alias's model has answered for the first time after an outage. ``indexed``: the memory folds
    nothing, and messages were indexed.
    """

    outcome: Outcome
    again: bool = False
    delay: float = 0.0
    recovered: bool = False
    indexed: bool = False

    @property
    def progressed(self) -> bool:
        """Whether the session has less to do than before."""
        return self.indexed or self.outcome == Outcome.PUBLISHED


class LeaseLost(Exception):
    """The lease expired, or the session changed: another process may fold it now."""


Run = Generator[Call, ChatResponse, Result]


def drive(run: Run) -> Result:
    """Carry out a run. Blocks while a model answers."""
    try:
        call = next(run)
        while True:
            try:
                with observers.calling(call):
                    call.response = call.model.chat(call.request)
            except Exception as error:  # noqa: BLE001  the run decides what to do
                call = run.throw(error)
            else:
                call = run.send(call.response)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    finally:
        # If the process was told to stop, the run is not at its end: closing it releases the lease.
        run.close()


async def adrive(run: Run) -> Result:
    """Carry out a run. Its own steps run in a thread, one after the other, and the model's calls on the event loop."""
    step = sync_to_async(_step)
    try:
        call = await step(run.__next__)
        while not isinstance(call, Result):
            try:
                with observers.calling(call):
                    call.response = await call.model.achat(call.request)
            except Exception as error:  # noqa: BLE001  the run decides what to do
                call = await step(run.throw, error)
            else:
                call = await step(run.send, call.response)
        return call
    finally:
        # If the task was cancelled, the run is not at its end: closing it releases the lease.
        await asyncio.shield(sync_to_async(run.close)())


def _step(advance: Callable[..., Call], *args: object) -> Call | Result:
    try:
        return advance(*args)
    except StopIteration as stop:  # A future cannot carry it.
        result: Result = stop.value
        return result
