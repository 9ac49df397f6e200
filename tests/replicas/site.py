"""What tests do in the process of a site with a replica."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings, setup_test_environment

from django_convmemory import models
from django_convmemory.memory import memories

SECRET = "Zanzibar"


def prepare() -> None:
    setup_test_environment()


def ann() -> User:
    return User.objects.filter(username="ann").first() or User.objects.create_superuser("ann")


def client() -> Client:
    made = Client()
    made.force_login(ann())
    return made


def begin(*keys: str) -> None:
    """Make these sessions of Ann the only ones in the database. Each has 12 messages, and the first one a summary."""
    with connections["default"].cursor() as cursor:
        cursor.execute("TRUNCATE auth_user, convmemory_session, convmemory_aliasstate CASCADE")
    for key in keys:
        session = memories["default"].session(key, owner=ann())
        for number in range(12):
            session.append({"role": "user", "content": f"Castle number {number} of {key}, near {SECRET}."})
    memories["default"].session(keys[0], owner=ann()).compact()


def without_replica() -> Any:
    return override_settings(DATABASE_ROUTERS=[])


def walk(pages: Client) -> dict[str, Any]:
    """Return what people see of Ann's conversations, by the place where they see it."""
    seen: dict[str, Any] = {}
    for session in models.Session.objects.using("default").order_by("pk"):
        seen |= {f"{session.key}: {place}": value for place, value in _conversation(pages, session)}
    people: dict[str, dict[str, Any]] = {
        "owner": {"owner": ann()},
        "query": {"sessions": models.Session.objects.filter(owner=ann())},
    }
    for place, query in people.items():
        for words in ("castle", SECRET):
            seen[f"{place}: {words}"] = _hits(memories["default"].search(words, limit=50, **query))
    for path in ("sessions/", "search/?q=castle", f"search/?q={SECRET}"):
        seen[f"API: {path}"] = _answer(pages.get(f"/api/{path}"))
    filters = ("", "?q=castle", "?q=ann/castle", "?q=ann/new", "?alias=default", "?state=due")
    for path in (*filters, "overview/", "attempts/"):
        seen[f"admin: {path}"] = _castles(pages.get(f"/admin/convmemory/session/{path}"))
    for path in ("metrics/", "health/", "health/workers/"):
        seen[path] = pages.get(f"/monitoring/{path}").status_code
    for command in ("check", "export", "evaluate", "stats"):
        seen[command] = re.sub(r"oldest due \(s\).*", "", run(command))
    return seen


def _conversation(pages: Client, session: models.Session) -> Iterator[tuple[str, Any]]:
    handle = memories["default"].session(session)
    bounds: tuple[dict[str, int], ...] = ({}, {"before": 3}, {"after": 1}, {"after": 100})
    for bound in bounds:
        yield (
            f"history {bound}",
            repr(handle.memory.history(handle, before=bound.get("before"), after=bound.get("after"))),
        )
    yield "load", handle.load(recall="castle").to_text()
    for words in ("castle", SECRET):
        yield f"search {words}", _hits(handle.search(words, neighbours=1))
    for path in (
        *("", "status/", "context/?explain=1", "messages/", "messages/1/", "messages/?ordering=-position"),
        *("summaries/", "summaries/1/", "search/?q=castle", "export/", "events/"),
    ):
        yield f"API {path}", _answer(pages.get(f"/api/sessions/{session.public_id}/{path}"))
    for path in ("change/", "change/?find=castle", "status/", "export/", "trial/"):
        yield f"admin {path}", _castles(pages.get(f"/admin/convmemory/session/{session.pk}/{path}"))


def _hits(hits: Any) -> Any:
    return [hits.complete, *([repr(hit), repr(hit.neighbours)] for hit in hits)]


def _answer(response: Any) -> list[Any]:
    # Each response seals its cursors anew.
    return [response.status_code, response.get("ETag"), re.sub(r"cursor=[^\"]*", "", _body(response))]


def _castles(response: Any) -> list[Any]:
    """Return what a page of the admin shows of the conversations. The rest of it has times and tokens."""
    words = f"(?:[Cc]astle|</mark>) number [0-9]+ of [a-z]+|{SECRET}|Nothing is found"
    return [response.status_code, *re.findall(words, _body(response))]


def _body(response: Any) -> str:
    body: bytes = b"".join(response) if response.streaming else response.content
    return body.decode()


def run(command: str, *arguments: str) -> str:
    out = io.StringIO()
    call_command(f"convmemory_{command}", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def differences(seen: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [f"{name}: {value!r} is not {expected[name]!r}" for name, value in seen.items() if value != expected[name]]


@contextlib.contextmanager
def statements() -> Iterator[dict[str, list[str]]]:
    """Collect the tables that statements read, by database."""
    read: dict[str, list[str]] = {}
    with (
        CaptureQueriesContext(connections["default"]) as default,
        CaptureQueriesContext(connections["replica"]) as other,
    ):
        yield read
    for name, queries in (("default", default), ("replica", other)):
        texts = " ".join(query["sql"] for query in queries.captured_queries)
        read[name] = sorted(set(re.findall(r'(?:FROM|INTO|UPDATE) "?convmemory_(\w+)', texts)))


def tables(work: Callable[[], Any]) -> dict[str, list[str]]:
    with statements() as read:
        work()
    return read


def in_transaction(work: Callable[[], Any]) -> Any:
    with transaction.atomic():
        return work()


def report(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
