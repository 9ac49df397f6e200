"""A storm of turns: the processes and the clients, and the proof that each promise was kept."""

from __future__ import annotations

import base64
import collections
import dataclasses
import functools
import http.client
import json
import random
import threading
import time
from importlib.util import find_spec
from typing import Any

from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from django_convmemory import models
from django_convmemory.memory import memories
from tests.chaos import responder, servers, site as sites
from tests.chaos.runs import Run, in_threads
from tests.chaos.site_processes import Process
from tests.openai_server import MARKER

SESSIONS, CLIENTS, PROCESSES = 40, 16, 3
# Seconds between two kills, and for how long a client sends a question.
KILLS, PATIENCE = (4.0, 9.0), 180.0
# How many questions of a hundred are new, and at how many pieces of a hundred a reader leaves.
KINDS, LEAVES = {"new": 82, "edit": 9, "again": 9}, 1
# What clients do not send again, and what they do.
FINAL = {"question_changed", "unknown_message", "nothing_to_answer"}
TEMPORARY = {"turn_in_progress", "turn_lost", "responder_failed", "empty_reply", "no connection", "left", "lost"}


@dataclasses.dataclass
class Asked:
    """A question. ``target`` is the position of the one that it edits or answers anew, or None."""

    key: str
    session: str
    body: dict[str, Any]
    target: int | None
    began: float
    ended: float = 0.0
    # Of each of the two requests: the question and its reply, or one of FINAL.
    replies: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    refusals: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Try:
    """A turn that was opened for a key. ``failed`` says why there may be another one. ``calls`` are the model's."""

    token: str
    key: str
    session: str
    position: int
    process: int
    began: float
    calls: set[int] = dataclasses.field(default_factory=set)
    # What the model is doing, "run" for a tool, or "".
    busy: str = ""
    failed: str = ""
    killed: float = 0.0


class Storm:
    """The processes and the clients."""

    def __init__(self, run: Run, server: str, turns: int) -> None:
        self.run, self.server, self.turns = run, server, turns
        self.lock = threading.Lock()
        self.asked: list[Asked] = []
        self.codes: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        owner = User.objects.create_user("ada", password="ada")
        for number in range(SESSIONS):
            memories["default"].session(f"s{number}", owner=owner).create()
        self.sessions: dict[str, Any] = dict(models.Session.objects.values_list("key", "public_id"))
        self.ports = [servers.free_port() for _ in range(PROCESSES)]
        self.processes = [self.started(number) for number in range(PROCESSES)]

    def started(self, number: int) -> Process:
        """Start a process. Every second one answers with an asynchronous function."""
        function, port = ("ask", "asynchronous_ask")[number % 2], str(self.ports[number])
        environment = {"CONVMEMORY_CHAOS_RESPONDER": f"tests.chaos.responder.{function}"}
        environment |= sites.database_of_process(CONN_MAX_AGE=0)
        command = "django runserver --noreload"
        if self.server == "asgi":
            command = "uvicorn django.core.asgi:get_asgi_application --factory --lifespan off --port"
        elif find_spec("gunicorn"):
            command = "gunicorn django.core.wsgi:get_wsgi_application() --worker-class gthread --threads 32 --bind"
            port = f"127.0.0.1:{port}"
        return Process(self.run.site, f"web{number}", *command.split(), port, environment=environment)

    def rage(self) -> None:
        """Have the clients ask, and kill processes meanwhile. Then wait until all is folded."""
        in_threads(*[functools.partial(self.client, number) for number in range(CLIENTS)], self.kill)
        for process in self.processes:
            process.kill()
        self.run.until(lambda: not models.Session.objects.due().exists(), "all is folded")

    def kill(self) -> None:
        """Kill a process and start another one, now and then. Sweep meanwhile."""
        due = time.monotonic() + KILLS[1]
        while len(self.asked) < self.turns or not all(asked.ended for asked in self.asked):
            self.run.sweep()
            time.sleep(0.1)
            if time.monotonic() > due:
                number = self.run.rng.randrange(PROCESSES)
                self.processes[number].kill()
                open_turns = models.Session.objects.exclude(turn_token="").values_list("turn_token", "key")
                responder.note("kill", process=self.processes[number].pid, turns=list(open_turns))
                self.processes[number] = self.started(number)
                due = time.monotonic() + self.run.rng.uniform(*KILLS)

    # A client.

    def client(self, number: int) -> None:
        """Ask until enough was asked."""
        rng = random.Random(f"{self.run.seed}-{number}")
        while (asked := self.next(rng)) is not None:
            try:
                in_threads(*[functools.partial(self.click, asked, random.Random(rng.random())) for _ in range(2)])
            finally:
                asked.ended = time.time()

    def next(self, rng: random.Random) -> Asked | None:
        """Return the next question, or None if enough was asked."""
        with self.lock:
            key, session = f"q{len(self.asked)}", rng.choice(list(self.sessions))
            if len(self.asked) == self.turns:
                return None
            text = f"[[{key}]] " + "When does the next train to Bled leave? " * rng.randint(1, 3)
            body: dict[str, Any] = {"message": {"content": text}}
            known = [asked.replies[0]["question"] for asked in self.asked if asked.session == session and asked.replies]
            [kind] = rng.choices(list(KINDS), list(KINDS.values()))
            target = rng.choice(known[-3:]) if known and kind != "new" else None
            if target is not None:
                body = {"again": target["id"]} if kind == "again" else body | {"edit": target["id"]}
            self.asked.append(Asked(key, session, body, target and target["position"], time.time()))
            return self.asked[-1]

    def click(self, asked: Asked, rng: random.Random) -> None:
        """Send the question until it has its reply, or is refused for good."""
        while (began := time.time()) < asked.began + PATIENCE:
            try:
                code, document = self.send(asked, rng)
            except (OSError, http.client.HTTPException):
                code, document = "no connection", {}
            if code == "done" and (document["reply"] or {"cut_off": "none"})["cut_off"]:
                code = "lost"
            self.codes[code] += 1
            if code == "done":
                return asked.replies.append(document)
            if code in FINAL:
                return asked.refusals.append(code)
            if code not in TEMPORARY:
                self.problems.append(f"{asked.key}: {code} {document}")
            if code == "turn_in_progress":
                responder.note("waited", session=asked.session, began=began)
            time.sleep(rng.uniform(0, 0.5))
        return self.problems.append(f"{asked.key}: no reply in {PATIENCE:.0f} s")

    def send(self, asked: Asked, rng: random.Random) -> tuple[str, dict[str, Any]]:
        """Send the question, and return the code of the answer and its document."""
        connection = http.client.HTTPConnection("127.0.0.1", rng.choice(self.ports), timeout=60)
        headers = {
            "Accept": rng.choice(["application/json", "text/event-stream"]),
            "Authorization": "Basic " + base64.b64encode(b"ada:ada").decode(),
            "Content-Type": "application/json",
            "Idempotency-Key": asked.key,
            "If-Match": "*",
        }
        path = f"/api/memory/sessions/{self.sessions[asked.session]}/turns/"
        try:
            connection.request("POST", path, json.dumps(asked.body), headers)
            response = connection.getresponse()
            for line in response:
                if line.startswith(b"event: delta") and rng.randrange(100) < LEAVES:
                    responder.note("left", key=asked.key)
                    return "left", {}
                if line.startswith((b"event: done", b"event: error")):
                    line = response.readline().removeprefix(b"data: ")
                if line.startswith(b"{"):
                    document = json.loads(line)
                    return document.get("code", "done"), document
            if response.status >= 500:
                return str(response.status), {}
            raise http.client.IncompleteRead(b"")
        finally:
            connection.close()


class Proof:
    """Compares what the site has noted and stored with what turns promise, and prints how often what happened."""

    def __init__(self, storm: Storm) -> None:
        self.asked, self.problems = storm.asked, storm.problems
        self.timeout = memories["default"].options.turn_timeout
        # By their tokens, and the newest one of each session.
        self.tries: dict[str, Try] = {}
        self.newest: dict[str, Try] = {}
        # The results of tools that were stored, and for how long turns of killed processes have blocked their session.
        self.results: dict[str, tuple[Try, float]] = {}
        self.blocked: dict[str, float] = {}
        for line in (storm.run.site.folder / "notes").read_text().splitlines():
            note = json.loads(line)
            turn = self.tries.get(note.get("token"))
            if turn is None and note["what"] in ("call", "end", "run", "stored"):
                self.problems.append(f"This belongs to no turn: {note}")
            else:
                getattr(self, f"read_{note['what']}")(turn, note)
        self.compare_rows()
        self.compare_clients()
        try:
            call_command("convmemory_check", verbosity=0)
        except CommandError as error:
            self.problems.append(str(error))
        tries = [turn for turn in self.tries.values() if turn.calls]
        failed = collections.Counter(turn.failed for turn in tries if turn.failed)
        replies, calls = sum(bool(asked.replies) for asked in self.asked), sum(len(turn.calls) for turn in tries)
        print(f"{len(self.asked)} questions and {replies} replies. Of the site: {dict(storm.codes)}.")
        print(f"{calls} calls of the model in {len(tries)} tries, of which {failed.total()} failed: {dict(failed)}.")
        longest = max(self.blocked.values(), default=0.0)
        print(f"{len(self.blocked)} turns of killed processes blocked their session, for {longest:.1f} s at most.")
        print(f"{len(self.results)} results of tools, {models.Summary.objects.count()} summaries.")

    # The notes, in the order of time.

    def read_try(self, before: None, note: dict[str, Any]) -> None:
        turn = Try(*[note[field] for field in ("token", "key", "session", "position", "process", "began")])
        last = self.newest.get(turn.session)
        if last is not None and last.busy and not last.failed:
            # A busy machine may be too slow for the signs of life of a long stream.
            if last.busy == "long" and note["at"] > last.began + self.timeout:
                last.failed = "late"
            else:
                self.problems.append(f"{turn.key}: its turn was opened while that of {last.key} was open")
        self.newest[turn.session] = self.tries[turn.token] = turn

    def read_call(self, turn: Try, note: dict[str, Any]) -> None:
        others = [other for other in self.tries.values() if other.key == turn.key and other is not turn and other.calls]
        if note["number"] in turn.calls or not all(other.failed for other in others):
            self.problems.append(f"{turn.key}: the model was asked twice")
        # A turn that has lasted too long may find another question in the place of its own. Its reply is not stored.
        if not note["shown"] and not self.replaced(turn.session, turn.key, turn.began, turn.position):
            self.problems.append(f"{turn.key}: the model was not shown the question")
        turn.calls.add(note["number"])
        turn.busy = note["kind"]
        turn.failed = turn.failed or (turn.busy if turn.busy in responder.BAD else "")

    def read_end(self, turn: Try, note: dict[str, Any]) -> None:
        turn.busy = ""

    def read_run(self, turn: Try, note: dict[str, Any]) -> None:
        turn.busy = "run"
        if note["call"] in self.results:
            self.problems.append(f"{turn.key}: {note['call']} was run again after its result had been stored")

    def read_stored(self, turn: Try, note: dict[str, Any]) -> None:
        turn.busy = ""
        self.results[note["call"]] = turn, note["at"]

    def read_kill(self, before: None, note: dict[str, Any]) -> None:
        for token, session in note["turns"]:
            # It may have been killed before it could note its turn.
            unknown = Try(token, "", session, 0, note["process"], note["at"])
            turn = self.tries.get(token, unknown)
            if turn.process == note["process"]:
                turn.failed, turn.killed = "killed", note["at"]
                self.newest[session] = turn

    def read_left(self, before: None, note: dict[str, Any]) -> None:
        for turn in [turn for turn in self.tries.values() if turn.key == note["key"]]:
            turn.failed = turn.failed or "left"

    def read_waited(self, before: None, note: dict[str, Any]) -> None:
        turn = self.newest.get(note["session"])
        if turn is not None and turn.killed:
            self.blocked[turn.token] = note["at"] - turn.killed
            if note["began"] > turn.killed + self.timeout:
                self.problems.append(f"{turn.key}: its turn blocked the session for too long after a kill")

    # What is stored.

    def compare_rows(self) -> None:
        """Check what belongs to which question, how often it is stored, and what the summaries were made of."""
        marks: collections.Counter[str] = collections.Counter()
        for session in models.Session.objects.all():
            rows = models.Message.objects.filter(session=session).order_by("position")
            texts = [MARKER.findall(str(row.content))[0] for row in rows]
            question, replied = models.Message(), False
            for row, mark in zip(rows, texts, strict=True):
                if row.role == "user":
                    question, replied = row, False
                    continue
                if replied or row.reply_to != question.position:
                    self.problems.append(f"{session.key}: {mark} does not belong to the question before it")
                if row.role == "assistant" and mark.split("/")[1] != str(question.public_id):
                    self.problems.append(f"{session.key}: {mark} is a reply to a question that was changed")
                replied = row.cut_off is not None
            for version in models.Summary.objects.filter(session=session, part_end=None).valid():
                if MARKER.findall(version.text) != texts[: version.last_position]:
                    self.problems.append(f"{session.key}: a summary is not of the messages that it stands for")
            marks.update(texts)
        self.problems += [f"{mark} is stored {count} times" for mark, count in marks.items() if count > 1]
        for call, (turn, at) in self.results.items():
            if f"[[{call}]]" not in marks and not self.replaced(turn.session, turn.key, at, turn.position):
                self.problems.append(f"{turn.key}: the result of {call} was lost")

    def compare_clients(self) -> None:
        """Check that what the clients have got is stored, and that they were refused for a reason."""
        ids = set(map(str, models.Message.objects.values_list("public_id", flat=True)))
        for asked in self.asked:
            replies = {document["reply"]["id"]: document["question"] for document in asked.replies}
            for reply, question in replies.items():
                gone = len(replies) > 1 or not {reply, question["id"]} <= ids
                if gone and not self.replaced(asked.session, asked.key, asked.began, question["position"]):
                    self.problems.append(f"{asked.key}: its question or reply was lost, or it has two replies")
            since = asked.began if "question_changed" in asked.refusals else 0.0
            if asked.refusals and not self.replaced(asked.session, asked.key, since):
                self.problems.append(f"{asked.key}: {asked.refusals}, and nobody else has changed the session")

    def replaced(self, session: str, key: str, since: float, position: int | None = None) -> bool:
        """Whether another key may have replaced what followed ``position`` since then, or have changed the session."""
        others = [
            other for other in self.asked if other.session == session and other.key != key and other.ended > since
        ]
        return any(position is None or (other.target or position + 1) <= position for other in others)
