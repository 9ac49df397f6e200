"""Views that list, store, replace, read, change and redact messages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.db import router
from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models, tokens
from django_convmemory.api import conf, etags, idempotency
from django_convmemory.api.problems import Problem
from django_convmemory.api.serializers.actions import Redaction
from django_convmemory.api.serializers.messages import (
    MessageChanges,
    MessageQuery,
    MessageSerializer,
    NewMessages,
    Replacement,
)
from django_convmemory.api.throttles import AppendThrottle
from django_convmemory.api.views.base import WRITE_ANY_ROLE, KeyedView, ScopedView, position_of
from django_convmemory.exceptions import UnknownMessage
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.append import Receipt


class StoringView(KeyedView):
    """A view that stores messages of a client."""

    post_throttle = AppendThrottle

    def stored(self, body: dict[str, Any], store: Callable[..., Receipt], *, takes_revision: bool = False) -> Response:
        """Store the messages of the body by ``store``, and return the response."""
        messages: list[ChatMessage] = body["messages"]
        self._check_roles(messages, usage="usage" in body)
        self._check_sizes(messages)
        receipt = self.once(
            lambda: store(*messages, idempotency_key=self.idempotency_key, usage=body.get("usage")),
            lambda key: idempotency.has_stored(self.session, key),
            takes_revision=takes_revision,
        )
        return Response(receipt._asdict(), status=200 if receipt.replayed else 201)

    def _check_roles(self, messages: list[ChatMessage], *, usage: bool) -> None:
        refused = sorted({message.role for message in messages} - set(conf.limits().writable_roles))
        if not (refused or usage) or self.may_write_any_role:
            return
        if refused:
            detail = f"Storing a message with the role {refused[0]} requires the permission {WRITE_ANY_ROLE}. Only "
            detail += "trusted services should have it, because a model takes such a message at its word."
        else:
            detail = f"Sending usage requires the permission {WRITE_ANY_ROLE}. Leave usage out."
        raise Problem(403, "role_not_allowed", detail)

    def _check_sizes(self, messages: list[ChatMessage]) -> None:
        limit = conf.limits().max_message_tokens or self.memory.options.max_context_tokens
        if limit is None:
            return
        for index, message in enumerate(messages):
            size = tokens.measure(message, self.memory.counter, limit)
            if size > limit and not self.may_write_any_role:
                raise Problem(
                    413,
                    "message_too_large",
                    f"The message has about {size} tokens; the limit is {limit}. Shorten it, or divide it.",
                    pointer=f"/messages/{index}",
                )


class MessageList(StoringView):
    """All messages of the session, folded ones included."""

    serializer_class = NewMessages
    query_class = MessageQuery

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        headers = {"ETag": etags.of_messages(self.session)}
        if etags.matches(request.headers.get("If-None-Match"), headers["ETag"]):
            return Response(status=304, headers=headers)
        bounds = {name: query[name] for name in ("position__gt", "position__lt") if name in query}
        using = self.session._state.db or router.db_for_write(models.Session)
        rows = models.Message.objects.using(using).filter(session=self.session, **bounds)
        sign = query["ordering"].removesuffix("position")
        # By both columns of the primary key: ordered by the position alone, a database may read the whole table.
        ordering = (f"{sign}position", f"{sign}session_id")
        response = self.page(rows, MessageSerializer, ordering, query.get("limit"))
        response["ETag"] = headers["ETag"]
        return response

    def post(self, request: Request, session_id: str) -> Response:
        return self.stored(self.body(), self.handle.append)


class MessageReplacement(StoringView):
    """Replace the end of the conversation. If-Match keeps the request from deleting what the client has not seen."""

    serializer_class = Replacement

    def post(self, request: Request, session_id: str) -> Response:
        etags.require_header(self.if_match)
        body = self.body()
        try:
            replace = functools.partial(self.handle.replace, body["after"], revision=self.revision)
            return self.stored(body, replace, takes_revision=True)
        except UnknownMessage as error:
            # The session exists, but has no such position: a conflict with its state, not a 404.
            raise Problem(409, "unknown_message", str(error)) from None


class MessageDetail(ScopedView):
    """One message."""

    serializer_class = MessageChanges

    def get(self, request: Request, session_id: str, position: str) -> Response:
        return Response(self._represented(position))

    def patch(self, request: Request, session_id: str, position: str) -> Response:
        number, body = position_of(position), self.body()
        if body:
            self.handle.update_message(number, **body, revision=self.revision)
        self.session = self.reread(self.session)
        return Response(self._represented(position), headers={"ETag": etags.of(self.session, self.memory)})

    def _represented(self, position: str) -> Any:
        row = self.session.convmemory_messages.filter(position=position_of(position)).first()
        if row is None:
            raise Problem(404, "unknown_message", "The session has no message at this position.")
        return MessageSerializer(row).data


class MessageRedaction(ScopedView):
    """Empty a message permanently."""

    serializer_class = Redaction

    def post(self, request: Request, session_id: str, position: str) -> Response:
        forks = self.body()["forks"]
        redacted = self.guarded(lambda: self.handle.redact(position_of(position), forks))
        return Response(redacted._asdict())
