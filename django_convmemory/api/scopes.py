"""Whose sessions a request reaches: the one place that decides it.

``CONVMEMORY_API = {"SCOPE": "…"}`` names a class of this form. A site that shares sessions with a team makes one of its
own::

    class TeamScope(UserScope):
        def sessions(self):
            return Session.objects.filter(owner__in=User.objects.filter(team=self.user.team))

What is not among them does not exist for the request, and is answered with 404.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.utils.crypto import salted_hmac
from rest_framework.authentication import CSRFCheck
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS

from django_convmemory.memory import memories
from django_convmemory.models import Session

if TYPE_CHECKING:
    from rest_framework.request import Request

    from django_convmemory.models import SessionQuerySet

# Where a visitor's id stands in the site's own session.
VISITOR = "convmemory_visitor"


def adopt_at_login(sender: object, request: Any, user: Any, **kwargs: object) -> None:
    """Give the visitor's sessions to the user who logs in: a receiver of ``user_logged_in``."""
    visitor = request.session.pop(VISITOR, None) if hasattr(request, "session") else None
    if visitor is not None:
        memories.adopt(visitor, user)


class UserScope:
    """The sessions of the user who is logged in. Others are refused."""

    def __init__(self, request: Request) -> None:
        self.request = request

    @property
    def user(self) -> Any:
        """Who is logged in, or None."""
        # A site can have DRF put None in the place of an anonymous user.
        user: Any = self.request.user
        # Another object that an authenticator returns, a device, say, may have the id of a user.
        return user if isinstance(user, get_user_model()) and user.is_authenticated else None

    def admits(self) -> bool:
        """Whether the request may reach any session at all."""
        return self.user is not None

    def sessions(self) -> SessionQuerySet:
        """Return the sessions that the request reaches."""
        return Session.objects.filter(owner_id=self.user.pk)

    def whose(self) -> dict[str, Any]:
        """Return whose the sessions are that the request makes: ``owner`` or ``visitor``, as a memory takes it."""
        return {"owner": self.user}

    @property
    def identity(self) -> str:
        """By what requests are counted that are limited in number."""
        return f"user-{self.user.pk}"


class UserOrVisitorScope(UserScope):
    """The sessions of the user, or of the visitor who is not logged in.

    A visitor is known by a random id in the site's own session (``django.contrib.sessions``), which is made with the
    first conversation: who only reads gets no cookie. At login the site claims them: see ``memories.adopt``.
    """

    def admits(self) -> bool:
        if self.user is not None:
            return True
        if not hasattr(self._site_request, "session"):
            return False
        # A browser sends the cookie whoever makes it send the request. DRF looks to that for users alone.
        if self.request.method not in SAFE_METHODS:
            self._check_csrf()
        return True

    def sessions(self) -> SessionQuerySet:
        if self.user is not None:
            return super().sessions()
        visitor = self._site_request.session.get(VISITOR)
        return Session.objects.filter(owner_id=None, visitor=visitor) if visitor else Session.objects.none()

    def whose(self) -> dict[str, Any]:
        if self.user is not None:
            return super().whose()
        session = self._site_request.session
        if VISITOR not in session:
            if session.session_key is None:
                session.create()
            # Of the site's own session, so that of several requests at once each finds the same one.
            session[VISITOR] = salted_hmac(VISITOR, session.session_key, algorithm="sha256").hexdigest()
        return {"visitor": session[VISITOR]}

    @property
    def identity(self) -> str:
        # Not by the visitor: who leaves the cookie out is another one every time.
        return super().identity if self.user is not None else ""

    @property
    def _site_request(self) -> Any:
        return self.request._request

    def _check_csrf(self) -> None:
        check = CSRFCheck(lambda request: None)  # type: ignore[arg-type]
        check.process_request(self._site_request)
        reason = check.process_view(self._site_request, None, (), {})  # type: ignore[arg-type]
        if reason:
            raise PermissionDenied(f"CSRF Failed: {reason}", code="csrf_failed")
