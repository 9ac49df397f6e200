"""The admin: what a model was sent, what was folded, and what failed."""

from django_convmemory.admin.sessions import SessionAdmin

__all__ = ["SessionAdmin"]
