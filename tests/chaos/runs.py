"""A run: conversations go on, one fault happens and ends, and the stored rows are checked."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import random
import signal
import string
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import DatabaseError, close_old_connections, connections, transaction
from django.db.models import F

from django_convmemory import clock, exceptions, models, tasks
from django_convmemory.memory import memories
from django_convmemory.operations.folding import PATIENCE
from django_convmemory.rules.pause import Reason
from django_convmemory.rules.values import AttemptOutcome
from django_convmemory.sender import sender
from tests.chaos import servers
from tests.chaos.site import Site
from tests.chaos.site_processes import Died
from tests.chaos.talk import Talk
from tests.openai_server import Behaviour, prompt

# In seconds, where no time is skipped: how long to wait, more than the age of a hint, and how often to sweep.
REAL_PATIENCE = tasks.QUEUED_FOR + 120.0
REAL_SWEEP = 5.0


class Run:
    """One run on a site. ``may_waste`` is how many answers of the model its fault may cost."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.seed = seed
        self.rng = random.Random(seed)
        self.talks: list[Talk] = []
        self.may_waste = 0
        # Whether an append may fail, and the longest time that one took.
        self.may_fail = False
        self.slowest = 0.0
        self.failures = 0
        self.problems: list[str] = []
        self.details = ""
        self.figures: dict[str, float] = {}
        # Whether somebody restarts workers that ended, and whether the suite skips the waiting times of the app.
        self.supervised = True
        self.skips_time = True
        self._swept = 0.0
        self._beginning = threading.Lock()
        site.model.forget()
        # What the pauses counted in the run before.
        models.AliasState.objects.all().delete()

    # Talking.

    def talk(self, **options: Any) -> Talk:
        """Begin a conversation."""
        with self._beginning:
            key = f"r{self.seed}{string.ascii_lowercase[len(self.talks)]}"
            talk = Talk(key, random.Random(key), **options)
            self.talks.append(talk)
        return talk

    def say(self, talk: Talk, messages: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """Append, like a front end that retries until it has an answer. Return the answer."""
        messages = messages or talk.messages()
        key = f"{talk.key}-{talk.number}"
        ends = time.monotonic() + servers.PATIENCE
        answer: dict[str, Any] = {}
        while time.monotonic() < ends:
            client = talk.rng.choice(self.site.clients)
            try:
                answer = talk.say(client, messages, key)
            except Died:
                self.site.replace(client)
                continue
            if "error" not in answer:
                self.slowest = max(self.slowest, answer["seconds"])
                return answer
            self.failures += 1
            if not self.may_fail:
                self.problems.append(f"{talk.key}: an append failed: {answer['error']}")
            time.sleep(0.05)
        raise TimeoutError(f"nobody would store what {talk.key} said: {answer}")

    def until_due(self, talk: Talk) -> None:
        """Talk until the session is due."""
        while not self.say(talk)["due"]:
            pass

    def some_talks(self, **options: Any) -> list[Talk]:
        """Have up to three conversations at once, each until it is due."""
        talks = [self.talk(**options) for _ in range(self.rng.randint(1, 3))]
        in_threads(*[functools.partial(self.until_due, talk) for talk in talks])
        return talks

    @contextlib.contextmanager
    def model_answers(self, behaviour: Behaviour) -> Iterator[None]:
        """Let the model answer like this during the block, unless other behaviours are queued."""
        usual, self.site.model.default = self.site.model.default, behaviour
        try:
            yield
        finally:
            self.site.model.default = usual

    # Waiting.

    def asked(self, talk: Talk, times: int = 1) -> None:
        """Wait until the model is called for the talk."""
        self.until(lambda: len(self.calls(talk)) >= times, f"the model is asked about {talk.key}")

    def calls(self, talk: Talk) -> list[Any]:
        return [call for call in list(self.site.model.log) if f"[[{talk.key}." in prompt(call.body)]

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until ``condition`` holds, and sweep meanwhile."""

        def holds() -> bool:
            if condition():
                return True
            self.sweep()
            time.sleep(0.03)
            return False

        servers.until(holds, what, self.patience)

    @property
    def patience(self) -> float:
        return servers.PATIENCE if self.skips_time else REAL_PATIENCE

    def sweep(self) -> None:
        """Sweep as Celery beat does every minute, skip the waits of sessions and aliases, and supervise the workers."""
        if not self.skips_time and time.monotonic() - self._swept < REAL_SWEEP:
            return
        self._swept = time.monotonic()
        if self.supervised:
            self.supervise()
        close_old_connections()
        try:
            if self.skips_time:
                models.Session.objects.unleased().exclude(next_attempt_at=None).update(next_attempt_at=None)
                self.end_pauses(Reason.OUTAGE, Reason.RATE_LIMIT)
                waited = clock.Clock(-PATIENCE)
                models.Session.objects.due().exclude(due_since__lte=waited).update(due_since=waited)
            for memory in memories.all():
                list(tasks.send_due(memory, limit=1000, queued_for=0.5 if self.skips_time else tasks.QUEUED_FOR))
        except exceptions.BrokerUnavailable:
            sender().close()  # which also forgets for how long to leave it alone
        except Exception:  # noqa: BLE001  the database is away, for which the caller waits
            connections.close_all()

    def supervise(self) -> None:
        """Restart the workers that have ended."""
        for worker in list(self.site.workers):
            if not worker.runs:
                self.site.workers.remove(worker)
                self.site.start_worker()

    def end_leases(self, *talks: Talk) -> None:
        """End the leases now, unless no time is skipped."""
        if not self.skips_time:
            return
        for talk in talks or self.talks:
            leased = talk.rows.exclude(lease_token="")
            leased.update(lease_expires_at=clock.Clock(-1), next_attempt_at=None)

    def end_pauses(self, *reasons: Reason) -> None:
        """End the pauses for these reasons now."""
        paused = models.AliasState.objects.filter(reason__in=reasons, paused_until__gt=clock.Clock())
        paused.update(paused_until=clock.Clock(-1))

    # The state of a talk.

    def summaries(self, talk: Talk) -> list[models.Summary]:
        return list(models.Summary.objects.filter(session__in=talk.rows).order_by("version"))

    def versions(self, talk: Talk) -> list[tuple[int, int, str]]:
        return [(summary.version, summary.last_position, summary.text) for summary in self.summaries(talk)]

    def to_be_rebuilt(self, talk: Talk) -> bool:
        """Whether the model is still to make again what the fallback has made."""
        return bool(talk.rows.exclude(rebuild_after=None).exists())

    def dropped(self, talk: Talk) -> int:
        """How many answers arrived too late."""
        return models.Attempt.objects.filter(session__in=talk.rows, outcome=AttemptOutcome.DROPPED).count()

    def folded(self, talk: Talk, *, end_leases: bool = False) -> bool:
        """Whether the talk is not due. ``end_leases`` takes the session from a process that works on it."""
        if end_leases:
            self.end_leases(talk)
        return not talk.rows.due().exists() and talk.rows.unleased().exists()

    # Kills and locks.

    @contextlib.contextmanager
    def closed(self, gate: str, talk: Talk) -> Iterator[None]:
        """Close a gate for a talk, which gets its first message if it has none, until the end of the block."""
        if not talk.expected_marks:
            self.say(talk, [{"role": "user", "content": f"{talk.mark()} hello"}])
        with self.site.gates.closed(gate, talk.rows.get().pk):
            yield

    def arrival(self, gate: str) -> int:
        """Wait until a process is at the gate, and return its id."""
        swept = time.monotonic()

        def arrived() -> bool:
            nonlocal swept
            if self.site.gates.arrivals(gate):
                return True
            # In a transaction, sweep rarely: on SQLite a sweep has to wait for that process.
            if time.monotonic() - swept > (5 if gate.startswith("in_") else 0):
                self.sweep()
                swept = time.monotonic()
            return False

        servers.until(arrived, f"a worker comes to {gate}", self.patience)
        return self.site.gates.arrivals(gate)[0]

    @contextlib.contextmanager
    def suspended(self, pid: int) -> Iterator[None]:
        """Suspend a process during the block. It may also have just ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def children(self) -> list[int]:
        """Return the ids of the processes that run tasks."""
        return [pid for worker in self.site.workers for pid in worker.children()]

    def kill(self, pid: int) -> None:
        """Kill a process that runs tasks, which may waste a call. It may also have just ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.may_waste += 1

    def kill_children(self) -> None:
        """Kill every process that runs tasks. The workers start others."""
        for pid in self.children():
            self.kill(pid)

    def kill_workers(self) -> None:
        """Kill the workers with all their processes."""
        self.may_waste += 2
        for worker in self.site.workers:
            worker.kill()

    def somebody_waits(self) -> None:
        """Wait until the database reports that a connection waits for a lock."""
        connection = connections[models.Session.objects.db]
        if connection.vendor == "sqlite":
            time.sleep(0.3)
            return
        waiting = {
            "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
            "mysql": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
        }

        def waits() -> bool:
            time.sleep(0.15)  # MariaDB renews its table when nobody has read it for 0.1 s.
            with connection.cursor() as cursor:
                cursor.execute(waiting[connection.vendor])
                return bool(cursor.fetchone()[0])

        servers.until(waits, "somebody waits for a lock")

    def cut_off(self) -> None:
        """Have the database end the connections that are idle in a transaction, as its timeouts do."""
        connection = connections[models.Session.objects.db]
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                )
                return
            cursor.execute(
                "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx"
                " JOIN information_schema.processlist ON id = trx_mysql_thread_id WHERE command = 'Sleep'"
            )
            for (idle,) in cursor.fetchall():
                cursor.execute("KILL %s", [idle])

    @contextlib.contextmanager
    def hold(self, talk: Talk) -> Iterator[None]:
        """Hold the session's row, or on SQLite the database, in a transaction of another thread during the block."""
        held, released = threading.Event(), threading.Event()

        def work() -> None:
            with transaction.atomic(using=models.Session.objects.db):
                talk.rows.update(revision=F("revision"))
                held.set()
                released.wait()
            connections.close_all()

        thread = threading.Thread(target=work)
        thread.start()
        held.wait()
        try:
            yield
        finally:
            released.set()
            thread.join()

    def connect_again(self) -> None:
        """Close the connections of this process until one works, like requests that find them broken.

        PgBouncer hands on the errors of the connections that it had before a restart.
        """

        def answers() -> bool:
            connections.close_all()
            try:
                models.Session.objects.first()
                return True
            except DatabaseError:
                return False

        servers.until(answers, "the database answers")

    # The end.

    def recover(self) -> float:
        """Wait until nothing is due, and return how many seconds that took."""
        began = time.monotonic()
        self.until(self._settled, "the sessions are compacted")
        return time.monotonic() - began

    def _settled(self) -> bool:
        try:
            return all(talk.gone or self.folded(talk) for talk in self.talks)
        except Exception:  # noqa: BLE001  as in sweep
            connections.close_all()
            return False

    def report(self) -> dict[str, Any]:
        """Check all that is stored, and return the result in the form of JSON.

        ``waste`` are the calls of the model that are not in the books, for who made them was killed, or whose answer
        was dropped, for the session had changed. ``details`` says what was drawn, and ``figures`` are what this fault
        measures, by name.
        """
        self.connect_again()
        problems = [*self.problems]
        for talk in self.talks:
            problems += talk.problems()
        # The attempts of a deleted session are gone, so its calls cannot be counted.
        stay = [talk for talk in self.talks if not talk.gone]
        calls = sum(len(self.calls(talk)) for talk in stay)
        booked = models.Attempt.objects.filter(session__key__in=[talk.key for talk in stay])
        # The fallback does not call the server.
        waste = calls - booked.filter(model="fake").exclude(outcome=AttemptOutcome.DROPPED).count()
        if waste > self.may_waste:
            problems.append(f"{waste} calls of the model came to nothing, and {self.may_waste} may have been lost")
        return {
            "site": self.site.name,
            "seed": self.seed,
            "messages": sum(len(talk.expected_marks) for talk in self.talks),
            "waste": max(0, waste),
            "problems": problems,
            "details": self.details,
            "figures": self.figures,
        }


def in_threads(*work: Callable[[], Any]) -> list[Any]:
    """Run all functions at once, and return their results. Raises the error of one of them."""

    def close_after(function: Callable[[], Any]) -> Any:
        try:
            return function()
        finally:
            connections.close_all()

    with concurrent.futures.ThreadPoolExecutor(len(work)) as threads:
        return [done.result() for done in [threads.submit(close_after, function) for function in work]]
