"""The conversations of a request: those of the signed-in user, or of the visitor."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import Http404, HttpRequest

from django_convmemory.api.scopes import VISITOR
from django_convmemory.memory import memories
from django_convmemory.models import Session, SessionQuerySet
from django_convmemory.operations.handles import SessionHandle

ALIAS = "default"


def conversations(request: HttpRequest) -> SessionQuerySet:
    """Return the conversations that the request may see.

    The API finds a visitor by the same entry of the site's session.
    """
    rows = Session.objects.filter(alias=ALIAS)
    if request.user.is_authenticated:
        return rows.filter(owner=request.user)
    visitor = request.session.get(VISITOR)
    return rows.filter(owner=None, visitor=visitor) if visitor else rows.none()


def conversation(request: HttpRequest, public_id: uuid.UUID) -> Session:
    """Return a conversation of the request. Raises ``Http404`` if it belongs to somebody else or does not exist."""
    row = conversations(request).with_clock().filter(public_id=public_id).first()
    if row is None:
        raise Http404
    return row


def know(request: HttpRequest) -> None:
    """Give a new visitor an id in the site's session, before the first message.

    If two windows of a new browser begin conversations at the same time, both belong to the same visitor.
    """
    if not request.user.is_authenticated:
        request.session.setdefault(VISITOR, uuid.uuid4().hex)


def begin(request: HttpRequest, key: str) -> SessionHandle:
    """Return a new conversation of the user or visitor. Its first message stores it."""
    scope: dict[str, Any] = {}
    if request.user.is_authenticated:
        scope["owner"] = request.user
    else:
        # The user adopts the visitor's conversations at sign-in.
        know(request)
        scope["visitor"] = request.session[VISITOR]
    return memories[ALIAS].session(key, **scope)
