"""Faults of a worker."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from django_convmemory import clock
from tests.chaos import gates, servers
from tests.chaos.chat_models import HUGE
from tests.chaos.faults.registry import SERVERS, Drawn, Heading, fault
from tests.chaos.runs import Run, in_threads
from tests.chaos.site import TWO_ATTEMPTS
from tests.chaos.site_processes import ROOT
from tests.chaos.talk import PIECE, PIECES, Talk, with_pieces
from tests.openai_server import Behaviour

FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"


@fault(Heading.WORKER, "No fault, for comparison.")
def nothing(run: Run) -> None:
    run.some_talks()


def killed_at(gate: str, name: str, says: str) -> None:
    """Register a fault: a worker is killed at a gate."""

    @fault(Heading.WORKER, says, name=name)
    def inject(run: Run) -> None:
        talk = run.talk()
        with run.closed(gate, talk):
            run.until_due(talk)
            run.kill(run.arrival(gate))
        run.end_leases()


killed_at(gates.BEFORE_CALL, "killed_before_the_call", "A worker is about to call the model.")


@fault(Heading.WORKER, "A worker waits for the model's answer.")
def killed_during_the_call(run: Run) -> None:
    run.site.model.queue(*[Behaviour("hang")] * 3)
    talks = run.some_talks()
    run.asked(talks[0])
    time.sleep(run.rng.uniform(0, 0.3))
    run.kill_children()
    run.site.model.forget_queue()
    run.end_leases()


killed_at(gates.AFTER_ANSWER, "killed_after_the_answer", "A worker has the answer.")


@fault(Heading.WORKER, "A worker that publishes waits for the lock of the row.")
def killed_while_publishing(run: Run) -> None:
    talk = run.talk()
    with contextlib.ExitStack() as holding:
        with run.closed(gates.AFTER_ANSWER, talk):
            run.until_due(talk)
            pid = run.arrival(gates.AFTER_ANSWER)
            holding.enter_context(run.hold(talk))
        run.somebody_waits()
        run.kill(pid)
    run.end_leases()


# The session's row points to a version that does not exist yet.
killed_at(
    gates.BETWEEN_WRITES,
    "killed_between_its_writes",
    "A worker is in the middle of the transaction that publishes.",
)


def suspended_at(run: Run, gate: str) -> tuple[Talk, int]:
    """Suspend a worker at a gate. Return the talk that it folds, and its process id."""
    talk = run.talk()
    with run.closed(gate, talk):
        run.until_due(talk)
        stopped = run.arrival(gate)
        os.kill(stopped, signal.SIGSTOP)
    return talk, stopped


@fault(Heading.WORKER, "A worker is suspended for a second in that transaction.")
def stopped_between_its_writes(run: Run) -> None:
    """For a second. Meanwhile other sessions go on, except on SQLite, which has one writer at a time."""
    _, stopped = suspended_at(run, gates.BETWEEN_WRITES)
    ends = threading.Timer(1.0, os.kill, (stopped, signal.SIGCONT))
    ends.start()
    run.some_talks()
    ends.join()


@fault(
    Heading.WORKER,
    "The same, until the database closes its connection.",
    on=("postgresql", "mariadb"),
)
def cut_off_between_its_writes(run: Run) -> None:
    """It is stopped until the database ends its transaction, and continued after others have folded."""
    talk, stopped = suspended_at(run, gates.BETWEEN_WRITES)
    run.may_waste += 1
    try:
        run.cut_off()
        run.end_leases(talk)
        run.until(lambda: run.versions(talk), "another process folds it")
    finally:
        os.kill(stopped, signal.SIGCONT)


killed_at(gates.AFTER_PUBLISH, "killed_after_publishing", "A worker has published, and its task has not ended.")


@fault(Heading.WORKER, "All child processes are killed at a random moment.")
def killed_at_some_moment(run: Run) -> None:
    run.site.model.queue(*[Behaviour(latency=run.rng.uniform(0, 0.1))] * 3)
    talks = [run.talk() for _ in range(3)]

    def kill() -> None:
        time.sleep(run.rng.uniform(0, 0.8))
        run.kill_children()

    in_threads(kill, *[lambda talk=talk: run.until_due(talk) for talk in talks])
    run.end_leases()


def kill_four_times(run: Run) -> None:
    for _ in range(4):
        time.sleep(run.rng.uniform(0, 0.6))
        run.kill_children()
        run.end_leases()
        run.sweep()


@fault(Heading.WORKER, "They are killed four times while hundreds of messages are folded.")
def killed_again_and_again(run: Run) -> None:
    """While hundreds of messages are folded, chunk by chunk."""
    talk = run.talk()
    run.site.model.queue(*[Behaviour(latency=run.rng.uniform(0, 0.2)) for _ in range(10)])
    while len(talk.expected_marks) < 200:
        run.say(talk, talk.messages(40))
    kill_four_times(run)
    run.site.model.forget_queue()


@fault(Heading.WORKER, "They are killed four times while a message is folded in parts.")
def killed_between_parts(run: Run) -> None:
    """A part that is stored is not folded again."""
    talk = run.talk()
    with run.model_answers(Behaviour(text=with_pieces, latency=0.1)):
        run.say(talk, [talk.long_message()])
        run.until_due(talk)
        kill_four_times(run)
        run.until(lambda: run.folded(talk), "it is folded")
    made = run.summaries(talk)
    run.figures["parts"] = sum(summary.part_end is not None for summary in made) + 1
    if any(summary.invalidated_at for summary in made):
        run.problems.append(f"{talk.key}: parts were folded again: {run.versions(talk)}")
    pieces = [int(piece.strip("{}")) for piece in PIECE.findall(made[-1].text)]
    if pieces != list(range(PIECES)):
        run.problems.append(f"{talk.key}: of {PIECES} pieces, the summary has {pieces}")


@fault(Heading.WORKER, "No sweep runs. The tasks that appends send must suffice.")
def nobody_sweeps(run: Run) -> None:
    """Without failures the tasks that appends send are enough, also for folds of many chunks.

    Somebody may have found the broker gone, or slow, and leave it alone for a while; but then its log says so.
    """
    run.site.restart_clients()
    run.site.stop_workers()
    run.site.start_worker()
    before = run.site.complaints()
    talk = run.talk()
    for _ in range(2):
        while len(talk.expected_marks) < run.rng.randint(1, 60):
            run.say(talk, talk.messages(20))
        run.until_due(talk)
        servers.until(
            lambda: run.folded(talk) or run.site.complaints() > before,
            "it is folded without a sweep, or a log says why",
        )


@fault(Heading.WORKER, "The workers are killed with all their child processes.")
def whole_worker_killed(run: Run) -> None:
    run.site.model.queue(*[Behaviour(latency=run.rng.uniform(0, 0.5))] * 3)
    run.some_talks()
    run.kill_workers()
    run.end_leases()


@fault(Heading.WORKER, "A worker with an answer continues after another one has folded the messages.")
def stopped_for_longer_than_its_lease(run: Run) -> None:
    """A stopped process wakes up with an answer after another process has folded the same messages."""
    woken_with_an_answer(run, run.end_leases)


def woken_with_an_answer(run: Run, end_leases: Callable[[], None] = lambda: None) -> None:
    talk, zombie = suspended_at(run, gates.AFTER_ANSWER)
    run.may_waste += 1
    end_leases()
    try:
        run.until(lambda: run.versions(talk), "another process folds it when the lease has ended")
    finally:
        os.kill(zombie, signal.SIGCONT)
    made = run.versions(talk)
    run.until(lambda: run.dropped(talk) == 1, "the zombie's answer is dropped")
    if run.versions(talk)[: len(made)] != made:
        run.problems.append(f"the zombie changed {made} to {run.versions(talk)}")


@fault(Heading.WORKER, "One of two workers is killed, and nobody restarts it.")
def killed_and_not_restarted(run: Run) -> None:
    run.site.model.queue(*[Behaviour(latency=run.rng.uniform(0.2, 0.6))] * 3)
    [killed] = run.site.workers
    run.supervised = False
    run.site.start_worker()
    talks = run.some_talks()
    run.asked(talks[0])
    killed.kill()
    run.site.workers.remove(killed)
    # Two calls of the killed worker, and two of the other one, which loses its leases too.
    run.may_waste += 4
    run.end_leases()


@fault(Heading.WORKER, "A worker runs the code of an older version.")
def a_worker_of_the_old_code(run: Run) -> None:
    if not run.site.old:
        raise servers.NotRun("no --old was given")
    folder = old_code(run.site.folder / "old", run.site.old)
    with run.site.other_workers(folder=folder) as worker:
        # Otherwise the new code would be tested.
        assert f"The worker runs {folder / 'django_convmemory'}." in worker.log.read_text()
        for talk in run.some_talks():
            run.until(functools.partial(run.folded, talk), "the old worker folds it")
        # What the new code changes, the old code folds again.
        talk.session.redact(1)
        talk.expected_marks[1] = None
        run.until_due(talk)
        run.until(lambda: run.folded(talk), "the old worker folds what was changed")


def old_code(folder: pathlib.Path, version: str) -> pathlib.Path:
    """Write the app as it was at a tag or commit into ``folder``, unless it is there."""
    if not folder.exists():
        archive = folder.with_suffix(".tar")
        subprocess.run(["git", "archive", f"--output={archive}", version, "django_convmemory"], cwd=ROOT, check=True)
        shutil.unpack_archive(archive, folder)
    return folder


@fault(Heading.WORKER, "A worker is suspended until its lease has ended by the database's clock.", drawn=Drawn.NAMED)
def slept_through_its_lease(run: Run) -> None:
    """In real time: only the database's clock ends the lease."""
    woken_with_an_answer(run)


@fault(Heading.WORKER, "A worker is killed, and no time is skipped.", drawn=Drawn.NAMED)
def killed_and_nobody_skips_time(run: Run) -> None:
    """The recovery time is what an engineer on call sees, except that the sweep does not wait for its minute."""
    run.site.model.queue(Behaviour("hang"))
    talk = run.talk()
    run.until_due(talk)
    run.asked(talk)
    run.kill_children()


# With SQLite every process is on one machine, and its clock is the database's.
@fault(Heading.WORKER, "One worker's clock is an hour ahead, another's an hour behind.", on=SERVERS)
def clocks_an_hour_apart(run: Run) -> None:
    """One worker's clock is an hour ahead, the other's an hour behind, and the model fails once."""
    library = servers.program(FAKETIME)
    run.site.stop_workers()
    try:
        for offset in ("+1h", "-1h"):
            # Durations stay true. With a true monotonic clock, time.sleep() of a worker of Django's tasks would fail.
            true = "0" if run.site.broker is None else "1"
            lie = {"FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": true, "LD_PRELOAD": library}
            run.site.start_worker(lie)
        run.site.model.queue(Behaviour("server_error"))
        for talk in run.some_talks():
            run.until(functools.partial(run.folded, talk), "it is folded by a worker whose clock is wrong")
    finally:
        run.site.stop_workers()
        run.site.start_worker()


@fault(Heading.WORKER, "Each worker that calls the model with a certain chunk is killed.")
def out_of_memory_on_one_chunk(run: Run) -> None:
    talk = run.talk(alias="fallback")
    run.say(talk, [{"role": "user", "content": f"{talk.mark()} {HUGE}"}])
    run.until_due(talk)
    # The fallback stands in only if the session has been due for long.
    talk.rows.exclude(due_since=None).update(due_since=clock.Clock(-TWO_ATTEMPTS["fallback_after"]))
    run.until(lambda: run.folded(talk, end_leases=True), "the fallback folds it")
    # Then the model tries that part. This kills a worker too, so the next try is a day later.
    tomorrow = talk.rows.filter(rebuild_after__gt=clock.Clock(3600))
    run.until(tomorrow.exists, "the model tries to make it again")
    run.until(lambda: run.folded(talk, end_leases=True), "its lease ends")
    made = run.summaries(talk)
    if not (made[0].fallback and made[0].stand_in and made[0].invalidated_at is None):
        run.problems.append(f"{talk.key}: what kills every worker was folded by the model itself")
