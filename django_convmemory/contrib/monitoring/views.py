"""The views for monitoring systems and load balancers. :mod:`.urls` has their addresses."""

from __future__ import annotations

import importlib
import pkgutil
from typing import NamedTuple

from django.db import Error, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden, JsonResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from django_convmemory.contrib.monitoring import conf, figures
from django_convmemory.contrib.monitoring.figures import Backlog
from django_convmemory.store.orm import ORMStore

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
        text = figures.text(figures.backlogs(), figures.recent_calls())
    except Error as error:
        # Not an error of this view, which the log would have with each look of a monitoring system.
        text = f"The database cannot be read ({type(error).__name__}). health/ says more.\n"
        return HttpResponse(text, content_type="text/plain", status=503)
    return HttpResponse(text, content_type=figures.CONTENT_TYPE)


@never_cache
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """Whether this process can serve. For load balancers: a model that is down is no reason.

    A stranger sees the codes of the reasons, without their texts.
    """
    reasons = of_process()
    # Without the database, nobody can be asked who is logged in.
    return _answer(reasons, detailed=bool(reasons) and _has_token(request))


@never_cache
@require_safe
def workers(request: HttpRequest) -> HttpResponse:
    """Whether the workers keep up and the models answer. For alerts."""
    reasons = of_process()
    if reasons:
        return _answer(reasons, detailed=_has_token(request))
    if not _is_allowed(request):
        return HttpResponseForbidden(_FORBIDDEN, content_type="text/plain")
    return _answer(of_work(), detailed=True)


def _answer(reasons: list[NotReady], *, detailed: bool) -> JsonResponse:
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


# Whether a process can serve, and whether the workers keep up, with the reasons if not.


class NotReady(NamedTuple):
    """Why something is not ready. The ``code`` is for programs, and tells a stranger nothing about the site's data."""

    code: str
    message: str
    alias: str = ""


def of_process(using: str | None = None) -> list[NotReady]:
    """Return why this process cannot serve: the database cannot be read, or lacks a migration."""
    using = using or ORMStore().using
    try:
        missing = _missing_migrations(using)
    except Error as error:
        # Its text may have the address of the database, and its user.
        return [NotReady("database", f"The database {using!r} cannot be read ({type(error).__name__}).")]
    if missing:
        return [NotReady("migrations", f"The database {using!r} lacks {', '.join(missing)}. Run manage.py migrate.")]
    return []


def _missing_migrations(using: str) -> list[str]:
    recorder = MigrationRecorder(connections[using])
    applied = set(recorder.migration_qs.filter(app="convmemory").values_list("name", flat=True))
    module, _ = MigrationLoader.migrations_module("convmemory")
    if module is None:  # The site has switched them off.
        return []
    path = importlib.import_module(module).__path__
    return sorted({info.name for info in pkgutil.iter_modules(path) if info.name[0] not in "_~"} - applied)


def of_work(backlogs: dict[str, Backlog] | None = None) -> list[NotReady]:
    """Return why the work does not get done: sessions are due for too long, or a model does not answer."""
    limit = conf.options().max_due_seconds
    reasons = []
    for alias, backlog in (figures.backlogs() if backlogs is None else backlogs).items():
        if backlog.paused in figures.LASTING:
            reasons.append(NotReady("paused", f"memories[{alias!r}] is paused: {backlog.paused}.", alias))
        # A session that always fails would keep the rest from ever being ready. The metrics count it as stalled.
        if backlog.oldest_moving_seconds > limit:
            waits = f"A session of memories[{alias!r}] has been due for {backlog.oldest_moving_seconds:.0f} s"
            reasons.append(NotReady("overdue", f"{waits}, which is more than {limit} s. Check the workers.", alias))
    return reasons
