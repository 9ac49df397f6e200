"""The pages: a list of conversations, one of them, and what can be done with it."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils.http import quote_etag
from django.views.decorators.http import require_GET, require_POST

from chat import people
from chat.responder import SYSTEM, by_whom
from chat.throttles import limited
from django_convmemory.exceptions import ConvMemoryError
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session

PAGE = 60


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    """The list, and a place to begin a conversation."""
    return render(request, "chat/index.html", _shared(request))


@require_GET
def conversation(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """A conversation: its last messages, and beside them the memory at work."""
    session = people.conversation(request, public_id)
    before = request.GET.get("before", "")
    context = _shared(request) | {"session": session} | _messages(session, int(before) if before.isdecimal() else None)
    return render(request, "chat/conversation.html", context | _panel(session))


@require_GET
def panel(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """What the memory does now; 304 where nothing is new."""
    session = people.conversation(request, public_id)
    tag = _tag(session)
    if request.headers.get("If-None-Match") == tag:
        return HttpResponse(status=304, headers={"ETag": tag})
    response = render(request, "chat/panel.html", {"session": session} | _panel(session))
    response["ETag"] = tag
    return response


@require_POST
@limited
def begin(request: HttpRequest) -> HttpResponse:
    """Begin a conversation with its first message."""
    text = request.POST.get("text", "").strip()
    if not text:
        return redirect("chat:index")
    handle = people.begin(request, request.POST.get("key") or uuid.uuid4().hex)
    handle.append(ChatMessage.human(text), idempotency_key="first")
    row = people.conversations(request).get(handle=handle.session_name.handle)
    if not row.title:
        Session.objects.filter(pk=row.pk, title="").update(title=" ".join(text.split())[:60])
    return redirect("chat:conversation", row.public_id)


@require_POST
@limited
def send(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Store what the user says, and have the page ask for the reply. A retry with the same key stores nothing twice."""
    session = people.conversation(request, public_id)
    text = request.POST.get("text", "").strip()
    if not text:
        return HttpResponse(status=204)
    handle = memories[session.alias].session(session)
    try:
        receipt = handle.append(ChatMessage.human(text), idempotency_key=request.POST.get("key") or None)
    except ConvMemoryError as error:
        return render(request, "chat/refused.html", {"error": error}, status=422)
    stored = handle.history(after=receipt.first_position - 1, limit=1)
    return render(request, "chat/sent.html", {"session": session, "messages": stored, "key": uuid.uuid4().hex})


@require_POST
@limited
def again(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Have the last turn answered anew, with another question where there is ``text``."""
    session = people.conversation(request, public_id)
    handle = memories[session.alias].session(session)
    position, text = request.POST.get("position", ""), request.POST.get("text", "").strip()
    asked = [one for one in handle.history(limit=10) if one.message.role == "user" and str(one.position) == position]
    if asked:
        try:
            # Of a page that is out of date nothing is deleted.
            revision = int(request.POST.get("revision") or 0)
            handle.truncate(after=asked[0].position - bool(text), revision=revision)
            if text:
                handle.append(ChatMessage.human(text))
        except (ConvMemoryError, ValueError) as error:
            return render(request, "chat/refused.html", {"error": error}, status=409)
    return _go(request, session)


@require_POST
def fork(request: HttpRequest, public_id: uuid.UUID, position: int) -> HttpResponse:
    """Begin another conversation with the messages up to this one."""
    session = people.conversation(request, public_id)
    copy = memories[session.alias].fork(session, at=position, key=uuid.uuid4().hex, **_whose(session))
    Session.objects.filter(pk=copy.pk).update(title=f"{session.title[:50]} (branch)")
    return _go(request, copy)


@require_POST
def redact(request: HttpRequest, public_id: uuid.UUID, position: int) -> HttpResponse:
    """Empty a message, here and in branches, and every summary that knew of it."""
    session = people.conversation(request, public_id)
    memories[session.alias].redact(session, position)
    return _go(request, session)


@require_POST
def delete(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Delete the conversation."""
    people.conversation(request, public_id).delete()
    return _go(request, None)


def _go(request: HttpRequest, session: Session | None) -> HttpResponse:
    """Send the browser there, also where htmx asked."""
    url = redirect("chat:index") if session is None else redirect("chat:conversation", session.public_id)
    if request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers={"HX-Redirect": url.url})
    return HttpResponseRedirect(url.url)


def _whose(session: Session) -> dict[str, Any]:
    return {"owner": session.owner} if session.owner_id else {"visitor": session.visitor}


def _shared(request: HttpRequest) -> dict[str, Any]:
    listed = people.conversations(request).order_by("-updated_at").only("public_id", "title", "updated_at")[:50]
    return {"conversations": listed, "by_whom": by_whom(), "key": uuid.uuid4().hex, "demo": settings.DEMO_USER}


def _messages(session: Session, before: int | None) -> dict[str, Any]:
    messages = memories[session.alias].history(session, before=before, limit=PAGE)
    last = messages[-1] if messages and before is None else None
    return {
        "messages": messages,
        "earlier": messages[0].position if messages and messages[0].position > 1 else None,
        # What the user asked last can be asked otherwise, and answered anew.
        "editable": next((one.position for one in reversed(messages) if one.message.role == "user"), None),
        "unanswered": last is not None and last.message.role in ("user", "tool"),
    }


def _tag(session: Session) -> str:
    """What changes whenever the panel does."""
    return quote_etag(f"{session.revision}-{session.state}")


def _panel(session: Session) -> dict[str, Any]:
    memory = memories[session.alias]
    context = memory.load(session, system=SYSTEM)
    limit = memory.strategy.threshold.tokens
    return {
        "tag": _tag(session),
        "context": context,
        "budget": memory.max_context_tokens,
        "limit": limit,
        "unfolded": session.unpinned_tokens - session.covered_tokens,
        "total": session.unpinned_tokens + session.pinned_tokens,
    }
