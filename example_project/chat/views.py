"""The pages: the list of conversations, a single conversation, and its actions."""

from __future__ import annotations

import json
import uuid
from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import quote_etag, urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from chat import caches, people, playing, questions, recalls, redactions, refusals, searches, titles, versions
from chat.responder import SYSTEM, by_whom
from chat.throttles import limited
from django_convmemory.exceptions import (
    ConvMemoryError,
    IdempotencyConflict,
    InvalidArgument,
    UnknownMessage,
    UnknownSession,
)
from django_convmemory.memory import memories
from django_convmemory.messages import ChatMessage
from django_convmemory.models import Session
from django_convmemory.operations.handles import SessionHandle
from django_convmemory.rules.values import StoredMessage

PAGE = 60
# What a visitor can begin with.
SUGGESTIONS = (
    "My daughter Ines is allergic to peanuts, and we live in Graz.",
    "We have 1,400 euros for nine days in Slovenia in May.",
    "My flight lands in Lisbon at 14:20 on 9 May.",
    "请记住：我的订单号是 LC-204817。",
)
# The most messages that a page fetches to bring its own up to date.
MOST = 200


@never_cache
@require_GET
def index(request: HttpRequest) -> HttpResponse:
    """The list of conversations, and a form to begin one."""
    people.know(request)
    return render(request, "chat/index.html", _shared(request))


@never_cache
@require_GET
def conversation(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """A conversation: its last messages, or those around a position, and beside them the panel with its memory."""
    session = people.conversation(request, public_id)
    context = _shared(request) | {"session": session} | _messages(session, _page(request)) | _panel(session)
    if query := searches.query_of(request):
        context |= searches.in_conversation(session, query)
    if "play" in request.GET and playing.is_played(session):
        context["lines"] = len(playing.messages())
    return render(request, "chat/conversation.html", context)


@never_cache
@require_GET
def messages(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """The messages from the position ``from`` on, with which a page brings its own up to date."""
    session = people.conversation(request, public_id)
    start = _number(request.GET.get("from"))
    context = _messages(session, {"after": max(start - 1, 0)}, MOST)
    return render(request, "chat/refreshed.html", {"session": session} | context)


@never_cache
@require_GET
def find(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """The part of a conversation's page that shows a search. The address in the browser then has the query."""
    session = people.conversation(request, public_id)
    query = searches.query_of(request)
    context = {"session": session} | (searches.in_conversation(session, query) if query else {})
    response = render(request, "chat/find.html", context)
    address = reverse("chat:conversation", args=[public_id])
    response["HX-Replace-Url"] = f"{address}?{urlencode({'q': query})}" if query else address
    return response


@never_cache
@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """A search in all conversations."""
    query = searches.query_of(request)
    context = _shared(request) | (searches.in_all(request, query) if query else {})
    return render(request, "chat/search.html", context)


@never_cache
@require_GET
def panel(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """The state of the memory; 304 if nothing has changed."""
    session = people.conversation(request, public_id)
    tag = _tag(session)
    if request.headers.get("If-None-Match") == tag:
        return HttpResponse(status=304, headers={"ETag": tag})
    response = render(request, "chat/panel.html", {"session": session} | _panel(session))
    response["ETag"] = tag
    return response


@never_cache
@require_GET
def version(request: HttpRequest, public_id: uuid.UUID, number: int) -> HttpResponse:
    """A version of the summary, compared with the one before it."""
    session = people.conversation(request, public_id)
    shown = versions.version(session, number) if number < 10**15 else None
    if shown is None:
        raise Http404
    return render(request, "chat/version.html", {"session": session} | shown)


@never_cache
@require_GET
def recalled(request: HttpRequest, public_id: uuid.UUID, position: int) -> HttpResponse:
    """What the memory recalled for the reply at ``position``: those messages, as they are now."""
    session = people.conversation(request, public_id)
    handle = memories[session.alias].session(session)
    reply = _stored(handle, position)
    if reply is None:
        raise Http404
    found = [_stored(handle, earlier) for earlier in recalls.positions(reply)]
    return render(request, "chat/recalled.html", {"session": session, "recalled": [one for one in found if one]})


@require_POST
@limited
def begin(request: HttpRequest) -> HttpResponse:
    """Begin a conversation with its first message."""
    text = questions.typed(request)
    if not text:
        return redirect("chat:index")
    refusal = refusals.too_long(text)
    if refusal is None:
        try:
            handle = _begun(request, _key(request), text)
        except ConvMemoryError as error:
            refusal = refusals.of_store(error)
    if refusal is not None:
        return render(request, "chat/index.html", _shared(request) | {"error": refusal, "text": text}, status=422)
    row = people.conversations(request).get(name_hash=handle.session_name.name_hash)
    if not row.title:
        titles.rename(row, text)
    return redirect("chat:conversation", row.public_id)


def _begun(request: HttpRequest, key: str, text: str) -> SessionHandle:
    handle = people.begin(request, key)
    try:
        handle.append(ChatMessage.human(text), idempotency_key="first")
    except IdempotencyConflict:
        # The user went back in the browser, changed the text, and sent it again. That is another conversation.
        return _begun(request, uuid.uuid4().hex, text)
    return handle


@require_POST
@limited
def play(request: HttpRequest) -> HttpResponse:
    """Begin a conversation that plays by itself. The page that follows plays it."""
    session = playing.begin(request, uuid.uuid4().hex)
    return redirect(f"{reverse('chat:conversation', args=[session.public_id])}?play=1")


@require_POST
def line(request: HttpRequest, public_id: uuid.UUID, number: int) -> HttpResponse:
    """Store a message of the conversation that plays. Each is stored once, so there is no other limit."""
    session = people.conversation(request, public_id)
    if not playing.is_played(session) or number >= len(playing.messages()):
        raise Http404
    try:
        return JsonResponse({"asks": playing.say(session, number)})
    except UnknownSession:
        raise Http404 from None


@require_POST
@limited
def send(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Store the user's message. The page then requests the reply. A retry with the same key stores nothing twice."""
    session = people.conversation(request, public_id)
    text = questions.typed(request)
    if not text:
        return HttpResponse(status=204)
    if refusal := refusals.too_long(text):
        return _refused(request, refusal)
    handle = memories[session.alias].session(session)
    try:
        receipt = handle.append(ChatMessage.human(text), idempotency_key=_key(request))
    except IdempotencyConflict:
        # The response to the first try was lost, and the user changed the text since. Both messages count.
        handle.append(ChatMessage.human(text))
        return _redirect(request, session)
    except UnknownSession:
        raise Http404 from None
    except ConvMemoryError as error:
        return _refused(request, refusals.of_store(error))
    if not request.headers.get("HX-Request"):
        return _redirect(request, session)
    stored = handle.history(after=receipt.first_position - 1, limit=1)
    context = {"session": session, "messages": stored, "key": uuid.uuid4().hex, "editable": questions.newest(stored)}
    return render(request, "chat/sent.html", context)


@require_POST
@limited
def fork(request: HttpRequest, public_id: uuid.UUID, position: int) -> HttpResponse:
    """Begin another conversation with the messages up to ``position``."""
    session = people.conversation(request, public_id)
    if not position:
        raise Http404
    try:
        with transaction.atomic():
            copy = memories[session.alias].fork(session, at=position, key=uuid.uuid4().hex, **_scope(session))
            Session.objects.filter(pk=copy.pk).update(title=titles.branch_of(session.title))
    except (UnknownSession, UnknownMessage, InvalidArgument):
        raise Http404 from None
    return _redirect(request, copy)


@require_POST
@limited
def redact(request: HttpRequest, public_id: uuid.UUID, position: int) -> HttpResponse:
    """Empty a message, here and in branches, and every summary that includes it.

    If replies repeat what it said, the page offers to empty them too.
    """
    session = people.conversation(request, public_id)
    handle = memories[session.alias].session(session)
    stored = _stored(handle, position)
    if stored is None:
        raise Http404
    try:
        handle.redact(position)
    except (UnknownSession, UnknownMessage):
        raise Http404 from None
    if position == 1:
        titles.forget(session)
    if not request.headers.get("HX-Request"):
        return _redirect(request, session)
    repeated = redactions.repeated(handle, stored.message, position)
    context = {"session": people.conversation(request, public_id), "repeated": repeated}
    context["messages"] = handle.history(after=position - 1, limit=1)
    response = render(request, "chat/redacted.html", context)
    response["HX-Trigger"] = "redacted"
    return response


@require_POST
@limited
def redact_replies(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Empty the replies at the positions of the form."""
    session = people.conversation(request, public_id)
    handle = memories[session.alias].session(session)
    positions = [_number(text) for text in request.POST.getlist("position")][: redactions.MOST]
    for position in positions:
        stored = _stored(handle, position)
        if stored is not None and stored.message.role == "assistant":
            handle.redact(position)
    response = HttpResponse()
    response["HX-Trigger"] = json.dumps({"messages-changed": {"from": min(positions, default=1)}})
    return response


@require_POST
@limited
def rename(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Give the conversation another title. The title of nothing visible is no title."""
    session = people.conversation(request, public_id)
    titles.rename(session, request.POST.get("title", ""))
    return _redirect(request, session)


@require_POST
def delete(request: HttpRequest, public_id: uuid.UUID) -> HttpResponse:
    """Delete the conversation."""
    people.conversation(request, public_id).delete()
    return _redirect(request, None)


def _stored(session: SessionHandle, position: int) -> StoredMessage | None:
    """Return the message at ``position``, or None if there is none."""
    if not 0 < position < 10**15:
        return None
    [stored] = session.history(after=position - 1, limit=1) or [None]
    return stored if stored is not None and stored.position == position else None


def _refused(request: HttpRequest, error: str, status: int = 422) -> HttpResponse:
    return render(request, "chat/refused.html", {"error": error}, status=status)


def _key(request: HttpRequest) -> str:
    """Return the idempotency key of the form, or a new key."""
    try:
        return uuid.UUID(request.POST.get("key", "")).hex
    except ValueError:
        return uuid.uuid4().hex


def _number(text: str | None) -> int:
    """Return the position in a URL or a form; 0 if it is not a valid position."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 16 else 0


def _redirect(request: HttpRequest, session: Session | None) -> HttpResponse:
    """Redirect the browser to the conversation, or to the index; for htmx with its own header."""
    url = redirect("chat:index") if session is None else redirect("chat:conversation", session.public_id)
    if request.headers.get("HX-Request"):
        return HttpResponse(status=204, headers={"HX-Redirect": url.url})
    return HttpResponseRedirect(url.url)


def _scope(session: Session) -> dict[str, Any]:
    return {"owner": session.owner} if session.owner_id else {"visitor": session.visitor}


def _shared(request: HttpRequest) -> dict[str, Any]:
    listed = people.conversations(request).order_by("-updated_at").only("public_id", "title", "updated_at")[:50]
    return {
        "conversations": listed,
        "by_whom": by_whom(),
        "key": uuid.uuid4().hex,
        "demo": settings.DEMO_USER,
        "suggestions": SUGGESTIONS,
    }


def _page(request: HttpRequest) -> dict[str, int]:
    """Return the bound of the messages that the request asks for, as history() takes it; none for the newest ones."""
    at, before, after = (_number(request.GET.get(name)) for name in ("at", "before", "after"))
    if at:
        return {"before": at + PAGE // 2}
    return {"before": before} if before else {"after": after} if after else {}


def _messages(session: Session, page: dict[str, int], limit: int = PAGE) -> dict[str, Any]:
    messages = memories[session.alias].history(session, **page, limit=limit)
    newest = not messages or messages[-1].position >= session.last_position
    return {
        "messages": messages,
        "earlier": messages[0].position if messages and messages[0].position > 1 else None,
        "later": None if newest else messages[-1].position,
        "editable": questions.newest(messages) if newest else None,
        "last": messages[-1].position if messages else None,
        "unanswered": newest and bool(messages) and _waits(messages[-1]),
    }


def _tag(session: Session) -> str:
    """Return an entity tag that changes whenever the panel does."""
    return quote_etag(f"{session.revision}-{session.state}")


def _waits(last: StoredMessage) -> bool:
    """Return whether a conversation that ends with this message waits for a reply."""
    return last.message.role in ("user", "tool") and not last.redacted


def _panel(session: Session) -> dict[str, Any]:
    memory = memories[session.alias]
    context = memory.load(session, system=SYSTEM)
    limit = memory.strategy.threshold.tokens
    return {
        "tag": _tag(session),
        "context": context,
        "cached": caches.served(session, context),
        **versions.newest(session),
        "budget": memory.options.max_context_tokens,
        "limit": limit,
        "unfolded": session.unpinned_tokens - session.covered_tokens,
        "total": session.unpinned_tokens + session.pinned_tokens,
    }
