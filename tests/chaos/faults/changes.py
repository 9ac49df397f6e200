"""Changes of the session while the model answers."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Sequence

from django.contrib.auth.models import User

from tests.chaos import gates
from tests.chaos.faults.registry import Heading, fault
from tests.chaos.runs import Run, in_threads
from tests.chaos.talk import PIECE, Talk, with_pieces
from tests.openai_server import MARKER, Behaviour, Exchange, prompt

Change = Callable[[Run, Talk], None]


def during_the_call(says: str, *, owned: bool = False) -> Callable[[Change], Change]:
    """Register a fault: a session is changed while the model answers."""

    def register(change: Change) -> Change:
        fault(Heading.CHANGES, says, name=change.__name__)(functools.partial(_change, change, owned))
        return change

    return register


def _change(change: Change, owned: bool, run: Run) -> None:
    run.site.model.queue(Behaviour(latency=run.rng.uniform(0.1, 0.4)))
    # Users and conversations in different databases cannot refer to each other.
    owned = owned and "routed" not in run.site.name
    owner = User.objects.create(username=f"u{run.seed}") if owned else None
    talk = run.talk(owner=owner)
    run.until_due(talk)
    run.asked(talk)
    run.may_waste += 1
    change(run, talk)


@during_the_call("All messages are deleted.")
def cleared(run: Run, talk: Talk) -> None:
    talk.session.clear()
    talk.forget()
    run.until_due(talk)


@during_the_call("The messages after a random position are deleted.")
def truncated(run: Run, talk: Talk) -> None:
    after = run.rng.randint(0, len(talk.expected_marks))
    talk.session.truncate(after)
    talk.forget(after)
    run.until_due(talk)


@during_the_call("A random message is emptied.")
def redacted(run: Run, talk: Talk) -> None:
    position = run.rng.randint(1, len(talk.expected_marks))
    talk.session.redact(position)
    talk.expected_marks[position] = None
    run.until_due(talk)


@during_the_call("The summary is rebuilt from the first message on.")
def rebuilt(run: Run, talk: Talk) -> None:
    run.until(lambda: run.folded(talk), "the first fold")
    run.until_due(talk)
    run.until(lambda: talk.session.rebuild() == "published", "the summary is made anew")
    run.may_waste += 1


@during_the_call("The session is copied up to a random position.")
def forked(run: Run, talk: Talk) -> None:
    copy = fork(run, talk, run.rng)
    run.until_due(copy)


@during_the_call("The session is deleted.")
def session_deleted(run: Run, talk: Talk) -> None:
    talk.rows.get().delete()
    talk.gone = True


@during_the_call("The user who owns the session is deleted.", owned=True)
def owner_deleted(run: Run, talk: Talk) -> None:
    if talk.owner is None:
        talk.rows.get().delete()
    else:
        User.objects.get(pk=talk.owner.pk).delete()
    talk.gone = True


def fork(run: Run, talk: Talk, rng: random.Random) -> Talk:
    """Copy a session up to a random position."""
    at = rng.randint(0, max(talk.expected_marks))
    expected_marks = {position: mark for position, mark in talk.expected_marks.items() if position <= at}
    copy = run.talk(expected_marks=expected_marks, texts=dict(talk.texts))
    talk.session.fork(at, key=copy.key)
    return copy


# Seconds for which the sessions are changed.
STORM = 5.0


class Redacted:
    """When each redaction returned, by the mark of the redacted message."""

    def __init__(self) -> None:
        self.returned: dict[str, float] = {}

    def late(self, calls: Sequence[Exchange]) -> list[tuple[float, bool]]:
        """Return the requests that came after a redaction had returned, and hold the redacted text.

        Each is returned as the seconds since then, and whether it is excused. It is if the worker had extended its
        lease before the redaction returned, and after it had read the messages.
        """
        late = []
        for call in calls:
            marks = [mark for mark in MARKER.findall(prompt(call.body)) if mark in self.returned]
            returned = min((self.returned[mark] for mark in marks), default=call.started)
            if returned < call.started:
                read, checked = float(call.headers["x-read"]), float(call.headers["x-lease-written"])
                late.append((call.started - returned, 0 < read <= checked <= returned))
        return late


@fault(
    Heading.CHANGES,
    "Sessions are changed again and again, and workers are suspended for short times.",
)
def edited_all_the_time(run: Run) -> None:
    redacted = Redacted()
    ends = time.monotonic() + STORM

    def edit(talk: Talk) -> None:
        rng = random.Random(talk.key)
        copies: list[Talk] = []
        while time.monotonic() < ends:
            run.until_due(talk)
            time.sleep(rng.uniform(0, 0.05))
            position = rng.randint(1, max(talk.expected_marks))
            match rng.choice(["redact", "redact", "redact", "truncate", "clear", "fork"]):
                case "redact":
                    _redact(talk, copies, redacted, position)
                case "truncate":
                    talk.session.truncate(position - 1)
                    talk.forget(position - 1)
                case "clear":
                    talk.session.clear()
                    talk.forget()
                case "fork" if len(copies) < 3:
                    copies.append(fork(run, talk, rng))
            run.may_waste += 1

    def suspend() -> None:
        rng = random.Random(run.seed)
        while time.monotonic() < ends:
            for pid in run.children():
                with run.suspended(pid):
                    time.sleep(rng.uniform(0, 0.3))
            time.sleep(rng.uniform(0, 0.2))

    with run.model_answers(Behaviour(latency=0.05)):
        in_threads(suspend, *[functools.partial(edit, run.talk()) for _ in range(3)])
    run.until(lambda: all(run.folded(talk) for talk in run.talks), "the sessions are folded")
    _look_at_the_prompts(run, redacted)


@fault(Heading.CHANGES, "A message is emptied between a worker's read and its call.")
def redacted_after_it_was_read(run: Run) -> None:
    talk, redacted = run.talk(), Redacted()
    with run.closed(gates.AFTER_READ, talk):
        run.until_due(talk)
        run.arrival(gates.AFTER_READ)
        _redact(talk, [], redacted, position=1)
    run.may_waste += 1
    run.until(lambda: not run.site.gates.arrivals(gates.AFTER_READ), "the worker ends its task")
    run.until_due(talk)
    run.until(lambda: run.folded(talk), "the session is folded")
    _look_at_the_prompts(run, redacted)


@fault(Heading.CHANGES, "A message of many parts is emptied when some of its parts are folded.")
def redacted_between_parts(run: Run) -> None:
    talk, redacted = run.talk(), Redacted()
    with run.model_answers(Behaviour(text=with_pieces, latency=0.1)):
        run.say(talk, [talk.long_message()])
        run.until_due(talk)
        run.asked(talk, run.rng.randint(2, 5))
        _redact(talk, [], redacted, position=1)
        run.may_waste += 1
        run.until_due(talk)
        run.until(lambda: run.folded(talk), "the session is folded")
    kept = [version for version in run.versions(talk) if PIECE.search(version[2])]
    if kept:
        run.problems.append(f"{talk.key}: the redacted text is still in {kept}")
    _look_at_the_prompts(run, redacted)


def _look_at_the_prompts(run: Run, redacted: Redacted) -> None:
    late = redacted.late(list(run.site.model.log))
    run.figures["redactions"] = len(redacted.returned)
    run.figures["prompts with redacted text"] = len(late)
    run.figures["latest of them (s)"] = max((seconds for seconds, _ in late), default=0.0)
    if not all(excused for _, excused in late):
        run.problems.append(f"the model was sent redacted text after the redaction: {late}")


def _redact(talk: Talk, copies: Sequence[Talk], redacted: Redacted, position: int) -> None:
    mark = talk.expected_marks[position]
    talk.session.redact(position)
    if mark is not None:
        redacted.returned[mark] = time.time()
    for copy in (talk, *copies):
        if copy.expected_marks.get(position) == mark:
            copy.expected_marks[position] = None
