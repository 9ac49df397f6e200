"""The admin: what a model was sent, what was folded, and what failed.

This module has the list, and the views of a session, the overview and the actions. The others have what these show.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import SEARCH_VAR
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import router
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_convmemory import models
from django_convmemory.admin import actions, finding, lists
from django_convmemory.admin.actions import REDACT, WORK, Work
from django_convmemory.admin.overview import Overview
from django_convmemory.admin.page import SessionPage
from django_convmemory.admin.waiting import Status, failing_aliases, pauses
from django_convmemory.exceptions import ConvMemoryError
from django_convmemory.memory import memories
from django_convmemory.templatetags.convmemory import moment, number

NO_WORKER = _(
    "No worker could be asked. The broker cannot be reached, the memory’s scheduler sends no tasks, or the memory has "
    "no chat model. If the session is due, the next sweep folds it, or the first sweep after a pause of the memory. A "
    "rebuild has to be asked for again."
)


@admin.register(models.Session)
class SessionAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Shows sessions. Nobody edits their rows by hand: every action that changes a session calls its memory."""

    list_display = ("named", "state", "whose", "alias", "length", "budget", "updated")
    list_filter = (lists.AliasFilter, lists.StateFilter)
    list_per_page = 50
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    ordering = ("-id",)
    search_fields = ("public_id",)  # Django shows a search box if there are any. get_search_results() searches.
    search_help_text = _(
        "Enter an exact public id, primary key, owner’s login name, visitor, key of a session without owner, or "
        "owner/key. In the newest 10,000 sessions, a part of the title or the key is enough. Below the list are the "
        "messages that match: those of the newest sessions or, if you enter owner/words, of a person’s newest sessions."
    )
    actions = (actions.compact, actions.export)
    change_list_template = "admin/convmemory/session/list.html"

    class Media:
        css = {"all": ("convmemory/admin.css",)}

    # The list.

    def get_queryset(self, request: HttpRequest) -> QuerySet[models.Session]:
        # Read the database that is written, so that a page shows what an action has just changed.
        sessions = models.Session.objects.using(router.db_for_write(models.Session))
        return sessions.with_clock().select_related("owner")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        # The list always calls this method. It needs few columns.
        queryset = queryset.only(
            *("key", "alias", "owner", f"owner__{get_user_model().USERNAME_FIELD}", "visitor", "title", "public_id"),
            *("archived_at", "last_position", "updated_at", "unpinned_tokens", "covered_tokens"),
            *("lease_expires_at", "due_since", "last_error"),
        )
        term = search_term.strip()
        if not term or "\x00" in term:
            return queryset, False
        owners = get_user_model()._default_manager.using(queryset.db)
        # changelist_view() shows what was said. This queryset has the filters of the list, which are known only here.
        if lists.uuid_of(term) is None:
            request.convmemory_search = finding.TextSearch(queryset, term, owners)  # type: ignore[attr-defined]
        return lists.searched(queryset, term, owners), False

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        # Django 6.1 passes a location, and warns about a signature without it. Django 5.2 knows none.
        location = {} if action_location is None else {"action_location": action_location}
        actions = super().get_actions(request, **location)
        # Django's own deletion fetches every message to list it.
        actions.pop("delete_selected", None)
        return actions

    def get_paginator(self, request: HttpRequest, queryset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the paginator of the list, or that of a session's history, which has few rows."""
        paginator = lists.UncountedPaginator if queryset.model is models.Session else Paginator
        return paginator(queryset, *args, **kwargs)

    def get_list_display(self, request: HttpRequest) -> Any:
        return [name for name in self.list_display if name != "alias" or len(list(memories)) > 1]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        may_see_overview = self.has_overview_permission(request)
        alias_pauses = pauses(self.get_queryset(request), memories)
        context = {
            # Django's title is "Select session to change", and nothing is selected here to be changed.
            "title": capfirst(self.opts.verbose_name_plural),
            # Django gives it to its own search form only.
            "search_var": SEARCH_VAR,
            "may_see_overview": may_see_overview,
            # Without that permission, only pauses that hold up sessions of this user's list are shown.
            "pauses": [pause for pause in alias_pauses if may_see_overview or pause.waiting],
        }
        response = super().changelist_view(request, context | (extra_context or {}))
        if isinstance(response, TemplateResponse) and response.context_data is not None:
            response.context_data["found"] = getattr(request, "convmemory_search", None)
        return response

    @admin.display(description=_("session"))
    def named(self, session: models.Session) -> str:
        mark = format_html(' <span class="convmemory-tag">{}</span>', _("archived")) if session.archived_at else ""
        if not session.title:
            return format_html("{}{}", session.key, mark)
        return format_html('<bdi>{}</bdi>{}<br><small class="quiet">{}</small>', session.title, mark, session.key)

    @admin.display(description=_("messages"))
    def length(self, session: models.Session) -> str:
        return number(session.last_position)

    @admin.display(description=_("owner"))
    def whose(self, session: models.Session) -> str:
        if session.owner is not None:
            return session.owner.get_username()
        return f"{_('visitor')} {session.visitor[:12]}" if session.visitor else "–"

    @admin.display(description=_("not folded"))
    def budget(self, session: models.Session) -> str:
        status = Status(session)
        tokens, limit = status.tail_tokens, status.limit
        if limit is None:
            return number(tokens)
        return format_html(
            '<span class="convmemory-budget">'
            '<meter min="0" max="{}" high="{}" value="{}" title="{}">{}</meter> {}</span>',
            *(limit * 2, limit, min(tokens, limit * 2)),
            _("%(tokens)s tokens are not folded; the session is due above %(limit)s")
            % {"tokens": number(tokens), "limit": number(limit)},
            *(f"{tokens}/{limit}", number(tokens)),
        )

    @admin.display(description=_("state"))
    def state(self, session: models.Session) -> str:
        return format_html('<span class="convmemory-state {}">{}</span>', session.state.value, session.state.label)

    @admin.display(description=_("updated"))
    def updated(self, session: models.Session) -> str:
        return moment(session.updated_at)

    # Permissions.

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_overview_permission(self, request: HttpRequest) -> bool:
        """Whether the user may see the figures of all sessions, also of those that ``get_queryset`` hides.

        A subclass with a ``get_queryset`` of its own has to say so: the overview also names the sessions.
        """
        return type(self).get_queryset is SessionAdmin.get_queryset and self.has_view_or_change_permission(request)

    def has_redact_permission(self, request: HttpRequest, session: models.Session) -> bool:
        """Whether the user may see the session and empty its messages."""
        may_see = self.has_view_or_change_permission(request, session)
        return may_see and request.user.has_perm("convmemory.change_message")

    def _may(self, request: HttpRequest, permission: str, session: models.Session) -> bool:
        return bool(getattr(self, f"has_{permission}_permission")(request, session))

    # Pages.

    def get_urls(self) -> list[URLPattern]:
        def at(route: str, view: Callable[..., HttpResponseBase], name: str, **arguments: Work) -> URLPattern:
            name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
            return path(route, self.admin_site.admin_view(functools.partial(view, **arguments)), name=name)

        return [
            *(at(f"<int:pk>/{name}/", self.work_view, name, work=work) for name, work in WORK.items()),
            at("<int:pk>/redact/<int:position>/", self.work_view, "redact", work=REDACT),
            at("<int:pk>/export/", self.export_view, "export"),
            at("overview/", self.overview_view, "overview"),
            at("retry/", self.retry_view, "retry"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        session = self._session(request, object_id)
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        at, before, version = (lists.integer(request.GET.get(name, "")) for name in ("at", "before", "version"))
        if at is not None:
            return self._at(request, session, at)
        # Without a pause no statement is needed.
        paused = session.pause  # type: ignore[attr-defined]
        alias_pauses = pauses(self.get_queryset(request), [session.alias]) if paused else []
        phrase = finding.phrase_of(request.GET.get("find", ""))
        return self._page(
            request,
            "page",
            title=str(session),
            original=session,
            page=SessionPage(session, before, version, next(iter(alias_pauses), None), phrase),
            max_phrase=finding.MAX_PHRASE,
            pauses=alias_pauses,
            may_compact=self._may(request, WORK["compact"].permission, session),
            owner_url=self._owner_url(session),
            work=[
                (name, work.label)
                for name, work in WORK.items()
                if self._may(request, work.permission, session) and (name != "rebuild" or session.current_version)
            ],
            may_redact=self.has_redact_permission(request, session),
            **(extra_context or {}),
        )

    def overview_view(self, request: HttpRequest) -> HttpResponse:
        """Show the figures of all memories."""
        if not self.has_overview_permission(request):
            raise PermissionDenied
        overview = self._overview(request.GET)
        alias_pauses = pauses(models.Session.objects.using(overview.using), overview.aliases)
        return self._page(
            request,
            "overview",
            title=_("Overview"),
            overview=overview,
            pauses=alias_pauses,
            waiting=overview.why(alias_pauses),
            failing_aliases=failing_aliases(overview.using, overview.aliases),
            all_aliases=list(memories),
            may_retry=self.has_change_permission(request),
        )

    def retry_view(self, request: HttpRequest) -> HttpResponse:
        """Ask workers to compact the sessions that the overview counts as stuck."""
        if not (self.has_overview_permission(request) and self.has_change_permission(request)):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        actions.compact(self, request, self._overview(request.POST).all_stuck)
        return HttpResponseRedirect(self._url("overview"))

    def _overview(self, parameters: Mapping[str, Any]) -> Overview:
        alias = parameters.get("alias")
        return Overview(router.db_for_write(models.Session), alias if alias in memories else None)

    def export_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """Send the session as a record."""
        session = self._session(request, pk)
        sessions = models.Session.objects.using(session._state.db).filter(pk=session.pk)
        return actions.download(sessions, f"{session.public_id}.jsonl")

    # Actions.

    def work_view(self, request: HttpRequest, pk: int, work: Work, **arguments: int) -> HttpResponse:
        """Carry out an action of :mod:`.actions`. If it deletes something, ask first."""
        session, label = self._session(request, pk, work.permission), str(work.label) % arguments
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if work.warning and "confirmed" not in request.POST:
            context = {"title": label, "subtitle": str(session), "original": session, "warning": work.warning}
            if work is REDACT:
                timeline = SessionPage(session, before=arguments["position"] + 1).timeline
                context["bubbles"] = [bubble for bubble in timeline if bubble.row.position == arguments["position"]]
            return self._page(request, "confirm", **context)
        if work.needs_memory and session.alias not in memories:
            text = _("The alias “%(alias)s” is not in the setting CONVMEMORY. Add it there, or delete the session.")
            self.message_user(request, text % {"alias": session.alias}, messages.ERROR)
            return self._back(session)
        try:
            notice = work.run(session, **arguments)
        except ConvMemoryError as error:
            self.message_user(request, str(error), messages.ERROR)
            return self._back(session)
        self.log_change(request, session, label)
        self.message_user(request, notice or NO_WORKER, messages.SUCCESS if notice else messages.ERROR)
        if work is WORK["delete"]:
            return HttpResponseRedirect(self._url("changelist"))
        return self._back(session)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Redirect to the session's page: Django's own view fetches every message to list it."""
        return HttpResponseRedirect(self._url("change", object_id))

    # What the views share.

    def _page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        # A site may have several admin sites. The templates then link to pages of this one.
        request.current_app = self.admin_site.name
        shared = {**self.admin_site.each_context(request), "subtitle": None, "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/convmemory/session/{template}.html", shared | context)

    def _session(
        self, request: HttpRequest, object_id: str | int, permission: str = "view_or_change"
    ) -> models.Session:
        session: models.Session | None = self.get_object(request, str(object_id))
        if session is None:
            raise Http404
        if not self._may(request, permission, session):
            raise PermissionDenied
        return session

    def _at(self, request: HttpRequest, session: models.Session, position: int) -> HttpResponse:
        """Redirect to the page that shows the message at ``position``, or the message that is nearest to it."""
        position = max(1, min(position, session.last_position))
        parameters = request.GET.copy()
        del parameters["at"]
        parameters["before"] = str(finding.page_of(session, position))
        return HttpResponseRedirect(f"?{parameters.urlencode()}#m{position}")

    def _owner_url(self, session: models.Session) -> str | None:
        """Return the address of the owner in this admin site, or None if it has no users."""
        if session.owner_id is None:
            return None
        try:
            return self._url("change", quote(session.owner_id), opts=get_user_model()._meta)
        except NoReverseMatch:
            return None

    def _back(self, session: models.Session) -> HttpResponse:
        return HttpResponseRedirect(self._url("change", session.pk))

    def _url(self, name: str, *arguments: Any, opts: Any = None) -> str:
        opts = opts or self.opts
        view = f"admin:{opts.app_label}_{opts.model_name}_{name}"
        return reverse(view, args=arguments, current_app=self.admin_site.name)
