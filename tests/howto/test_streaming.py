"""The view of docs/howto/streaming.md streams a reply and stores it."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.test import AsyncRequestFactory

from django_convmemory.conversation import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.models import Message
from tests.openai_server import Behaviour, OpenAIServer

# In the middle of a stream, older clients raise the errors of their HTTP library.
FAILURES: tuple[type[Exception], ...] = (openai.OpenAIError,)
with contextlib.suppress(ImportError):
    import httpx  # type: ignore[import-not-found, unused-ignore]

    FAILURES += (httpx.HTTPError,)

PAGE = (pathlib.Path(__file__).parents[2] / "docs/howto/streaming.md").read_text(encoding="utf-8")
ANSWER = "Ownership says who frees the memory."

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    yield
    await sync_to_async(connections.close_all)()  # of the thread that did the work


@pytest.fixture
def view() -> Any:
    namespace: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], namespace)  # noqa: S102
    return namespace["chat"]


async def asked(view: Any) -> tuple[Any, SessionHandle]:
    anna = await User.objects.acreate(username="anna")
    request: Any = AsyncRequestFactory().post("/", {"text": "What is ownership?"})

    async def auser() -> User:
        return anna

    request.auser, request.user = auser, anna
    return await view(request), memories["default"].session("main", owner=anna)


async def transcript(session: SessionHandle) -> list[tuple[str, str, dict[str, Any]]]:
    stored = await session.ahistory()
    return [(row.message.role, row.message.text, dict(row.message.metadata)) for row in stored]


async def test_a_reply_is_streamed_and_stored_with_what_it_took(view: Any, model: OpenAIServer) -> None:
    response, session = await asked(view)
    assert await transcript(session) == [("user", "What is ownership?", {})]
    pieces = [piece async for piece in response]
    assert len(pieces) > 3
    assert b"".join(pieces).decode() == ANSWER
    assert (await transcript(session))[1:] == [("assistant", ANSWER, {})]
    stored = await Message.objects.aget(role="assistant")
    assert stored.usage["completion_tokens"] > 0


async def test_a_reply_that_nobody_waits_for_is_stored_as_far_as_it_came(view: Any, model: OpenAIServer) -> None:
    response, session = await asked(view)
    stream = response._iterator
    first = await anext(stream)
    await stream.aclose()
    assert (await transcript(session))[1:] == [("assistant", first, {"partial": True})]


async def test_a_model_that_fails_loses_nothing(view: Any, model: OpenAIServer) -> None:
    model.queue(Behaviour("breaks_off", text=ANSWER))
    response, session = await asked(view)
    with pytest.raises(FAILURES):
        _ = [piece async for piece in response]
    assert await transcript(session) == [("user", "What is ownership?", {})]
