"""The search page: a form, and the results that link to where they are in the timeline of their run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django_htmx.middleware import HtmxDetails

from agentops.http.methods import require_safe
from agentops.projects.access import Action, enter
from agentops.projects.models import Project
from agentops.projects.requests import principal_of
from runs.access import run_in
from runs.models import Agent, SearchEntry
from runs.pages.runs.run_row import UNTITLED
from runs.pages.search.search_form import SearchForm
from runs.queries.json_lists import RowSpan
from runs.queries.searching import text_parts
from runs.queries.searching.search_results import RANKED, Result, Search, SearchOrder, search
from runs.queries.searching.search_terms import InvalidSearch, parse
from runs.statuses import RunStatus
from runs.upkeep import search_index
from timeline.display import clean

PAGE_SIZE = 25
#: Maximum entries of a menu.
MAX_CHOICES = 200
KINDS = [("message", "Messages"), ("tool_call", "Tool calls"), ("event", "Events")]
ORDERS = [(SearchOrder.RELEVANCE.value, "Best match"), (SearchOrder.NEWEST.value, "Newest first")]
ROLES = {"system": "System message", "user": "User message", "assistant": "Assistant"}


@dataclass(frozen=True)
class ListedResult:
    """A result, with what its row needs."""

    result: Result

    @property
    def href(self) -> str:
        """Return the URL of the place in the timeline."""
        return f"{self.run_href}?event={self.result.seq}#target"

    @property
    def run_href(self) -> str:
        """Return the URL of the run or of the flow run."""
        return reverse("runs:flow-run" if self.result.is_flow else "runs:detail", args=[self.result.run_id])

    @property
    def whole_href(self) -> str:
        """Return the URL of the whole text. Empty for an event of a flow run, which its page shows."""
        result = self.result
        if result.is_flow:
            return ""
        if result.ref_id is None:
            return reverse("runs:event", args=[result.run_id, result.seq])
        name = "runs:message" if result.kind == SearchEntry.Kind.MESSAGE else "runs:call"
        return reverse(name, args=[result.run_id, result.ref_id])

    @property
    def icon(self) -> str:
        if self.result.kind == SearchEntry.Kind.TOOL_CALL:
            return "tool"
        if self.result.kind == SearchEntry.Kind.EVENT:
            return "error" if self.result.is_error else "notice"
        return self.result.name if self.result.name in ROLES else "user"

    @property
    def title(self) -> str:
        return ROLES.get(self.result.name, self.result.name)

    @property
    def run_title(self) -> str:
        return self.result.run_title or UNTITLED


@dataclass(frozen=True)
class ResultPage:
    """A page of results, or the reason why there is none."""

    results: list[ListedResult]
    #: Query string of the next page; empty if there is none.
    more: str = ""
    #: The search took long and stopped before the end of the index.
    is_partial: bool = False
    #: There are more matches than were ranked.
    is_cut: bool = False
    error: str = ""
    #: Whether anything was searched for.
    is_search: bool = True


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the form and a page of results."""
    entry = enter(principal_of(request), project, Action.READ)
    form = SearchForm.parse(request.GET)
    # A run of another project is refused like an unknown one.
    run = run_in(entry.project, form.filters.run_id) if form.filters.run_id else None
    page = _search(entry.project, form)
    context = {
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "form": form,
        "run": run,
        "run_title": clean(run.title) or UNTITLED if run is not None else "",
        "page": page,
        "lag_s": search_index.lag_s(),
        "is_extending": search_index.is_extending(),
        "bounds": {"limit": text_parts.LIMIT, "tail": text_parts.TAIL, "part": text_parts.PART},
        "ranked": RANKED,
        "is_first_page": not form.after,
        "first_page": form.query_string(),
        "all_runs": form.query_string(run=""),
        "by_time": form.query_string(order=SearchOrder.NEWEST.value),
        "clear": SearchForm(text=form.text, run=form.run).query_string(),
        **_choices(entry.project, form),
    }
    # htmx shows answers with status 200 only.
    return render(request, "runs/search.html", context, status=400 if page.error and not HtmxDetails(request) else 200)


def _search(project: Project, form: SearchForm) -> ResultPage:
    try:
        terms = parse(form.text)
    except InvalidSearch as error:
        return ResultPage([], error=str(error))
    if not terms:
        return ResultPage([], is_search=False)
    query = Search(project.pk, terms, form.filters, SearchOrder(form.order))
    # One more than a page, to know whether there are others.
    rows = search(query, RowSpan(form.after, limit=PAGE_SIZE + 1))
    end = rows.position_of(PAGE_SIZE - 1) if len(rows) > PAGE_SIZE else rows.search_end
    results = [ListedResult(result) for result in rows.items[:PAGE_SIZE]]
    more = form.query_string(after=end) if end is not None else ""
    is_partial = len(rows) <= PAGE_SIZE and rows.search_end is not None
    return ResultPage(results, more, is_partial=is_partial, is_cut=any(rows.tail))


def _choices(project: Project, form: SearchForm) -> dict[str, Any]:
    """Return the choices of the filters."""
    agents = Agent.objects.filter(project=project).order_by("slug").values_list("slug", flat=True)[:MAX_CHOICES]
    return {
        "kinds": KINDS,
        "orders": ORDERS,
        "statuses": [status.value for status in RunStatus],
        # Include the selected agent even if it was deleted: its runs still exist.
        "agents": sorted({*agents, *filter(None, [form.agent])}),
    }
