"""The app that serves one user's conversations to a client of the Model Context Protocol."""

from __future__ import annotations

from django.apps import AppConfig


class MCPConfig(AppConfig):
    name = "django_convmemory.contrib.mcp"
    label = "convmemory_mcp"
