"""``path("api/memory/", include("django_convmemory.api.urls"))``."""

from __future__ import annotations

from django.urls import URLPattern, path

from django_convmemory.api.views import events, messages, sessions, turns

app_name = "convmemory"

_SESSION = "sessions/<str:session_id>/"

urlpatterns: list[URLPattern] = [
    path("sessions/", sessions.SessionList.as_view(), name="sessions"),
    path("search/", messages.SearchAll.as_view(), name="search-all"),
    path(_SESSION, sessions.SessionDetail.as_view(), name="session"),
    path(f"{_SESSION}status/", sessions.SessionStatus.as_view(), name="session-status"),
    path(f"{_SESSION}events/", events.SessionEvents.as_view(), name="events"),
    path(f"{_SESSION}context/", messages.ContextDetail.as_view(), name="context"),
    path(f"{_SESSION}messages/", messages.MessageList.as_view(), name="messages"),
    path(f"{_SESSION}messages/<str:message_id>/", messages.MessageDetail.as_view(), name="message"),
    path(f"{_SESSION}messages/<str:message_id>/redact/", messages.MessageRedaction.as_view(), name="redact"),
    path(f"{_SESSION}turns/", turns.TurnList.as_view(), name="turns"),
    path(f"{_SESSION}turns/<str:message_id>/", turns.TurnDetail.as_view(), name="turn"),
    path(f"{_SESSION}turns/<str:message_id>/stop/", turns.TurnStop.as_view(), name="stop"),
    path(f"{_SESSION}summaries/", messages.SummaryList.as_view(), name="summaries"),
    path(f"{_SESSION}summaries/<str:version>/", messages.SummaryDetail.as_view(), name="summary"),
    path(f"{_SESSION}search/", messages.SearchSession.as_view(), name="search"),
    path(f"{_SESSION}replace/", messages.MessageReplacement.as_view(), name="replace"),
    path(f"{_SESSION}truncate/", sessions.Truncate.as_view(), name="truncate"),
    path(f"{_SESSION}clear/", sessions.Clear.as_view(), name="clear"),
    path(f"{_SESSION}fork/", sessions.Fork.as_view(), name="fork"),
    path(f"{_SESSION}compact/", sessions.Compact.as_view(), name="compact"),
    path(f"{_SESSION}rebuild/", sessions.Rebuild.as_view(), name="rebuild"),
    path(f"{_SESSION}export/", sessions.Export.as_view(), name="export"),
]
