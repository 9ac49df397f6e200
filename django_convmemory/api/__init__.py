"""The HTTP API: ``path("api/memory/", include("django_convmemory.api.urls"))``."""
