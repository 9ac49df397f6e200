"""Scopes: which sessions a request may reach. Nothing else in the API decides this.

``CONVMEMORY_API = {"SCOPE": "…"}`` names a class with the methods of :class:`UserScope`. A site whose teams share
sessions writes a class of its own::

    class TeamScope(UserScope):
        def sessions(self):
            return Session.objects.filter(owner__in=User.objects.filter(team=self.user.team))

For the request, other sessions do not exist: the response is 404.
"""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.utils.crypto import salted_hmac
from rest_framework.authentication import SessionAuthentication
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from django_convmemory.memory import memories
from django_convmemory.models import Session, SessionQuerySet

# The key of the visitor's id in the site's own session (``request.session``).
VISITOR = "convmemory_visitor"


def adopt_at_login(sender: object, request: Any, user: Any, **kwargs: object) -> None:
    """Give the visitor's sessions to the user who logs in. A receiver of Django's signal ``user_logged_in``."""
    visitor = request.session.pop(VISITOR, None) if hasattr(request, "session") else None
    if visitor is not None:
        memories.adopt(visitor, user)


class UserScope:
    """The sessions of the user who is logged in. Requests of nobody are refused."""

    def __init__(self, request: Request) -> None:
        self.request = request

    @property
    def user(self) -> Any:
        """The user who is logged in, or None."""
        # DRF's setting UNAUTHENTICATED_USER may be None.
        user: Any = self.request.user
        # An authentication class may return another object, a device for example, that has the id of a user.
        return user if isinstance(user, get_user_model()) and user.is_authenticated else None

    def admits(self) -> bool:
        """Return whether the request may reach any session at all."""
        return self.user is not None

    def sessions(self) -> SessionQuerySet:
        """Return the sessions that the request may reach."""
        return Session.objects.filter(owner_id=self.user.pk)

    def whose(self) -> dict[str, Any]:
        """Return the owner of the sessions that the request creates, as the argument ``owner`` or ``visitor``."""
        return {"owner": self.user}

    @property
    def identity(self) -> str:
        """The name by which throttles count the request, or "" to count it by its IP address."""
        return f"user-{self.user.pk}"


class UserOrVisitorScope(UserScope):
    """The sessions of the user, or of the visitor who is not logged in.

    The site's own session (``django.contrib.sessions``) holds a random id of the visitor. It is made with the first
    conversation, so a visitor who only reads gets no cookie. At login the user can adopt the sessions: see
    :func:`adopt_at_login`.
    """

    def admits(self) -> bool:
        if self.user is not None:
            return True
        if not hasattr(self._site_request, "session"):
            return False
        # A page of another site can make a browser send a request with the cookie. DRF checks this only for users.
        if self.request.method not in SAFE_METHODS:
            SessionAuthentication().enforce_csrf(self.request)
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
            # Derived from the key of the site's session, so that several first requests at once get the same id.
            session[VISITOR] = salted_hmac(VISITOR, session.session_key, algorithm="sha256").hexdigest()
        return {"visitor": session[VISITOR]}

    @property
    def identity(self) -> str:
        # Not by the visitor's id: a client without the cookie is another visitor in every request.
        return super().identity if self.user is not None else ""

    @property
    def _site_request(self) -> Any:
        return self.request._request
