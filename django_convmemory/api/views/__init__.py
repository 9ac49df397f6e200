"""The endpoints: each validates, calls the memory, and answers."""

from django_convmemory.api.views.actions import Clear, Compact, Export, Fork, Rebuild, Truncate
from django_convmemory.api.views.base import ScopedView, TaggedView
from django_convmemory.api.views.contexts import ContextDetail, SummaryDetail, SummaryList
from django_convmemory.api.views.messages import MessageDetail, MessageList, MessageRedaction
from django_convmemory.api.views.sessions import SessionDetail, SessionList, SessionStatus

__all__ = [
    "Clear",
    "Compact",
    "ContextDetail",
    "Export",
    "Fork",
    "MessageDetail",
    "MessageList",
    "MessageRedaction",
    "Rebuild",
    "ScopedView",
    "SessionDetail",
    "SessionList",
    "SessionStatus",
    "SummaryDetail",
    "SummaryList",
    "TaggedView",
    "Truncate",
]
