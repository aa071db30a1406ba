"""The list of a project's runs: the page with its filters, its updated rows as a fragment, and its stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt

from agentops.accounts.access import Action, project_for
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_GET, require_safe
from agentops.base.http.request_origins import refuse_foreign
from runs.pages import commands
from runs.pages.page_parts import enter_project, project_context
from runs.pages.runs.list_columns import COLUMNS, column_pairs, headings
from runs.pages.runs.list_query import MAX_NEW, ListQuery, Page, ids_of
from runs.pages.runs.run_row import RunRow, listed_runs, markup_of, read, rows_of
from runs.pages.runs.saved_views_page import shown_views
from runs.queries.run_lists import filter_values, run_windows
from runs.queries.run_lists.run_filters import ON_SITE, Filters, ListFilter
from runs.queries.run_lists.run_order import NEWEST_FIRST, ListPosition
from runs.queries.waiting_for_people import MAX_COUNT, waiting_for_people
from runs.statuses import RunStatus
from timeline.live.access_watch import Permit
from timeline.live.streams import ProjectStream


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of the project's runs that match the filters."""
    principal, entry = enter_project(request, project, Action.READ)
    owner, may_operate = entry.project, Action.OPERATE in entry.actions
    query = ListQuery.parse(request.GET)
    views = shown_views(owner, principal, request)
    if views.redirect_to:
        return HttpResponseRedirect(views.redirect_to)
    page = query.page(owner)
    page_rows = rows_of(page.runs, database_clock.now())
    context = {
        **project_context(entry),
        "rows": markup_of(page_rows, columns=query.columns, boxes=may_operate),
        "rows_url": _rows_url(owner, query, page, page_rows, boxes=may_operate),
        "headings": headings(query.columns, query.order, query.pairs_without_order()),
        "pairs": query.pairs_with_position(),
        "kept_pairs": [*query.order.pairs(), *column_pairs(query.columns)],
        "filter_pairs": [*query.filters.pairs(), *query.order.pairs()],
        "export_query": urlencode(query.filters.pairs()),
        "columns": [(column.name, column.heading, column.name in query.columns) for column in COLUMNS],
        "newest_first": query.order == NEWEST_FIRST,
        "window": f"{run_windows.WINDOW:,}",
        "views": views,
        "page": page,
        "is_first_page": page.since is not None,
        "first_page_url": views.all_url if not query.pairs() else _url(owner, query.first_page()),
        "clear_url": views.all_url,
        "filters": query.filters,
        "filter_fields": filter_fields(owner, query.filters),
        "may_kill": Action.KILL in entry.actions,
        **_waiting(owner),
        "commands": commands.first_run(owner),
        "watch": commands.watch(owner) if may_operate and page.since is not None else "",
    }
    return render(request, "runs/runs/list.html", context)


@require_safe
def rows(request: HttpRequest, project: str) -> HttpResponse:
    """Return the current rows `ids` and the number of runs newer than `since`, as a fragment."""
    owner = project_for(principal_of(request), project, Action.READ)
    query = ListQuery.parse(request.GET)
    ids = ids_of(request.GET.get("ids", ""))
    since = request.GET.get("since")
    runs = read(listed_runs().filter(project=owner, pk__in=ids))
    new = query.new_since(owner, ListPosition.parse(since, "since")) if since else 0
    context = {
        "project": owner,
        # Checkboxes appear as on the page. The actions check the permission.
        "rows": markup_of(
            rows_of(runs, database_clock.now()), columns=query.columns, boxes=bool(request.GET.get("boxes")), swap=True
        ),
        "new": f"{MAX_NEW}+" if new > MAX_NEW else new,
        **_waiting(owner),
        "first_page_url": _url(owner, query.first_page()),
    }
    return render(request, "runs/runs/_list_changes.html", context)


# Exempt, so that a POST gets status 405 and not a CSRF error.
@csrf_exempt
@require_GET
def stream(request: HttpRequest, project: str) -> HttpResponse:
    """Stream a message for each run that is created or changes its status; the page then reloads its rows."""
    refuse_foreign(request)
    principal = principal_of(request)
    owner = project_for(principal, project, Action.READ)
    return ProjectStream(owner.pk, Permit(principal, owner.pk, request.session.session_key))


def _waiting(project: Project) -> dict[str, Any]:
    """Return the number of runs that wait for a person, and the URL of their list."""
    count = waiting_for_people(project)
    return {
        "waiting": f"{count}+" if count == MAX_COUNT else count,
        "waiting_url": _url(project, ListQuery(Filters({"status": RunStatus.WAITING.value}))),
    }


def _url(project: Project, query: ListQuery) -> str:
    """Return the URL of a list."""
    # Without a parameter, it would open the user's default view.
    return reverse("runs:list", args=[project.slug]) + (query.query_string() or "?all=1")


def _rows_url(project: Project, query: ListQuery, page: Page, page_rows: list[RunRow], *, boxes: bool) -> str:
    """Return the URL of the updated rows of a page; empty if all its runs have ended and no new ones are counted."""
    ids = ",".join(row["id"] for row in page_rows if not row["has_ended"])
    changing = [(name, str(value)) for name, value in (("ids", ids), ("since", page.since)) if value]
    if not changing:
        return ""
    parameters = urlencode(query.pairs() + changing + [("boxes", "1")] * boxes, safe=",")
    return f"{reverse('runs:list-rows', args=[project.slug])}?{parameters}"


@dataclass(frozen=True)
class FilterField:
    """A field of the form of filters."""

    filter: ListFilter
    value: str
    #: Values and texts of a menu or of checkboxes.
    choices: list[tuple[str, str]]

    @property
    def id(self) -> str:
        return f"filter-{self.filter.name.replace('_', '-')}"

    @property
    def chosen(self) -> list[str]:
        return self.value.split(",") if self.filter.kind.is_many else [self.value]

    @property
    def is_flag(self) -> bool:
        """Return whether the field is a single checkbox."""
        return self.filter.kind is filter_values.FLAG


@dataclass(frozen=True)
class FilterFields:
    """The form of filters."""

    fields: list[FilterField]

    @property
    def first(self) -> list[FilterField]:
        """Return the fields that are always shown."""
        return [field for field in self.fields if not field.filter.is_more]

    @property
    def more(self) -> list[FilterField]:
        """Return the fields of the section "More filters"."""
        return [field for field in self.fields if field.filter.is_more]

    @property
    def has_more(self) -> bool:
        """Return whether a filter of the section "More filters" is set."""
        return any(field.value for field in self.more)


def filter_fields(project: Project, filters: Filters) -> FilterFields:
    """Return the form with the filters that are set. A menu without choices is left out."""
    fields = []
    for name, list_filter in ON_SITE.items():
        value = filters.values.get(name, "")
        if list_filter.choices:
            choices = list_filter.choices(project, value)
        else:
            choices = [(choice, choice) for choice in list_filter.kind.choices]
        if choices or not list_filter.choices:
            fields.append(FilterField(list_filter, value, choices))
    return FilterFields(fields)
