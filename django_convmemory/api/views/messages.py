"""Views of what a session holds: its messages, its context, its summaries, and what a search finds."""

from __future__ import annotations

import abc
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import models, tokens
from django_convmemory.api import conf, etags, pagination
from django_convmemory.api.problems import Problem
from django_convmemory.api.serializers import contexts
from django_convmemory.api.serializers.base import PageQuery
from django_convmemory.api.serializers.messages import (
    MessageChanges,
    MessageQuery,
    MessageSerializer,
    NewMessages,
    Redaction,
    Replacement,
)
from django_convmemory.api.throttles import AppendThrottle
from django_convmemory.api.views.base import WRITE_ANY_ROLE, KeyedView, ScopedView, TaggedView
from django_convmemory.context.assembly import Context
from django_convmemory.exceptions import UnknownMessage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.append import Receipt
from django_convmemory.search.hits import Hit


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
            self._has_stored,
            takes_revision=takes_revision,
        )
        return Response(receipt._asdict(), status=200 if receipt.replayed else 201)

    def _has_stored(self, key: str) -> bool:
        """Return whether an append to the session, or a replacement in it, has used the key."""
        keys = self.session.convmemory_used_keys.using(self.using)
        used = keys.filter(key_hash=hashlib.sha256(key.encode()).hexdigest())
        return used.exists() and not used.forgotten().exists()

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


class MessageList(TaggedView, StoringView):
    """All messages of the session, folded ones included."""

    serializer_class = NewMessages
    query_class = MessageQuery

    def tag(self) -> str:
        return etags.of_messages(self.session)

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        if self.unchanged():
            return Response(status=304)
        bounds = {name: query[name] for name in ("position__gt", "position__lt") if name in query}
        rows = self.session.convmemory_messages.using(self.using).filter(**bounds)
        sign = query["ordering"].removesuffix("position")
        # By both columns of the primary key: ordered by the position alone, a database may read the whole table.
        ordering = (f"{sign}position", f"{sign}session_id")
        return self.page(rows, MessageSerializer, ordering, query.get("limit"))

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
        number, body = _position(position), self.body()
        if body:
            self.handle.update_message(number, **body, revision=self.revision)
        self.session = self.reread(self.session)
        return Response(self._represented(position), headers={"ETag": etags.of(self.session, self.memory)})

    def _represented(self, position: str) -> Any:
        row = self.session.convmemory_messages.using(self.using).filter(position=_position(position)).first()
        if row is None:
            raise _no_message()
        return MessageSerializer(row).data


class MessageRedaction(ScopedView):
    """Empty a message permanently."""

    serializer_class = Redaction

    def post(self, request: Request, session_id: str, position: str) -> Response:
        forks = self.body()["forks"]
        redacted = self.guarded(lambda: self.handle.redact(_position(position), forks))
        return Response(redacted._asdict())


def _position(text: str) -> int:
    """Return the position that a part of an address names. Raises a 404 if it is not a position."""
    if number := _number(text):
        return number
    raise _no_message()


def _number(text: str) -> int:
    """Return the position or version that a part of an address names, or 0, which none has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _no_message() -> Problem:
    return Problem(404, "unknown_message", "The session has no message at this position.")


class ContextDetail(TaggedView):
    """The context: what a model is sent next."""

    query_class = contexts.ContextQuery

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        if self.unchanged():
            return Response(status=304)
        budget, own_budget = query.get("max_tokens"), self.memory.options.max_context_tokens
        if budget is not None and own_budget is not None:
            budget = min(budget, own_budget)
        asked = query.get("recall")
        recall = None if asked is None else {"0": False, "1": True}.get(asked, asked)
        context = self.handle.load(max_tokens=budget, recall=recall)
        answer: dict[str, Any] = {
            **_content(context, query["format"]),
            "summary": context.summary,
            "covered_position": context.covered,
            "tokens": context.tokens,
            "omitted": context.omitted,
            "over_budget": context.over_budget,
            "pending": context.pending,
            "recalled": contexts.QuoteSerializer(context.recalled, many=True).data,
            "revision": context.revision,
        }
        return Response(answer)


def _content(context: Context, form: str) -> dict[str, Any]:
    if form == "text":
        return {"text": context.to_text()}
    if form == "openai":
        return {"messages": context.to_openai()}
    return {
        "messages": [
            {
                "part": part.name,
                "position": part.position,
                "tokens": part.tokens,
                "message": part.message.to_openai(),
            }
            for part in context.parts
        ]
    }


class SummaryList(ScopedView):
    """The versions of the summary, newest first."""

    query_class = PageQuery

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        rows = self.session.convmemory_summaries.using(self.using)
        return self.page(rows, contexts.SummarySerializer, ("-version",), query.get("limit"))


class SummaryDetail(ScopedView):
    """One version of the summary."""

    def get(self, request: Request, session_id: str, version: str) -> Response:
        row = self.session.convmemory_summaries.using(self.using).filter(version=_number(version)).first()
        if row is None:
            raise Problem(404, "unknown_version", "The session has no summary with this version.")
        return Response(contexts.SummarySerializer(row).data)


class SearchView(ScopedView):
    """A search. Its hits come in pages, the best first."""

    pagination_class = pagination.HitPages

    def hits(self, alias: str, query: Mapping[str, Any], **where: Any) -> Response:
        """Return the response with a page of what the memory ``alias`` finds in ``where``."""
        paginator: pagination.HitPages = self.paginator  # type: ignore[assignment]
        size = query.get("limit", conf.limits().default_page_size)
        # The messages of a page are as many as another list may have, neighbours included.
        size = min(size, max(1, conf.limits().max_page_size // (2 * query["neighbours"] + 1)))

        def find(offset: int, limit: int) -> Any:
            return memories[alias].search(
                query["q"], limit=limit, offset=offset, neighbours=query["neighbours"], **where
            )

        hits = paginator.page(self.request, find, size)
        sessions = self.sessions_of(hits)
        # A session may be gone since it was searched.
        hits = [hit for hit in hits if hit.session.name_hash in sessions]
        context = {"url": self.url, "sessions": sessions}
        return self.get_paginated_response(contexts.HitSerializer(hits, many=True, context=context).data)

    @abc.abstractmethod
    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        """Return the rows of the hits' sessions by their name hashes, as far as the request reaches them."""


class SearchAll(SearchView):
    """The messages that match a query, of all sessions that the request reaches in one memory."""

    query_class = contexts.SearchAllQuery

    def get(self, request: Request) -> Response:
        query = self.query()
        return self.hits(query.get("alias") or conf.first_alias(), query, sessions=self.get_queryset())

    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        hashes = {hit.session.name_hash for hit in hits}
        rows = self.get_queryset().filter(name_hash__in=hashes) if hashes else []
        return {row.name_hash: row for row in rows if self._permitted(row)}

    def _permitted(self, session: models.Session) -> bool:
        """Return whether the request may read this session. In the other views a permission class would refuse it."""
        return all(
            permission.has_object_permission(self.request, self, session) for permission in self.get_permissions()
        )


class SearchSession(SearchView):
    """The messages of a session that match a query."""

    query_class = contexts.SearchSessionQuery

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        bounds = {name: query[name] for name in ("after", "before") if name in query}
        return self.hits(self.session.alias, query, session=self.session, **bounds)

    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        return {self.session.name_hash: self.session}
