"""A process of the site that serves requests: ``python -m tests.chaos.client``.

A request is a line of JSON on its standard input, ``{"session": {"key", "owner"?, "alias"?}, "messages", "key"?}``, and
so is the answer on its standard output: ``{"first", "last", "due", "seconds"}`` or ``{"error", "seconds"}``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import django


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.db import close_old_connections, connections

    import tests.chaos.app  # noqa: F401  as a project's package does
    from django_convmemory import models
    from django_convmemory.memory import memories

    connection = connections[models.Session.objects.db]

    def finish(done: Callable[[], None]) -> None:
        if not connection.get_autocommit():
            done()

    def serve(request: dict[str, Any]) -> dict[str, Any]:
        named = request["session"]
        memory = memories[named.get("alias", "default")]
        owner = {"owner": User.objects.get(pk=named["owner"])} if "owner" in named else {}
        session = memory.session(named["key"], **owner)
        if "messages" not in request:
            return {"shown": len(session.load())}
        receipt = session.append(*request["messages"], idempotency_key=request.get("key"))
        return {"first": receipt.first_position, "last": receipt.last_position, "due": receipt.due}

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        close_old_connections()
        began = time.monotonic()
        try:
            answer = serve(json.loads(line))
            finish(connection.commit)
        except Exception as error:  # noqa: BLE001  the other side decides what to do about it
            answer = {"error": f"{type(error).__name__}: {error}"}
            finish(connection.rollback)
        answer["seconds"] = time.monotonic() - began
        close_old_connections()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
