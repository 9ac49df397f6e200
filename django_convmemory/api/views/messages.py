"""Views of what a session holds: its messages, its context, its summaries, and what a search finds."""

from __future__ import annotations

import abc
import functools
import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from django_convmemory import models, tokens
from django_convmemory.api import conf, etags, pagination
from django_convmemory.api.problems import Problem
from django_convmemory.api.serializers import base, messages, sessions
from django_convmemory.api.throttles import AppendThrottle
from django_convmemory.api.views.base import WRITE_ANY_ROLE, KeyedView, ScopedView, TaggedView, as_uuid, ids_in_body
from django_convmemory.context.assembly import Context
from django_convmemory.exceptions import UnknownMessage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.rules.values import Receipt
from django_convmemory.search.hits import Hit
from django_convmemory.store import columns


def represented(rows: Iterable[models.Message]) -> list[dict[str, Any]]:
    """Return messages as the API shows them."""
    # Without a serializer, which would take most of the time of a page.
    return [columns.stored_of_row(row).to_json() for row in rows]


class StoringView(KeyedView):
    """A view that stores messages of a client."""

    post_throttle: type[BaseThrottle] | None = AppendThrottle

    def stored(self, body: dict[str, Any], store: Callable[..., Receipt], *, locks: bool = False) -> Response:
        """Store the messages of the body by ``store``, and return the response with what is stored."""
        new: list[ChatMessage] = body["messages"]
        self._check_roles(new, usage="usage" in body)
        self.check_sizes(new)
        work = functools.partial(store, *new, idempotency_key=self.idempotency_key, usage=body.get("usage"))
        receipt = self.once(work, self._has_stored, locks=locks)
        rows = self.session.convmemory_messages.using(self.using).filter(public_id__in=receipt.ids)
        content = {"messages": represented(rows.order_by("position"))}
        headers = {"ETag": etags.of_messages(self.reread(self.session))}
        return Response(receipt._asdict() | content, status=200 if receipt.replayed else 201, headers=headers)

    def _has_stored(self, key: str) -> bool:
        """Return whether an append to the session, or a replacement in it, has used the key."""
        keys = self.session.convmemory_used_keys.using(self.using)
        used = keys.filter(key_hash=hashlib.sha256(key.encode()).hexdigest())
        return used.exists() and not used.forgotten().exists()

    def _check_roles(self, new: list[ChatMessage], *, usage: bool) -> None:
        refused = sorted({message.role for message in new} - set(conf.limits().writable_roles))
        if not (refused or usage) or self.may_write_any_role:
            return
        if refused:
            detail = f"Storing a message with the role {refused[0]} requires the permission {WRITE_ANY_ROLE}. Only "
            detail += "trusted services should have it, because a model takes such a message at its word."
        else:
            detail = f"Sending usage requires the permission {WRITE_ANY_ROLE}. Leave usage out."
        raise Problem(403, "role_not_allowed", detail)

    def check_sizes(self, new: list[ChatMessage]) -> None:
        """Raise a 413 for a message with more tokens than the site allows."""
        limit = conf.limits().max_message_tokens or self.memory.options.max_context_tokens
        if limit is None:
            return
        for index, message in enumerate(new):
            size = tokens.measure(message, self.memory.counter, limit)
            if size > limit and not self.may_write_any_role:
                detail = f"The message has about {size} tokens; the limit is {limit}. Shorten it, or divide it."
                raise Problem(413, "message_too_large", detail, pointer=f"/messages/{index}")


class MessageList(TaggedView, StoringView):
    """All messages of the session, folded ones included."""

    serializer_class = messages.NewMessages
    query_class = messages.MessageQuery

    def tag(self) -> str:
        return etags.of_messages(self.session)

    def shown(self, query: dict[str, Any]) -> Response:
        bounds = {name: query[name] for name in ("position__gt", "position__lt") if name in query}
        rows = self.session.convmemory_messages.using(self.using).filter(**bounds)
        sign = query["ordering"].removesuffix("position")
        # By both columns of the primary key: ordered by the position alone, a database may read the whole table.
        ordering = (f"{sign}position", f"{sign}session_id")
        return self.page(rows, ordering, query.get("limit"), represented)

    def post(self, request: Request, session_id: str) -> Response:
        return self.stored(self.body(), self.handle.append)


class MessageReplacement(StoringView):
    """Replace the end of the conversation. If-Match keeps the request from deleting what the client has not seen."""

    serializer_class = messages.Replacement

    def post(self, request: Request, session_id: str) -> Response:
        etags.require_header(self.if_match)
        body = self.body()

        def replace(*new: ChatMessage, **options: Any) -> Receipt:
            after = 0 if body["after"] is None else self.position_of(body["after"])
            return self.handle.replace(after, *new, **options)

        with ids_in_body():
            return self.stored(body, replace, locks=True)


class MessageDetail(ScopedView):
    """One message."""

    serializer_class = messages.MessageChanges

    def get(self, request: Request, session_id: str, message_id: str) -> Response:
        return Response(self._represented(as_uuid(message_id)))

    def patch(self, request: Request, session_id: str, message_id: str) -> Response:
        body, public_id = self.body(), as_uuid(message_id)
        if body:
            self.guarded(lambda: self.handle.update_message(self.position_of(public_id), **body), locks=True)
        self.session = self.reread(self.session)
        return Response(self._represented(public_id), headers={"ETag": etags.of(self.session, self.memory)})

    def _represented(self, public_id: uuid.UUID) -> Any:
        row = self.session.convmemory_messages.using(self.using).filter(public_id=public_id).first()
        if row is None:
            raise UnknownMessage("The session has no message with this id.")
        return represented([row])[0]


class MessageRedaction(ScopedView):
    """Empty a message permanently."""

    serializer_class = messages.Redaction

    def post(self, request: Request, session_id: str, message_id: str) -> Response:
        forks = self.body()["forks"]
        redact = lambda: self.handle.redact(self.position_of(as_uuid(message_id)), forks)  # noqa: E731
        return Response(self.guarded(redact, locks=True)._asdict())


class ContextDetail(TaggedView):
    """The context: what a model is sent next."""

    query_class = sessions.ContextQuery

    def shown(self, query: dict[str, Any]) -> Response:
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
            "recalled": sessions.QuoteSerializer(context.recalled, many=True).data,
            "revision": context.revision,
        }
        return Response(answer)


def _content(context: Context, form: str) -> dict[str, Any]:
    if form == "text":
        return {"text": context.to_text()}
    if form == "openai":
        return {"messages": context.to_openai()}
    parts = [
        {"part": part.name, "position": part.position, "tokens": part.tokens, "message": part.message.to_openai()}
        for part in context.parts
    ]
    return {"messages": parts}


class SummaryList(ScopedView):
    """The versions of the summary, newest first."""

    query_class = base.PageQuery

    def get(self, request: Request, session_id: str) -> Response:
        limit = self.query().get("limit")
        rows = self.session.convmemory_summaries.using(self.using)
        return self.page(rows, ("-version",), limit, lambda page: sessions.SummarySerializer(page, many=True).data)


class SummaryDetail(ScopedView):
    """One version of the summary."""

    def get(self, request: Request, session_id: str, version: str) -> Response:
        rows = self.session.convmemory_summaries.using(self.using)
        row = rows.filter(version=version).first() if re.fullmatch("[0-9]{1,15}", version) else None
        if row is None:
            raise Problem(404, "unknown_version", "The session has no summary with this version.")
        return Response(sessions.SummarySerializer(row).data)


class SearchView(ScopedView):
    """A search. Its hits come in pages, the best first."""

    pagination_class = pagination.HitPages

    def hits(self, alias: str, query: Mapping[str, Any], **where: Any) -> Response:
        """Return the response with a page of what the memory ``alias`` finds in ``where``."""
        paginator: pagination.HitPages = self.paginator  # type: ignore[assignment]
        size = query.get("limit", conf.limits().default_page_size)
        # The messages of a page are as many as another list may have, neighbours included.
        size = min(size, max(1, conf.limits().max_page_size // (2 * query["neighbours"] + 1)))
        find = functools.partial(memories[alias].search, query["q"], neighbours=query["neighbours"], **where)
        hits = paginator.page(self.request, find, size)
        rows = self.sessions_of(hits)
        # A session may be gone since it was searched.
        hits = [hit for hit in hits if hit.session.name_hash in rows]
        context = {"url": self.url, "sessions": rows}
        return self.get_paginated_response(sessions.HitSerializer(hits, many=True, context=context).data)

    @abc.abstractmethod
    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        """Return the rows of the hits' sessions by their name hashes, as far as the request reaches them."""


class SearchAll(SearchView):
    """The messages that match a query, of all sessions that the request reaches in one memory."""

    query_class = sessions.SearchAllQuery

    def get(self, request: Request) -> Response:
        query = self.query()
        return self.hits(query.get("alias") or conf.first_alias(), query, sessions=self.get_queryset())

    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        rows = self.get_queryset().filter(name_hash__in={hit.session.name_hash for hit in hits})
        return {row.name_hash: row for row in rows if self._permitted(row)}

    def _permitted(self, session: models.Session) -> bool:
        """Return whether the request may read this session. In the other views a permission class would refuse it."""
        return all(
            permission.has_object_permission(self.request, self, session) for permission in self.get_permissions()
        )


class SearchSession(SearchView):
    """The messages of a session that match a query."""

    query_class = sessions.SearchSessionQuery

    def get(self, request: Request, session_id: str) -> Response:
        query = self.query()
        bounds = {name: query[name] for name in ("after", "before") if name in query}
        return self.hits(self.session.alias, query, session=self.session, **bounds)

    def sessions_of(self, hits: list[Hit]) -> dict[str, models.Session]:
        return {self.session.name_hash: self.session}
