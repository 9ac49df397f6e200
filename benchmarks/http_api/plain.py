"""Minimal DRF endpoints that store a message and return a context, as a site might write them itself."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import F
from django.shortcuts import get_object_or_404
from rest_framework import serializers
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_convmemory.models import Message, Session, Summary


class MessageSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(choices=["user", "assistant"])
    content = serializers.CharField()


class Messages(APIView):
    """Stores messages: the session's counter and the rows, in a transaction."""

    permission_classes = [IsAuthenticated]
    renderer_classes = [JSONRenderer]

    def post(self, request: Request, session_id: str) -> Response:
        serializer = MessageSerializer(data=request.data["messages"], many=True)
        serializer.is_valid(raise_exception=True)
        with transaction.atomic():
            session = get_object_or_404(Session.objects.select_for_update(), public_id=session_id, owner=request.user)
            for number, message in enumerate(serializer.validated_data, start=1):
                Message.objects.create(
                    session=session, position=session.last_position + number, tokens=1, tokens_through=1, **message
                )
            Session.objects.filter(pk=session.pk).update(last_position=F("last_position") + number)
        return Response({"last_position": session.last_position + number}, status=201)


class Context(APIView):
    """Returns the context: the summary and the messages after it."""

    permission_classes = [IsAuthenticated]
    renderer_classes = [JSONRenderer]

    def get(self, request: Request, session_id: str) -> Response:
        session = get_object_or_404(Session, public_id=session_id, owner=request.user)
        summary = Summary.objects.filter(session=session, version=session.current_version).first()
        rows = Message.objects.filter(session=session, position__gt=session.covered_position).order_by("position")
        return Response(
            {
                "summary": summary.text if summary else None,
                "messages": [
                    {"position": row.position, "tokens": row.tokens, "role": row.role, "content": row.content}
                    for row in rows
                ],
            }
        )
