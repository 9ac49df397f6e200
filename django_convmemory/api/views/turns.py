"""Views of turns: they answer a question by the site's function, ``CONVMEMORY_API["RESPONDER"]``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from rest_framework.exceptions import APIException, NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle

from django_convmemory.api import conf, etags
from django_convmemory.api.formats import EventStreamRenderer
from django_convmemory.api.problems import Problem
from django_convmemory.api.serializers.messages import NewTurn
from django_convmemory.api.throttles import TurnThrottle
from django_convmemory.api.views.base import as_uuid, ids_in_body
from django_convmemory.api.views.messages import StoringView
from django_convmemory.exceptions import ConvMemoryError, InvalidMessage
from django_convmemory.operations.answer import unknown_question
from django_convmemory.operations.streams import TurnStream
from django_convmemory.operations.turns import Turn
from django_convmemory.rules.turns import Does, Step

logger = logging.getLogger(__name__)


# The question has to be stored before the model is asked.
@method_decorator(transaction.non_atomic_requests, name="dispatch")
class TurnView(StoringView):
    """A view of turns. Without a responder its address does not exist."""

    post_throttle: type[BaseThrottle] | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if conf.responder() is None:
            raise NotFound('The site answers no questions here: CONVMEMORY_API has no "RESPONDER".')

    def turn_of(self, question_id: str) -> Turn:
        """Return the turn of the question with this id, as it is now. Raises a 404."""
        name, memory, public_id = self.session.session_name, self.memory, as_uuid(question_id)
        question = memory.store.question(name, public_id) if public_id else None
        if question is None:
            raise unknown_question()
        _state, following = memory.store.after_question(name, question.position)
        turn = Turn(memory, name, question, following, Step("", 0.0, Does.ENDS))
        turn.is_open = self.session.answered_question == question.position
        return turn


class TurnList(TurnView):
    """Answer a question: a new one, a stored one, or one anew."""

    renderer_classes = [*StoringView.renderer_classes, EventStreamRenderer]
    serializer_class = NewTurn
    post_throttle = TurnThrottle
    # How many seconds a request waits while another one answers in the session.
    wait = 20.0

    def key_in_body(self) -> str | None:
        body = self.request.data
        message = body.get("message") if isinstance(body, Mapping) else None
        message_id = message.get("id") if isinstance(message, Mapping) else None
        return message_id.lower() if isinstance(message_id, str) else None

    def post(self, request: Request, session_id: str) -> HttpResponseBase:
        body, key = self.body(), self.idempotency_key
        message, edit, again = (body.get(name) for name in ("message", "edit", "again"))
        if edit is not None:
            etags.require_header(self.if_match)
        if self._stale is not None and not self._has_stored(key or ""):
            raise self._stale
        if message is not None:
            self.check_sizes([message])
        asked: dict[str, Any] = {"key": key, "edit": edit, "again": again, "revision": self.revision, "wait": self.wait}
        with ids_in_body():
            stream = self.handle.stream_answer(message, conf.responder(), **asked, **conf.responder_options(request))
        stream.turn.request = request
        if isinstance(request.accepted_renderer, EventStreamRenderer):
            return stream.response(request._request)
        self._read(stream)
        turn = stream.turn
        turn.reread()
        status = 200 if turn.replayed or turn.reply is None else 201
        return Response(_represented(turn), status=status, headers={"ETag": turn.etag})

    def _read(self, stream: TurnStream) -> None:
        """Read all of the reply. Raises a 502 if the site's function fails, or says what cannot be stored."""
        try:
            for _text in stream:
                pass
        except Exception as error:
            answers = isinstance(error, (ConvMemoryError, APIException, Http404, PermissionDenied))
            if answers and not isinstance(error, InvalidMessage):
                raise
            logger.exception("The site's function failed to answer.")
            detail = "The model did not reply. The message is stored. Send the same request again."
            raise Problem(502, "responder_failed", detail) from None


class TurnDetail(TurnView):
    """A question and its reply, or whether it is being answered, for a page that was loaded again."""

    def get(self, request: Request, session_id: str, message_id: str) -> Response:
        turn = self.turn_of(message_id)
        return Response(_represented(turn), headers={"ETag": turn.etag})


class TurnStop(TurnView):
    """Stop the reply to a question. What the model has said is stored."""

    def post(self, request: Request, session_id: str, message_id: str) -> Response:
        self.body()
        turn = self.turn_of(message_id)
        if not self.handle.stop_answer(turn.question):
            raise Problem(409, "nothing_to_do", "No request answers this question now.")
        turn.is_open = True
        return Response(_represented(turn), status=202)


def _represented(turn: Turn) -> dict[str, Any]:
    """Return a turn as the API shows it."""
    return {
        "open": turn.is_open,
        "question": turn.question.to_json(),
        "reply": turn.reply and turn.reply.to_json(),
        "messages": [stored.to_json() for stored in turn.messages],
        "usage": turn.usage and turn.usage._asdict(),
        "replayed": turn.replayed,
    }
