"""Whose conversations a request is about: those of the user who is signed in, or of the visitor."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import Http404, HttpRequest

from django_convmemory.api.scopes import VISITOR
from django_convmemory.conversation import SessionHandle
from django_convmemory.memory import memories
from django_convmemory.models import Session, SessionQuerySet

ALIAS = "default"


def conversations(request: HttpRequest) -> SessionQuerySet:
    """Return what the request may see. The API finds a visitor by the same entry of the site's session."""
    rows = Session.objects.filter(alias=ALIAS)
    if request.user.is_authenticated:
        return rows.filter(owner=request.user)
    visitor = request.session.get(VISITOR)
    return rows.filter(owner=None, visitor=visitor) if visitor else rows.none()


def conversation(request: HttpRequest, public_id: uuid.UUID) -> Session:
    """Return one of them. Raises ``Http404`` for what is somebody else's."""
    found = conversations(request).with_clock().filter(public_id=public_id).first()
    if found is None:
        raise Http404
    return found


def begin(request: HttpRequest, key: str) -> SessionHandle:
    """Return a new conversation of whoever asks; it is stored with its first message."""
    whose: dict[str, Any] = {}
    if request.user.is_authenticated:
        whose["owner"] = request.user
    else:
        # A random id, in the site's own session: claimed at sign-in.
        whose["visitor"] = request.session.setdefault(VISITOR, uuid.uuid4().hex)
    return memories[ALIAS].session(key, **whose)
