"""OpenAI's Conversations API: four addresses with eight operations, on the sessions that the rest of the API reaches.

A conversation is a session. Its id is ``conv_`` with the public id of the session, so there is no table for it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.models import QuerySet
from rest_framework import serializers
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from django_convmemory import clock, models
from django_convmemory.api import conf, formats, problems
from django_convmemory.api.serializers import base
from django_convmemory.api.serializers.messages import errors_of
from django_convmemory.api.throttles import AppendThrottle, CreateThrottle
from django_convmemory.api.views.base import WRITE_ANY_ROLE
from django_convmemory.api.views.messages import StoringView
from django_convmemory.contrib.openai_conversations import items
from django_convmemory.contrib.responses_items import Item
from django_convmemory.exceptions import InvalidMessage
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.operations.handles import ConversationMemory
from django_convmemory.rules import values
from django_convmemory.store import transactions

_MAX_ITEMS = 20


class PairsField(base.Metadata):
    """Metadata as OpenAI limits it. null is the same as an empty object."""

    default_error_messages = {"pairs": "Metadata has at most 16 pairs of a key (64 characters) and a text (512)."}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        pairs = super().to_internal_value(data)
        fits = [len(key) <= 64 and isinstance(value, str) and len(value) <= 512 for key, value in pairs.items()]
        if len(fits) > 16 or not all(fits):
            self.fail("pairs")
        return pairs


class ItemField(serializers.JSONField):
    """An item, as the message that stands for it."""

    def to_internal_value(self, data: Any) -> Any:
        try:
            message = items.message(data)
        except InvalidMessage as error:
            raise ValidationError(str(error), error.code) from None
        if not self.context["view"].may_write_any_role:
            if not items.is_plain(data, conf.limits().writable_roles):
                detail = (
                    f"Storing this item requires the permission {WRITE_ANY_ROLE}. Without it, send texts of a user."
                )
                raise problems.Problem(403, "role_not_allowed", detail)
            if errors_found := errors_of(message):
                raise ValidationError(errors_found)
        return message


class NewConversation(base.StrictSerializer):
    items = serializers.ListField(child=ItemField(), max_length=_MAX_ITEMS, default=list, allow_null=True)
    metadata = PairsField(default=dict, allow_null=True)


class ConversationChanges(base.StrictSerializer):
    metadata = PairsField(allow_null=True)


class NewItems(base.StrictSerializer):
    items = serializers.ListField(child=ItemField(), max_length=_MAX_ITEMS, min_length=1)


class ItemQuery(base.StrictSerializer):
    after = base.Text(max_length=255, required=False)
    limit = base.QueryNumber(min_value=1, max_value=100, default=20)
    order = base.Choice(choices=["asc", "desc"], default="desc")


# Errors in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``.


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the response of the rest of the API, with its content in OpenAI's form. A DRF exception handler."""
    response = problems.exception_handler(error, context)
    if response is not None:
        response.data = {"error": _error(response.data)}
        response.content_type = None  # That of the renderer.
    return response


def _error(problem: Mapping[str, Any]) -> dict[str, Any]:
    status = problem["status"]
    # There is room for one error.
    first = problem.get("errors", [problem])[0]
    form = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    return {"message": first["detail"], "type": form, "param": _param(first.get("pointer", "")), "code": first["code"]}


def _param(pointer: str) -> str | None:
    """Return the place of an error as OpenAI writes it: ``items[0].content`` for ``/items/0/content``."""
    # The limits of the rest of the API know the items as messages.
    names = re.sub("^/messages", "/items", pointer)[1:]
    return re.sub(r"/(\d+)(?=/|$)", r"[\1]", names).replace("/", ".") or None


# Views.


class ConversationView(StoringView):
    """What all operations share."""

    renderer_classes = [formats.UTF8JSONRenderer]
    post_throttle: Any = None

    def get_exception_handler(self) -> Any:
        return exception_handler

    def find_session(self, session_id: str) -> models.Session:
        match = re.fullmatch("conv_([0-9a-f]{32})", session_id)
        return super().find_session(match[1] if match else "")

    def parameters(self) -> Any:
        """Return the parameters without ``include``: items are always shown whole."""
        parameters = self.request.query_params.copy()
        parameters.pop("include", None)
        parameters.pop("include[]", None)
        return parameters

    def represented(self) -> dict[str, Any]:
        """Return the conversation as the API shows it."""
        session_id, created = f"conv_{self.session.public_id.hex}", clock.aware(self.session.created_at, self.using)
        shown = {"id": session_id, "object": "conversation", "created_at": int(created.timestamp())}
        return shown | {"metadata": self.session.metadata}

    @property
    def rows(self) -> QuerySet[models.Message]:
        """The messages whose items are shown."""
        return self.session.convmemory_messages.using(self.using).filter(items.SHOWN)

    def found(self, item_ids: Iterable[str]) -> dict[str, tuple[models.Message, Item]]:
        """Return the rows and the items with these ids, as far as there are any."""
        wanted = set(item_ids)
        rows = self.rows.filter(public_id__in=set().union(*map(items.public_ids, wanted)))
        pairs = [(row, item) for row in transactions.latest(rows) for item in items.shown(row)]
        return {item["id"]: (row, item) for row, item in pairs if item["id"] in wanted}

    def find(self, item_id: str) -> tuple[models.Message, Item]:
        """Return the row and the item with this id. Raises a 404."""
        pair = self.found([item_id]).get(item_id)
        if pair is None:
            raise NotFound("There is no such item.")
        return pair

    def add(self, messages: Sequence[ChatMessage]) -> list[Item]:
        """Store the items whose ids are not known, and return all. The session is new, or its row is locked.

        Raises a 422 if another item has the id of one.
        """
        wanted = [items.normalized(message.item, message.id) for message in messages]
        known = {item_id: item for item_id, (_, item) in self.found(item["id"] for item in wanted).items()}
        new = []
        for message, item in zip(messages, wanted, strict=True):
            if item["id"] not in known:
                new.append(message)
            if known.setdefault(item["id"], item) != item:
                raise values.id_taken()
        if new:
            self.handle.append(*new)
        return wanted


def list_of(page: Sequence[Item], *, has_more: bool = False) -> Response:
    """Return the response with a list of items."""
    first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return Response({"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": has_more})


class ConversationList(ConversationView):
    """Create a conversation."""

    serializer_class = NewConversation
    post_throttle = CreateThrottle

    @property
    def memory(self) -> ConversationMemory:
        """The memory of new conversations."""
        return memories[base.first_alias()]

    def post(self, request: Request) -> Response:
        body = self.body()
        messages = body["items"] or []
        self.check_sizes(messages)
        new = self.memory.session(str(uuid.uuid4()), **self.scope.whose())

        def work() -> None:
            self.session = new.create(metadata=body["metadata"] or {})
            self.add(messages)

        transactions.run(self.using, work, savepoint=True)
        return Response(self.represented())


class ConversationDetail(ConversationView):
    """Retrieve, update or delete a conversation."""

    serializer_class = ConversationChanges

    def get(self, request: Request, session_id: str) -> Response:
        self.query()
        return Response(self.represented())

    def post(self, request: Request, session_id: str) -> Response:
        self.handle.update(metadata=self.body()["metadata"] or {})
        self.session = self.reread(self.session)
        return Response(self.represented())

    def delete(self, request: Request, session_id: str) -> Response:
        self.handle.delete()
        return Response({"id": self.represented()["id"], "object": "conversation.deleted", "deleted": True})


class ItemList(ConversationView):
    """Create or list items."""

    serializer_class = NewItems
    query_class = ItemQuery
    post_throttle = AppendThrottle

    def get(self, request: Request, session_id: str) -> Response:
        query, rows, page = self.query(), self.rows, []
        limit = min(query["limit"], conf.limits().max_page_size)
        sign, beyond, step = ("-", "lt", -1) if query["order"] == "desc" else ("", "gt", 1)
        if "after" in query:
            last, item = self.find(query["after"])
            rows = rows.filter(**{f"position__{beyond}": last.position})
            # A message of the site may stand for several items.
            page = items.shown(last)[::step]
            page = page[page.index(item) + 1 :]
        # By both columns of the primary key, as in the rest of the API. One more tells whether there are more.
        rows = rows.order_by(f"{sign}position", f"{sign}session_id")[: limit + 1]
        page += [item for row in rows for item in items.shown(row)[::step]]
        return list_of(page[:limit], has_more=len(page) > limit)

    def post(self, request: Request, session_id: str) -> Response:
        messages = self.body()["items"]
        self.check_sizes(messages)
        # Locked, so that of two requests with an id the second finds the item of the first.
        return list_of(self.guarded(lambda: self.add(messages), locks=True))


class ItemDetail(ConversationView):
    """Retrieve or delete an item."""

    def get(self, request: Request, session_id: str, item_id: str) -> Response:
        self.query()
        return Response(self.find(item_id)[1])

    def delete(self, request: Request, session_id: str, item_id: str) -> Response:
        self.guarded(lambda: self._delete(item_id), locks=True)
        # What servers of others answer, and the other fields of the conversation that the client's type promises.
        return Response({**self.represented(), "id": item_id, "object": "conversation.item.deleted", "deleted": True})

    def _delete(self, item_id: str) -> None:
        """Delete the message of the item. The session is locked.

        Positions have no gaps, and summaries cover ranges of them. So only the end can be cut off. In the middle the
        message is redacted: it keeps its place, and its summaries are made again.
        """
        row, _ = self.find(item_id)
        if len(items.shown(row)) > 1:
            detail = "The site has stored this item and others as one message. Delete the conversation, or keep them."
            raise problems.Problem(409, "item_in_use", detail)
        if not transactions.latest(self.rows.filter(position__gt=row.position)).exists():
            self.handle.truncate(row.position - 1)
        elif items.is_paired(row):
            detail = "A call and its result need each other. Delete the items from the end on, or the conversation."
            raise problems.Problem(409, "item_in_use", detail)
        else:
            self.handle.redact(row.position, forks=False)
