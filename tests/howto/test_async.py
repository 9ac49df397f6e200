"""The view of docs/howto/async.md does what the page says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.signed_cookies import SessionStore
from django.db import connections
from django.test import AsyncRequestFactory

from django_convmemory import models
from tests.howto.test_pages import module_of


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("logged_in", [True, False])
def test_a_message_of_a_user_or_a_visitor_is_stored_once(logged_in: bool) -> None:
    namespace = module_of("async", "async_views.py")
    ada = User.objects.create_user("ada")
    sessions = SessionStore()

    def say(text: str = "Hello!") -> Any:
        request = AsyncRequestFactory().post("/", {"text": text}, headers={"Idempotency-Key": "once"})
        request.session = sessions
        request.auser = auser
        return asyncio.run(answer(request))

    async def answer(request: Any) -> Any:
        try:
            return await namespace["say"](request)
        finally:
            await sync_to_async(connections.close_all)()  # of the thread that did the work

    async def auser() -> User | AnonymousUser:
        return ada if logged_in else AnonymousUser()

    assert [json.loads(say().content)["position"] for _ in range(2)] == [1, 1]
    session = models.Session.objects.get()
    assert (session.owner, bool(session.visitor)) == ((ada, False) if logged_in else (None, True))
    refused = say("Something else.")
    assert refused.status_code == 400
    assert "idempotency key" in json.loads(refused.content)["error"]
    empty = say(" \n")
    assert (empty.status_code, json.loads(empty.content)) == (400, {"error": "Send a text."})
    assert models.Message.objects.count() == 1
