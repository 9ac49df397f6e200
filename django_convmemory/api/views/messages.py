"""Views that list, store, read and redact messages."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models, tokens
from django_convmemory.api import conf, serializers
from django_convmemory.api.problems import Problem
from django_convmemory.api.throttles import AppendThrottle
from django_convmemory.api.views.base import WRITE_ANY_ROLE, ScopedView, position_of
from django_convmemory.messages import ChatMessage


class MessageList(ScopedView):
    """All messages of the session, folded ones included."""

    serializer_class = serializers.NewMessages
    example: dict[str, Any] | None = {"messages": [{"role": "user", "content": "What is Rust?"}]}
    query_class = serializers.MessageQuery
    post_throttle = AppendThrottle

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        bounds = {name: query[name] for name in ("position__gt", "position__lt") if name in query}
        rows = models.Message.objects.using(self.session._state.db).filter(session=self.session, **bounds)
        sign = query["ordering"].removesuffix("position")
        # By both columns of the primary key: ordered by the position alone, a database may read the whole table.
        ordering = (f"{sign}position", f"{sign}session_id")
        return self.page(rows, serializers.MessageSerializer, ordering, query.get("limit"))

    def post(self, request: Request, session_id: str) -> Response:
        body = self.body()
        messages: list[ChatMessage] = body["messages"]
        self._check_roles(messages, usage="usage" in body)
        self._check_sizes(messages)
        key = self._idempotency_key()
        receipt = self.guarded(lambda: self.handle.append(*messages, idempotency_key=key, usage=body.get("usage")))
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
        limit = conf.limits().max_message_tokens or self.memory.max_context_tokens
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

    def _idempotency_key(self) -> str | None:
        key = self.request.headers.get("Idempotency-Key")
        if key is not None and not 0 < len(key.strip()) <= 255:
            raise Problem(400, "invalid_idempotency_key", "Idempotency-Key must have 1 to 255 characters.")
        return key


class MessageDetail(ScopedView):
    """One message."""

    def get(self, request: Request, session_id: str, position: str) -> Response:
        rows = models.Message.objects.using(self.session._state.db).filter(session=self.session)
        row = rows.filter(position=position_of(position)).first()
        if row is None:
            raise Problem(404, "unknown_message", "The session has no message at this position.")
        return Response(serializers.MessageSerializer(row).data)


class MessageRedaction(ScopedView):
    """Empty a message permanently."""

    serializer_class = serializers.Redaction
    example: dict[str, Any] | None = {"forks": True}

    def post(self, request: Request, session_id: str, position: str) -> Response:
        forks = self.body()["forks"]
        redacted = self.guarded(lambda: self.handle.redact(position_of(position), forks))
        return Response(redacted._asdict())
