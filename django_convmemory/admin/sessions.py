"""Sessions in the admin: a list that stays fast, and a page that says why the model said what it said."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import QuerySet
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import formats
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.timesince import timesince
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext_lazy as _

from django_convmemory import models
from django_convmemory.admin import bulk, lists
from django_convmemory.admin.overview import PERIODS, Overview
from django_convmemory.admin.page import SessionPage
from django_convmemory.admin.work import REDACT_ASKS, WORK
from django_convmemory.exceptions import ConvMemoryError
from django_convmemory.maintenance.transfer import exporting
from django_convmemory.memory import memories

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[models.Session]
else:
    _Admin = admin.ModelAdmin


NOBODY = _(
    "Nobody could be told to do it: the broker is away, or the memory's scheduler tells nobody. "
    "What is due is folded by the next sweep."
)


@admin.register(models.Session)
class SessionAdmin(_Admin):
    """Shows sessions. Their rows are not edited by hand: what changes one is an action of its memory."""

    list_display = ("named", "whose", "alias", "length", "budget", "state", "updated")
    list_display_links = ("named",)
    list_filter = (lists.AliasFilter, lists.StateFilter)
    list_per_page = 50
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    ordering = ("-id",)
    search_fields = ("public_id",)  # which has the search box shown: see get_search_results
    search_help_text = _(
        "A public or primary id, what an owner logs in with, a visitor, a key of nobody's, or owner/key"
    )
    actions = (bulk.compact, bulk.export)
    change_list_template = "admin/convmemory/session/list.html"

    class Media:
        css = {"all": ("convmemory/admin.css",)}

    # The list.

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Session]:
        # From the database that is written: what an action has just changed is shown.
        owner = f"owner__{get_user_model().USERNAME_FIELD}"
        rows = models.Session.objects.using(router.db_for_write(models.Session)).with_clock()
        return rows.select_related("owner").only(
            *("key", "alias", "owner", owner, "visitor", "title", "last_position", "updated_at", "public_id"),
            *("unpinned_tokens", "covered_tokens", "lease_expires_at", "due_since", "last_error"),
        )

    def get_paginator(self, request: HttpRequest, queryset: Any, per_page: int, *args: Any, **kwargs: Any) -> Any:
        number = request.GET.get("p", "1")
        page = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1
        return lists.UncountedPaginator(queryset, per_page, page_number=page)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term or "\x00" in term:
            return queryset, False
        return lists.searched(queryset, term, get_user_model()._default_manager.all()), False

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        # Django asks for a location since 6.1.
        where = {} if action_location is None else {"action_location": action_location}
        # Its own deletion would fetch every message to list it.
        found = super().get_actions(request, **where)
        return {name: action for name, action in found.items() if name != "delete_selected"}

    def get_list_display(self, request: HttpRequest) -> Any:
        return [name for name in self.list_display if name != "alias" or len(list(memories)) > 1]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        # Nothing is selected here to be changed.
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            "may_see_overview": self.has_overview_permission(request),
        }
        return super().changelist_view(request, context | (extra_context or {}))

    @admin.display(description=_("session"))
    def named(self, session: models.Session) -> str:
        if not session.title:
            return str(session.key)
        return format_html('<bdi>{}</bdi><br><small class="quiet">{}</small>', session.title, session.key)

    @admin.display(description=_("messages"))
    def length(self, session: models.Session) -> int:
        return session.last_position

    @admin.display(description=_("owner"))
    def whose(self, session: models.Session) -> str:
        if session.owner is not None:
            return session.owner.get_username()
        return f"{_('visitor')} {session.visitor[:12]}" if session.visitor else "–"

    @admin.display(description=_("not folded"))
    def budget(self, session: models.Session) -> str:
        tokens = session.unpinned_tokens - session.covered_tokens
        limit = self._limit(session.alias)
        if limit is None:
            return str(tokens)
        return format_html(
            '<span class="convmemory-budget">'
            '<meter min="0" max="{}" high="{}" value="{}" title="{}">{}</meter> {}</span>',
            *(
                limit * 2,
                limit,
                min(tokens, limit * 2),
                _("%(tokens)s of %(limit)s") % {"tokens": tokens, "limit": limit},
            ),
            *(f"{tokens}/{limit}", tokens),
        )

    @admin.display(description=_("state"))
    def state(self, session: models.Session) -> str:
        return format_html('<span class="convmemory-state {}">{}</span>', session.state.value, session.state.label)

    @admin.display(description=_("updated"))
    def updated(self, session: models.Session) -> str:
        now: Any = session.now  # type: ignore[attr-defined]
        at = localtime(session.updated_at) if is_aware(session.updated_at) else session.updated_at
        ago = _("%(time)s ago") % {"time": timesince(session.updated_at, now, depth=1)}
        return format_html(
            '<time datetime="{}" title="{}">{}</time>',
            *(session.updated_at.isoformat(), formats.localize(at), ago),
        )

    def _limit(self, alias: str) -> int | None:
        return memories[alias].strategy.threshold.tokens if alias in memories else None

    # What nobody may do by hand.

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_overview_permission(self, request: HttpRequest) -> bool:
        """Whether somebody may see the figures of all sessions, of which ``get_queryset`` may show them some."""
        return self.has_view_or_change_permission(request)

    # The page of one.

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        wrap = self.admin_site.admin_view
        own = [
            path(f"<int:pk>/{work}/", wrap(functools.partial(self.work_view, work=work)), name=f"{name}_{work}")
            for work in WORK
        ]
        return [
            *own,
            path("overview/", wrap(self.overview_view), name=f"{name}_overview"),
            path("retry/", wrap(self.retry_view), name=f"{name}_retry"),
            path("<int:pk>/export/", wrap(self.export_view), name=f"{name}_export"),
            path("<int:pk>/redact/<int:position>/", wrap(self.redact_view), name=f"{name}_redact"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        session = self._session(request, object_id)
        if not self.has_view_or_change_permission(request, session):
            raise PermissionDenied
        return self._page(
            request,
            "page",
            title=str(session),
            original=session,
            page=SessionPage(session, _number(request.GET.get("before")), _number(request.GET.get("version"))),
            owner_url=self._owner_url(session),
            work=[
                (name, WORK[name].label)
                for name in WORK
                if self._may(request, name, session) and (name != "rebuild" or session.current_version)
            ],
            may_redact=self._may_redact(request),
            **(extra_context or {}),
        )

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """Show how the memories are doing."""
        if not self.has_overview_permission(request):
            raise PermissionDenied
        return self._page(
            request,
            "overview",
            title=_("Overview"),
            overview=self._overview(request.GET),
            all_aliases=list(memories),
            may_retry=self.has_change_permission(request),
        )

    def retry_view(self, request: HttpRequest) -> HttpResponse:
        """Have the sessions folded that could not be, as many as are reckoned with at once."""
        if not (self.has_overview_permission(request) and self.has_change_permission(request)):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        bulk.compact(self, request, self._overview(request.POST).all_failing)
        return HttpResponseRedirect(self._url("overview"))

    def _overview(self, asked: Mapping[str, Any]) -> Overview:
        alias, period = asked.get("alias"), asked.get("period")
        return Overview(
            router.db_for_write(models.Session),
            alias if alias in memories else None,
            period if period in PERIODS else next(iter(PERIODS)),
        )

    def _page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        # By which the templates' addresses are those of this admin site, where there are several.
        request.current_app = self.admin_site.name
        shared = {**self.admin_site.each_context(request), "subtitle": None, "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/convmemory/session/{template}.html", shared | context)

    def _session(self, request: HttpRequest, object_id: str) -> models.Session:
        # With all columns, of which the list needs few.
        rows = self.get_queryset(request).defer(None).filter(pk=int(object_id)) if _is_id(object_id) else None
        found = rows.first() if rows is not None else None
        if found is None:
            raise Http404
        return found

    def _owner_url(self, session: models.Session) -> str | None:
        """Where the site's admin has the owner, if it has users at all."""
        if session.owner_id is None or not self.admin_site.is_registered(get_user_model()):
            return None
        user = get_user_model()._meta
        try:
            return reverse(
                f"{self.admin_site.name}:{user.app_label}_{user.model_name}_change", args=(session.owner_id,)
            )
        except NoReverseMatch:
            return None

    # What can be done.

    def _may(self, request: HttpRequest, work: str, session: models.Session) -> bool:
        return all(getattr(self, f"has_{one}_permission")(request, session) for one in WORK[work].permissions)

    def _may_redact(self, request: HttpRequest) -> bool:
        return request.user.has_perm("convmemory.change_message")

    def work_view(self, request: HttpRequest, pk: int, work: str) -> HttpResponse:
        """Do one of :data:`.work.WORK`, after asking where it destroys something."""
        session, doing = self._session(request, str(pk)), WORK[work]
        if not self._may(request, work, session):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if doing.asks and "confirmed" not in request.POST:
            return self._ask(request, session, doing.label, doing.asks)
        if session.alias not in memories:
            self.message_user(request, _("Its memory is not in the settings any more."), messages.ERROR)
            return self._back(session)
        # Noted before it is done: of what is deleted nothing can be said afterwards.
        self.log_change(request, session, str(doing.label))
        said = doing.run(memories[session.alias].session(session), session)
        if said is None:
            self.message_user(request, NOBODY, messages.ERROR)
        else:
            self.message_user(request, said, messages.SUCCESS)
        if work == "delete":
            return HttpResponseRedirect(self._url("changelist"))
        return self._back(session)

    def redact_view(self, request: HttpRequest, pk: int, position: int) -> HttpResponse:
        """Empty a message, after asking."""
        session = self._session(request, str(pk))
        if not (self.has_view_or_change_permission(request, session) and self._may_redact(request)):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        label = _("Redact the message at position %(position)s") % {"position": position}
        if "confirmed" not in request.POST:
            return self._ask(request, session, label, REDACT_ASKS)
        try:
            memories[session.alias].redact(session, position)
        except ConvMemoryError as error:
            self.message_user(request, str(error), messages.ERROR)
            return self._back(session)
        self.log_change(request, session, str(label))
        self.message_user(request, _("The message was emptied."), messages.SUCCESS)
        return self._back(session)

    def export_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """Send the session as a record."""
        session = self._session(request, str(pk))
        if not self.has_view_or_change_permission(request, session):
            raise PermissionDenied
        using = session._state.db or "default"
        head = next(exporting.heads(models.Session.objects.using(using).filter(pk=session.pk)), None)
        if head is None:
            raise Http404
        response = StreamingHttpResponse(exporting.pieces(head, using), content_type="application/jsonl")
        response["Content-Disposition"] = f'attachment; filename="{session.public_id}.jsonl"'
        return response

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Not Django's own, which would fetch every message to list it."""
        return HttpResponseRedirect(self._url("change", object_id))

    def _ask(self, request: HttpRequest, session: models.Session, label: Any, asks: Any) -> HttpResponse:
        return self._page(request, "confirm", title=label, subtitle=str(session), original=session, asks=asks)

    def _back(self, session: models.Session) -> HttpResponse:
        return HttpResponseRedirect(self._url("change", session.pk))

    def _url(self, name: str, *arguments: Any) -> str:
        return reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_{name}", args=arguments)


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 19


def _number(text: str | None) -> int | None:
    """A position or a version of an address, or None for what is none."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 16 else None
