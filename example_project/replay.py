#!/usr/bin/env python
"""Replay four conversations while a Celery worker folds them, and show how small the contexts stay.

Messages are appended one by one, as a site's views would do. Before each reply the context is loaded, as for a model.

The replay needs no server, no key and no network. To use real servers, set DATABASE_URL, CELERY_BROKER_URL and
OPENAI_MODEL (with OPENAI_API_KEY and OPENAI_BASE_URL).
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import signal
import statistics
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import django
import screen
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import DatabaseError
from django.utils import timezone
from screen import paint
from worker import Worker, WorkerFailed

if TYPE_CHECKING:
    from django_convmemory.context.assembly import Context
    from django_convmemory.models import Session
    from django_convmemory.operations.handles import ConversationMemory

CONVERSATIONS = Path(__file__).parent / "conversations"
SHOWN = ("order-refund", "hotel-zh")
# The duration of the replay, and the shortest time between two drawings of the table.
SECONDS = 18.0
FRAME = 0.06
VISITOR = "replay-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="do not pause between messages")
    parser.add_argument(
        "--limit", type=int, metavar="TOKENS", help="fold when more tokens than this are not folded (300)"
    )
    options = parser.parse_args()
    if options.limit is not None and options.limit < 20:
        parser.error("--limit must be at least 20.")
    if options.limit is not None:
        os.environ["CONVMEMORY_TOKEN_LIMIT"] = str(options.limit)  # The worker reads it too.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Background jobs of a shell script ignore SIGINT.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
    try:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
        django.setup()
        return replay(fast=options.fast)
    except KeyboardInterrupt:
        print("\nStopped. Nothing is left running.")
        return 128 + signal.SIGINT
    except (ImproperlyConfigured, DatabaseError, WorkerFailed) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1


def replay(*, fast: bool) -> int:
    from django.conf import settings

    from django_convmemory.memory import memories

    memory = memories["default"]
    introduce(memory)
    call_command("migrate", verbosity=0, interactive=False)
    forget_earlier_replays()
    run = Replay(memory, read_conversations())
    with screen.hidden_cursor(), Worker(settings.DATA_DIR / "replay-worker.log") as worker:
        run.show("starting the worker …")
        worker.wait_until_ready()
        run.play(worker, 0.0 if fast else SECONDS / run.total)
        run.catch_up(worker, 20.0 + 2 * memory.model.deadline)
    for name in SHOWN:
        show_context(name, run.handles[name].load(), run.row(name))
    lost = run.lost()
    show_totals(run, lost)
    return 1 if lost else 0


def read_conversations() -> dict[str, list[dict[str, Any]]]:
    """Return the sample conversations by name, each as a list of chat-completions messages."""
    return {
        path.stem: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(CONVERSATIONS.glob("*.jsonl"))
    }


def forget_earlier_replays() -> None:
    """Delete the sessions of earlier replays. A replay of the last minute may still run, so its sessions stay."""
    from django_convmemory.models import Session

    a_minute_ago = timezone.now() - dt.timedelta(minutes=1)
    Session.objects.filter(visitor__startswith=VISITOR, updated_at__lt=a_minute_ago).delete()


class Sent(NamedTuple):
    """The tokens of one request to a model: with its context, and with the whole history instead.

    ``bounded`` is the context without pinned messages, which the budget does not include.
    """

    context: int
    bounded: int
    history: int


class Replay:
    """One run over all conversations, with its measurements."""

    def __init__(self, memory: ConversationMemory, conversations: dict[str, list[dict[str, Any]]]) -> None:
        self.conversations = conversations
        self.visitor = f"{VISITOR}{uuid.uuid4().hex}"
        self.handles = {name: memory.session(name, visitor=self.visitor) for name in conversations}
        self.histories = dict.fromkeys(conversations, 0)
        self.contexts: dict[str, Context] = {}
        self.appends: list[float] = []
        self.requests: list[Sent] = []
        self.stored = 0
        self.total = sum(map(len, conversations.values()))
        self.started = self.drawn_at = time.monotonic()
        # The revision of each context that is in the table.
        self._revisions: dict[str, int] = {}
        longest = max(sum(counts(memory, messages)) for messages in conversations.values())
        self.table = screen.Table(longest=longest, budget=memory.options.max_context_tokens or longest)

    def play(self, worker: Worker, pause: float) -> None:
        """Append every message, as if the four conversations took place at the same time."""
        self.started = time.monotonic()
        for number, (name, message) in enumerate(self._interleaved(), start=1):
            handle = self.handles[name]
            if message["role"] == "assistant":
                context = handle.load()  # A site would now call its model with context.to_openai().
                bounded = sum(part.tokens for part in context.parts if part.name != "pinned")
                self.requests.append(Sent(context.tokens, bounded, self.histories[name]))
            began = time.perf_counter()
            receipt = handle.append(message)
            self.appends.append(time.perf_counter() - began)
            self.histories[name] += receipt.tokens
            self.stored += 1
            self._progress()
            worker.check()
            time.sleep(max(0.0, self.started + number * pause - time.monotonic()))

    def catch_up(self, worker: Worker, seconds: float) -> None:
        """Wait until no session is due, for at most ``seconds``."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(row.due_since for row in self.rows().values()):
            self._progress()
            worker.check()
            time.sleep(FRAME)
        self._progress(last=True)

    def _interleaved(self) -> Iterator[tuple[str, dict[str, Any]]]:
        order = [name for name, messages in self.conversations.items() for _ in messages]
        random.Random(1).shuffle(order)
        left = {name: iter(messages) for name, messages in self.conversations.items()}
        return ((name, next(left[name])) for name in order)

    def rows(self) -> dict[str, Session]:
        """Return the rows of the sessions by name."""
        from django_convmemory.models import Session

        return {row.key: row for row in Session.objects.filter(visitor=self.visitor)}

    def row(self, name: str) -> screen.Row:
        """Return the table's row of a session."""
        return self._row(name, self.rows().get(name))

    def _row(self, name: str, row: Session | None) -> screen.Row:
        if row is None:
            return screen.Row(name, 0, 0, 0, 0, 0, "")
        if self._revisions.get(name) != row.revision:
            self.contexts[name] = self.handles[name].load()
            self._revisions[name] = row.revision
        context = self.contexts[name]
        summary = sum(part.tokens for part in context.parts if part.name == "summary")
        state = "up to date"
        if row.due_since:
            state = "to be retried" if row.last_error and not row.lease_token else "folding…"
        return screen.Row(
            name,
            row.last_position,
            self.histories[name],
            summary,
            context.tokens - summary,
            row.last_version,
            state,
        )

    def _progress(self, *, last: bool = False) -> None:
        now = time.monotonic()
        footer = f"{self.stored} of {self.total} messages, {now - self.started:.0f} s"
        quarter = self.stored % max(1, self.total // 4) == 0 and self.stored < self.total
        if last or (screen.LIVE and now - self.drawn_at >= FRAME):
            self.show(footer, last=last)
        elif not screen.LIVE and quarter:
            print(f" {footer}", flush=True)

    def show(self, footer: str, *, last: bool = False) -> None:
        """Draw the table. Without a terminal, print the footer, and the table only if it is the ``last``."""
        self.drawn_at = time.monotonic()
        if screen.LIVE or last:
            rows = self.rows()
            self.table.draw([self._row(name, rows.get(name)) for name in self.conversations], footer)
        else:
            print(f" {footer}", flush=True)

    def lost(self) -> int:
        """Return the number of messages without a row of the same role and content. It reads every row."""
        from django_convmemory.models import Message

        rows = Message.objects.filter(session__visitor=self.visitor).values_list(
            "session__key", "position", "role", "content"
        )
        stored = {(key, position): (role, content) for key, position, role, content in rows}
        return sum(
            stored.get((name, position)) != (message["role"], message["content"])
            for name, messages in self.conversations.items()
            for position, message in enumerate(messages, start=1)
        )


def counts(memory: ConversationMemory, messages: list[dict[str, Any]]) -> list[int]:
    """Return the tokens of each message."""
    from django_convmemory.messages import ChatMessage

    return [memory.counter.count(ChatMessage.from_openai(message)) for message in messages]


def introduce(memory: ConversationMemory) -> None:
    """Print an explanation of the replay, and the database, broker and model that it uses."""
    from django.conf import settings
    from django.db import connection

    url = os.environ.get("CELERY_BROKER_URL")
    facts = {
        "database": f"{connection.vendor}, {Path(str(connection.settings_dict['NAME'])).name}",
        "broker": url.partition(":")[0] if url else f"a folder, {settings.DATA_DIR.name}/broker",
        "model": memory.model.name,
    }
    print(f"\n {paint('django_convmemory: four conversations, one Celery worker', 'bold')}\n")
    for line in screen.wrap(
        "append() stores a message and returns. When the messages that are not in the summary have more than "
        f"{memory.strategy.max_token_limit} tokens, the worker folds the older ones into the summary. load() returns "
        "the context for a model: the summary and the messages after it.",
        screen.width() - 2,
    ):
        print(f" {line}")
    print("\n " + "   ".join(f"{paint(name, 'dim')} {fact}" for name, fact in facts.items()) + "\n", flush=True)


ROLE_COLOURS = {"system": "yellow", "user": "cyan", "assistant": "green", "tool": "blue"}


def show_context(name: str, context: Context, row: screen.Row) -> None:
    """Print the messages of a context as a model would receive them."""
    from django_convmemory.context.assembly import spoken

    title = f"The context of {name} for a model: {context.tokens:,} tokens for a history of {row.history:,}"
    print(f"\n {paint(title, 'bold')}\n")
    for part in context.parts:
        label = screen.fit(part.message.role, 11)
        lines = screen.wrap(spoken(part.message), screen.width() - 14)
        for index, line in enumerate(lines):
            start = paint(label, ROLE_COLOURS.get(part.message.role, "dim")) if index == 0 else " " * 11
            print(f"  {start} {paint(line, 'yellow') if part.name == 'summary' else line}".rstrip())


def show_totals(run: Replay, lost: int) -> None:
    """Print the measurements."""
    from django_convmemory.models import Attempt, Summary

    folds = Summary.objects.filter(session__visitor=run.visitor).count()
    calls = Attempt.objects.filter(session__visitor=run.visitor)
    models = ", ".join(sorted({name or "unknown" for name in calls.values_list("model", flat=True)}))
    due = sum(row.due_since is not None for row in run.rows().values())
    context = sum(request.context for request in run.requests)
    history = sum(request.history for request in run.requests)
    largest = max(request.bounded for request in run.requests)
    facts = {
        "messages": f"{run.total - lost} stored, {lost} lost (every row compared with what was sent)",
        "tokens stored": f"{sum(run.histories.values()):,} in {len(run.conversations)} conversations",
        "tokens sent": f"{context:,} for {len(run.requests)} replies ({history:,} with the whole histories)",
        "largest context": f"{largest:,} of {run.table.budget:,} tokens, without pinned messages",
        "folds": f"{folds}, by {calls.count()} calls of {models or 'no model'}{f'; {due} still due' if due else ''}",
        "append": f"median {statistics.median(run.appends) * 1000:.1f} ms, slowest {max(run.appends) * 1000:.1f} ms",
    }
    print(f"\n {paint('Totals', 'bold')}\n")
    for name, fact in facts.items():
        print(f"  {paint(name.ljust(16), 'dim')} {fact}")
    print("\n README.md tells how to use this in your own site.\n")


if __name__ == "__main__":
    sys.exit(main())
