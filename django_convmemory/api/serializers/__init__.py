"""What the API accepts and what it returns. The schema prefixes the name of each serializer that is listed here."""

from __future__ import annotations

from django_convmemory.api.serializers.actions import Accepted, Fork, Redacted, Redaction, Truncated, Truncation
from django_convmemory.api.serializers.base import (
    Moment,
    Nothing,
    PageQuery,
    RowSerializer,
    StrictSerializer,
    Time,
    UTCTime,
)
from django_convmemory.api.serializers.contexts import (
    ContextMessages,
    ContextQuery,
    ContextSerializer,
    ExplainedSerializer,
    PartSerializer,
    SummarySerializer,
)
from django_convmemory.api.serializers.messages import (
    Content,
    MessageQuery,
    Messages,
    MessageSerializer,
    NewMessage,
    NewMessages,
    ReceiptSerializer,
    ToolCalls,
    UsageSerializer,
    Wire,
)
from django_convmemory.api.serializers.problems import Problem, ProblemError
from django_convmemory.api.serializers.search import (
    HitSerializer,
    HitSessionSerializer,
    NeighbourSerializer,
    PieceSerializer,
    QuoteSerializer,
    SearchAllQuery,
    SearchQuery,
    SearchSessionQuery,
)
from django_convmemory.api.serializers.sessions import (
    NewSession,
    SessionChanges,
    SessionQuery,
    SessionSerializer,
    StatusSerializer,
)

__all__ = [
    "Accepted",
    "Content",
    "ContextMessages",
    "ContextQuery",
    "ContextSerializer",
    "ExplainedSerializer",
    "Fork",
    "HitSerializer",
    "HitSessionSerializer",
    "MessageQuery",
    "MessageSerializer",
    "Messages",
    "Moment",
    "NeighbourSerializer",
    "NewMessage",
    "NewMessages",
    "NewSession",
    "Nothing",
    "PageQuery",
    "PartSerializer",
    "PieceSerializer",
    "Problem",
    "ProblemError",
    "QuoteSerializer",
    "ReceiptSerializer",
    "Redacted",
    "Redaction",
    "RowSerializer",
    "SearchAllQuery",
    "SearchQuery",
    "SearchSessionQuery",
    "SessionChanges",
    "SessionQuery",
    "SessionSerializer",
    "StatusSerializer",
    "StrictSerializer",
    "SummarySerializer",
    "Time",
    "ToolCalls",
    "Truncated",
    "Truncation",
    "UTCTime",
    "UsageSerializer",
    "Wire",
]
