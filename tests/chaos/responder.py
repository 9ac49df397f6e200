"""The function of the site that answers questions in a storm of turns, and its model.

The site notes what it does in one file, in the order of time: each try to answer, each call of the model, and each run
of a tool. A try is a turn that was opened. A turn that is replayed is none.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import random
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import tests.chaos.app  # noqa: F401  as a project's package does
from django_convmemory.api.views.turns import TurnList
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.answer import Answer
from django_convmemory.operations.turns import Turn

# What the model does, and how often of a hundred times. BAD gives no whole reply.
KINDS = {"answers": 58, "whole": 9, "slow": 12, "long": 2}
BAD = {"fails": 4, "breaks": 5, "unfinished": 5, "blank": 4, "silent": 1}
WORDS = ["The", "train", "to", "Bled", "leaves", "at", "half", "past", "nine."]
NOTES = os.open(pathlib.Path(os.environ["CONVMEMORY_CHAOS"]).with_name("notes"), os.O_CREAT | os.O_APPEND | os.O_RDWR)
# How long a request waits for another one in its session.
TurnList.wait = 2.0


def note(what: str, **more: Any) -> None:
    """Write a line, with the process group of this process."""
    line = {"what": what, "at": time.time(), "process": os.getpgrp(), **more}
    os.write(NOTES, json.dumps(line).encode() + b"\n")


def open_and_note(self: Answer, asked: Any, seconds: float, opens: Any = Answer._open) -> Turn:
    began = time.time()
    turn: Turn = opens(self, asked, seconds)
    if not turn.replayed:
        place = {"session": asked.name.key, "position": turn.question.position}
        note("try", token=turn._step.token, key=asked.key, began=began, **place)
    return turn


Answer._open = open_and_note  # type: ignore[method-assign]


def answer(turn: Turn) -> Iterator[Any]:
    """Run the tools and ask the model: yield messages to append, chunks, and for how many seconds the model is silent.

    A third of the questions needs one round of tools or two.
    """
    key, token = turn.request.headers["Idempotency-Key"], turn._step.token
    for call in turn.open_calls:
        note("run", token=token, call=call.id)
        yield call.result(f"[[{call.id}]]")
        note("stored", token=token, call=call.id)
    number = sum(bool(stored.message.tool_calls) for stored in turn.messages)
    calls: list[Any] = []
    if number < (0, 0, 0, 0, 1, 2)[zlib.crc32(key.encode()) % 6]:
        function = {"name": "find", "arguments": "{}"}
        names = [f"{token}-{number}-{index}" for index in range(random.randint(1, 2))]
        calls = [{"id": name, "type": "function", "function": function} for name in names]
    [kind] = random.choices([*KINDS, *BAD], [*KINDS.values(), *BAD.values()])
    shown = turn.question.message.text in [message.text for message in turn.context if message.role == "user"]
    note("call", token=token, number=number, kind=kind, shown=shown)
    # A mark, as in the other tests, says what each text belongs to.
    words = [f"[[{key}/{turn.question.id}/{token}/{number}]]", *WORDS * (3 if kind == "long" else 1)]
    words = {"breaks": words[:5], "unfinished": words[:5], "blank": [" "], "fails": []}.get(kind, words)
    try:
        if kind == "silent":
            yield memories["default"].options.turn_timeout + 2.0
        if kind == "whole":
            message = {"role": "assistant", "content": " ".join(words)} | ({"tool_calls": calls} if calls else {})
            yield {"choices": [{"message": message, "finish_reason": "stop"}]}
            return
        for word in words:
            yield 0.3 if kind in ("slow", "long") else 0.05
            yield chunk(content=f"{word} ")
        if kind in ("fails", "breaks"):
            raise RuntimeError("The model fails.")
        if kind == "unfinished":
            return
        if calls and kind != "blank":
            yield chunk(tool_calls=[{"index": index, **call} for index, call in enumerate(calls)])
        yield chunk("stop")
    finally:
        note("end", token=token)


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def ask(turn: Turn) -> Iterator[Any]:
    """The site's function."""
    for step in answer(turn):
        if isinstance(step, ChatMessage):
            turn.append(step)
        elif isinstance(step, float):
            time.sleep(step)
        else:
            yield step


async def asynchronous_ask(turn: Turn) -> AsyncIterator[Any]:
    """The same without blocking."""
    for step in answer(turn):
        if isinstance(step, ChatMessage):
            await turn.aappend(step)
        elif isinstance(step, float):
            await asyncio.sleep(step)
        else:
            yield step
