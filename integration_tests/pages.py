"""Calls the asynchronous views of the pages about frameworks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory


async def ask(
    view: Callable[[HttpRequest], Awaitable[HttpResponse]], text: str, user: User | AnonymousUser
) -> HttpResponse:
    async def auser() -> User | AnonymousUser:
        return user

    request = AsyncRequestFactory().post("/", {"text": text})
    request.auser = auser
    return await view(request)
