"""The admin: what a model was told, what was folded, and what went wrong."""

from django_convmemory.admin.sessions import SessionAdmin

__all__ = ["SessionAdmin"]
