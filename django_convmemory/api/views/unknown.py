"""Addresses of the API that do not exist, and those that lack their slash."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpResponsePermanentRedirect
from django.urls import NoReverseMatch, Resolver404, URLPattern, get_script_prefix, resolve, reverse
from django.urls.resolvers import RegexPattern, ResolverMatch
from rest_framework.exceptions import NotFound
from rest_framework.request import Request

from django_convmemory.api.views.base import ScopedView


class UnknownAddress(ScopedView):
    """The response to a request whose address does not exist: a problem document, and not a page of the site.

    ``APPEND_SLASH`` would redirect a POST without its slash, and a client would repeat it as a GET. Only reads are
    redirected here.
    """

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.method in ("GET", "HEAD") and settings.APPEND_SLASH and _with_slash(request) is not None:
            return HttpResponsePermanentRedirect(request.get_full_path(force_append_slash=True))
        return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        address = _with_slash(request)
        raise NotFound(f"The address needs a slash at its end: {address}" if address else "There is no such address.")


def _with_slash(request: Any) -> str | None:
    """Return the path of the request with a slash at its end, if only this is missing to an address that exists."""
    path = f"{request.path_info}/"
    if path.endswith("//"):
        return None
    try:
        view = resolve(path, getattr(request, "urlconf", None)).func
    except Resolver404:
        return None
    return f"{request.path}/" if getattr(view, "should_append_slash", True) else None


class UnknownAddresses(URLPattern):
    """The pattern of all addresses below the prefix of the API that no pattern before it has.

    If the API has no prefix of its own, other addresses may be the site's. This is so at the root of a site, and below
    a parameter. Then the pattern matches only what begins with one of ``first_segments``, as the API's addresses do.
    """

    def __init__(self, first_segments: set[str]) -> None:
        view = UnknownAddress.as_view()
        view.should_append_slash = False  # type: ignore[attr-defined]
        super().__init__(RegexPattern("", name="unknown", is_endpoint=True), view, name="unknown")
        self.first_segments = first_segments

    def resolve(self, path: str) -> ResolverMatch | None:
        if path.partition("/")[0] in self.first_segments or _has_prefix():
            return super().resolve(path)
        return None


def _has_prefix() -> bool:
    try:
        return reverse("convmemory:sessions") != f"{get_script_prefix()}sessions/"
    except NoReverseMatch:  # A parameter stands in the prefix.
        return False
