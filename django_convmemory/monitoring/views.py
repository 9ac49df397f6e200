"""The views for monitoring systems and load balancers. :mod:`.urls` has their addresses."""

from __future__ import annotations

from django.db import Error
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, JsonResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_convmemory.monitoring import conf, exposition, figures, readiness
from django_convmemory.monitoring.readiness import Reason

_FORBIDDEN = (
    "Staff who may view sessions see this page, and requests with the TOKEN of CONVMEMORY_MONITORING: "
    '"Authorization: Bearer TOKEN".\n'
)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The figures of all memories, in Prometheus' text form."""
    try:
        if not _is_allowed(request):
            return HttpResponseForbidden(_FORBIDDEN, content_type="text/plain")
        text = exposition.text(exposition.metrics(figures.backlogs(), figures.recent_calls()))
    except Error as error:
        # Not an error of this view, which the log would have with each look of a monitoring system.
        text = f"The database cannot be read ({type(error).__name__}). health/ says more.\n"
        return HttpResponse(text, content_type="text/plain", status=503)
    return HttpResponse(text, content_type=exposition.CONTENT_TYPE)


@never_cache
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """Whether this process can serve. For load balancers: a model that is down is no reason.

    A stranger sees the codes of the reasons, without their texts.
    """
    reasons = readiness.of_process()
    # Without the database, nobody can be asked who is logged in.
    return _answer(reasons, detailed=bool(reasons) and _has_token(request))


@never_cache
@require_safe
def workers(request: HttpRequest) -> HttpResponse:
    """Whether the workers keep up and the models answer. For alerts."""
    reasons = readiness.of_process()
    if reasons:
        return _answer(reasons, detailed=_has_token(request))
    if not _is_allowed(request):
        return HttpResponseForbidden(_FORBIDDEN, content_type="text/plain")
    return _answer(readiness.of_work(), detailed=True)


def _answer(reasons: list[Reason], *, detailed: bool) -> JsonResponse:
    shown = [reason._asdict() if detailed else {"code": reason.code} for reason in reasons]
    return JsonResponse({"ready": not reasons, "reasons": shown}, status=503 if reasons else 200)


def _is_allowed(request: HttpRequest) -> bool:
    if _has_token(request):
        return True
    user = getattr(request, "user", None)
    return user is not None and user.is_active and user.is_staff and user.has_perm("convmemory.view_session")


def _has_token(request: HttpRequest) -> bool:
    token = conf.options().token
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    return token is not None and scheme.lower() == "bearer" and constant_time_compare(sent.strip(), token)
