"""Every statement of the app is planned for the partition of its session only, or it is of many sessions."""

from __future__ import annotations

import datetime as dt
import functools
import json
import pathlib
import re
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from django_convmemory import models
from django_convmemory.exceptions import ToolResultRefused
from django_convmemory.maintenance import integrity
from django_convmemory.memory import ConversationTokenBufferMemory, ConversationWindowMemory, memories
from django_convmemory.messages import ChatMessage
from django_convmemory.search import indexing
from django_convmemory.store.orm import ORMStore
from tests.conversations import call
from tests.folding import MarkerModel, build, talk

pytestmark = [pytest.mark.release, pytest.mark.only_on("postgresql")]

# What is planned for several partitions, because it is about several sessions.
OF_MANY = {
    "search, all of a person": "the sessions of a person",
    "redact, with forks": "the session and its forks",
    "erase, all of a person": "the sessions of a person",
    "command: check": "messages whose session is gone: the only statement about the whole table",
    "command: prune": "all sessions that are old, in portions",
    "API: list": "the last message of each session of a page",
    "API: search all": "the sessions of a person",
    "admin: search the list": "the newest sessions",
    "admin: search of a person": "the sessions of a person",
}
PARTITION = re.compile(r'"Relation Name": "(convmemory_message_p\d+)"')


class Planned:
    """Asks the database for the plan of each statement about messages, and notes the partitions in it."""

    def __init__(self) -> None:
        self.most = 0
        self.statement = ""
        self.seen = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "convmemory_message" in sql:
            self.seen += 1
            with connection.connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params[0] if many else params)
                count = len(set(PARTITION.findall(json.dumps(cursor.fetchone()[0]))))
            if count > self.most:
                self.most, self.statement = count, sql
        return execute(sql, params, many, context)


def of_the_store(anna: User) -> dict[str, Callable[[], Any]]:
    memory = build(MarkerModel(), index=True)
    store = ORMStore()
    talk(memory, 30)
    talk(memory, 10, "other")
    for number in range(20):
        memories["default"].session(f"chat {number}", owner=anna).append(ChatMessage.human("A heron at the river."))
    memory.append("s", ChatMessage.system("Be brief."))
    own = models.Session.objects.get(key="s")
    visitor = memories["default"].session("v", visitor="v")
    visitor.append(ChatMessage.human("Hello."))
    return {
        "append": lambda: memory.append("s", ChatMessage.human("One.")),
        "append, several": lambda: memory.append("s", ChatMessage.human("One."), ChatMessage.ai("Two.")),
        "append, more than a statement takes": lambda: memory.append("s", *[ChatMessage.human("One.")] * 1100),
        "append, with a key": lambda: memory.append("s", ChatMessage.human("Once."), idempotency_key="k"),
        "append, a retry": lambda: memory.append("s", ChatMessage.human("Once."), idempotency_key="k"),
        "append, to a new session": lambda: memory.append("new", ChatMessage.human("One."), idempotency_key="k"),
        "append, calls and results": lambda: (
            memory.append("s", ChatMessage.ai(tool_calls=[call("c"), call("d")])),
            memory.append("s", ChatMessage.tool("1", "c"), ChatMessage.tool("2", "d")),
        ),
        "append, a late result": lambda: refused(lambda: memory.append("s", ChatMessage.tool("3", "c"))),
        "load": lambda: memory.load("s"),
        "load, of a row": lambda: memory.load(own),
        "load, all": lambda: memory.load("s", max_tokens=100_000),
        "load, with recall": lambda: memory.load("s", recall="word"),
        "load, a window": lambda: ConversationWindowMemory(store, 3).load("s"),
        "load, a buffer of tokens": lambda: ConversationTokenBufferMemory(store, 30).load("s"),
        "history": lambda: memory.history("s"),
        "history, before": lambda: memory.history("s", before=20),
        "history, after": lambda: memory.history("s", after=20),
        "compact": lambda: memory.compact("s"),
        "rebuild": lambda: memory.rebuild("s"),
        "index": lambda: indexing.index(store, own.pk),
        "search": lambda: memory.search("word", session="s"),
        "search, all of a person": lambda: memories["default"].search("heron", owner=anna),
        "update_message": lambda: memory.update_message("s", 3, metadata={"liked": True}),
        "fork": lambda: [memory.fork("s", 20, key=f"copy {number}") for number in range(5)],
        "redact": lambda: memory.redact("s", 3, forks=False),
        "redact, with forks": lambda: [memory.redact("s", position) for position in range(4, 8)],
        "pop": lambda: memory.pop("s"),
        "replace": lambda: memory.replace("s", 22, ChatMessage.human("Again.")),
        "truncate": lambda: memory.truncate("s", 21),
        "clear": lambda: memory.clear("other"),
        "delete": lambda: memory.delete("other"),
        "adopt": lambda: memories["default"].adopt("v", anna),
        "sweep": lambda: store.sweep("default", limit=10, queued_for=0.0),
    }


def of_commands(folder: pathlib.Path) -> dict[str, Callable[[], Any]]:
    file = str(folder / "export.jsonl")
    silent = {"stdout": StringIO(), "verbosity": 0}
    sessions = models.Session.objects.filter(alias="default")
    return {
        "command: check": lambda: call_command("convmemory_check", **silent),
        # As check --recount and --reindex call them. The check itself looks for rows of all sessions.
        "recount": lambda: [integrity.recount(memories["default"], pk, using="default") for pk in list(sessions.ids())],
        "reindex": lambda: [
            integrity.reindex(memories["default"], pk, using="default", damaged=damaged)
            for pk in list(sessions.ids())
            for damaged in (False, True)
        ],
        "command: export": lambda: call_command("convmemory_export", "--key", "s", "--output", file, **silent),
        "command: import": lambda: (
            memories["default"].delete("s"),
            call_command("convmemory_import", file, **silent),
        ),
        "command: sweep": lambda: call_command("convmemory_sweep", **silent),
    }


def getting(client: Client, path: str, parameters: dict[str, str] | None = None) -> Callable[[], None]:
    def request() -> None:
        assert client.get(path, parameters).status_code == 200

    return request


def of_the_api(anna: User) -> dict[str, Callable[[], Any]]:
    api = APIClient()
    api.force_login(anna)
    root = "/api/memory/sessions/"
    row = models.Session.objects.get(key="chat 1")
    session = f"{root}{row.public_id}/"
    # The API names a message by its id.
    first = str(models.Message.objects.get(session=row, position=1).public_id)
    body = {"messages": [{"role": "user", "content": "Hello."}]}

    get = functools.partial(getting, api)

    def post(path: str, body: Any, status: int, **headers: Any) -> Callable[[], None]:
        def request() -> None:
            answer = api.post(path, body, headers=headers)
            assert answer.status_code == status, answer.content

        return request

    return {
        "API: list": get(root),
        "API: session": get(session),
        "API: append": post(f"{session}messages/", body, 201, **{"Idempotency-Key": "k1"}),
        "API: append again": post(f"{session}messages/", body, 200, **{"Idempotency-Key": "k1"}),
        "API: messages": get(f"{session}messages/"),
        "API: message": get(f"{session}messages/{first}/"),
        "API: context": get(f"{session}context/"),
        "API: search": get(f"{session}search/?q=heron"),
        "API: search all": get("/api/memory/search/?q=heron"),
        "API: redact": post(f"{session}messages/{first}/redact/", {}, 200),
        "API: truncate": post(f"{session}truncate/", {"after": first}, 200, **{"If-Match": "*"}),
        "API: export": get(f"{session}export/"),
    }


def of_the_admin() -> dict[str, Callable[[], Any]]:
    client = Client()
    client.force_login(User.objects.create_superuser("admin"))
    changelist = "/admin/convmemory/session/"
    page = f"{changelist}{models.Session.objects.get(key='s').pk}/change/"

    get = functools.partial(getting, client)

    return {
        "admin: list": get(changelist),
        "admin: search the list": get(changelist, {"q": "word"}),
        "admin: search of a person": get(changelist, {"q": "anna/heron"}),
        "admin: session": get(page),
        "admin: find": get(page, {"find": "word"}),
        "admin: before": get(page, {"before": "10"}),
    }


def of_the_end(anna: User) -> dict[str, Callable[[], Any]]:
    for user, count in ((anna, 20), (User.objects.create_user("ben"), 20)):
        for number in range(count):
            memories["default"].session(f"chat {number}", owner=user).append(ChatMessage.human("Hello."))
    return {
        "erase, all of a person": lambda: memories.erase(owner=anna),
        "command: prune": lambda: (
            models.Session.objects.update(updated_at=timezone.now() - dt.timedelta(days=9)),
            call_command("convmemory_prune", "--inactive-for", "7d", verbosity=0),
        ),
    }


def refused(work: Callable[[], Any]) -> None:
    with pytest.raises(ToolResultRefused):
        work()


def test_every_statement_is_planned_for_the_partition_of_its_session(partitioned: None, tmp_path: pathlib.Path) -> None:
    anna = User.objects.create_user("anna")
    several: dict[str, tuple[int, str]] = {}
    seen = 0

    def run(steps: dict[str, Callable[[], Any]]) -> None:
        nonlocal seen
        for name, step in steps.items():
            noted = Planned()
            with connection.execute_wrapper(noted):
                step()
            seen += noted.seen
            if noted.most > 1:
                several[name] = noted.most, noted.statement

    run(of_the_store(anna))
    run(of_the_admin())
    run(of_commands(tmp_path))
    run(of_the_api(anna))
    run(of_the_end(anna))
    assert seen > 100
    unexplained = {name: found for name, found in several.items() if name not in OF_MANY}
    assert unexplained == {}
    assert set(OF_MANY) == set(several)
