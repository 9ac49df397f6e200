"""``path("api/memory/", include("django_convmemory.api.urls"))``."""

from __future__ import annotations

from django.apps import apps
from django.urls import path

from django_convmemory.api import views

app_name = "convmemory"

_SESSION = "sessions/<str:session_id>/"

urlpatterns = [
    path("sessions/", views.SessionList.as_view(), name="sessions"),
    path(_SESSION, views.SessionDetail.as_view(), name="session"),
    path(f"{_SESSION}status/", views.SessionStatus.as_view(), name="session-status"),
    path(f"{_SESSION}context/", views.ContextDetail.as_view(), name="context"),
    path(f"{_SESSION}messages/", views.MessageList.as_view(), name="messages"),
    path(f"{_SESSION}messages/<str:position>/", views.MessageDetail.as_view(), name="message"),
    path(f"{_SESSION}messages/<str:position>/redact/", views.MessageRedaction.as_view(), name="redact"),
    path(f"{_SESSION}summaries/", views.SummaryList.as_view(), name="summaries"),
    path(f"{_SESSION}summaries/<str:version>/", views.SummaryDetail.as_view(), name="summary"),
    path(f"{_SESSION}truncate/", views.Truncate.as_view(), name="truncate"),
    path(f"{_SESSION}clear/", views.Clear.as_view(), name="clear"),
    path(f"{_SESSION}fork/", views.Fork.as_view(), name="fork"),
    path(f"{_SESSION}compact/", views.Compact.as_view(), name="compact"),
    path(f"{_SESSION}rebuild/", views.Rebuild.as_view(), name="rebuild"),
    path(f"{_SESSION}export/", views.Export.as_view(), name="export"),
]

if apps.is_installed("drf_spectacular"):
    import django_convmemory.api.schema  # noqa: F401  it registers itself
