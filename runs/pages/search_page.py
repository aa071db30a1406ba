"""The search page: a form, and results that link into the timeline of their run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django_htmx.middleware import HtmxDetails

from agentops.accounts.access import Action, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from agentops.base.redaction.redact import BARE
from agentops.base.refusals import InvalidQuery
from runs.access import run_in
from runs.models import Agent, SearchEntry
from runs.pages.page_parts import MAX_CHOICES, project_context
from runs.pages.runs.run_row import UNTITLED
from runs.queries.json_lists import Position, RowSpan
from runs.queries.searching import index_entries
from runs.queries.searching.search_results import MAX_RANKED, Result, Search, SearchFilters, SearchOrder, search
from runs.queries.searching.search_terms import parse
from runs.statuses import RunStatus
from runs.upkeep import search_index
from timeline.display import clean

#: A position in the results: up to three numbers of 64 bits.
POSITION = re.compile(r"[0-9]{1,20}(?:-[0-9]{1,20}){0,2}", re.ASCII)
#: The format of an input of type datetime-local.
MINUTE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?", re.ASCII)
#: Maximum characters of the name of an agent or a tool.
MAX_NAME = 256


@dataclass(frozen=True)
class SearchForm:
    """The values of the search form. An empty field does not filter."""

    text: str = ""
    run: str = ""
    kind: str = ""
    agent: str = ""
    tool: str = ""
    status: str = ""
    errors: str = ""
    since: str = ""
    until: str = ""
    order: str = SearchOrder.RELEVANCE.value
    #: The position that the page of results starts after. The form has no field for it.
    after: Position = ()

    @classmethod
    def parse(cls, query: QueryDict) -> SearchForm:
        """Return the values of a query string. Raises InvalidQuery for values that the form does not send."""
        return cls(
            text=BARE.clean_text(query.get("q", "").strip())[0],
            run=_id(query, "run"),
            kind=_choice(query, "kind", SearchEntry.Kind.values),
            agent=_name(query, "agent"),
            tool=_name(query, "tool"),
            status=_choice(query, "status", [status.value for status in RunStatus]),
            errors="1" if query.get("errors") else "",
            since=_minute(query, "since"),
            until=_minute(query, "until"),
            order=_choice(query, "order", [order.value for order in SearchOrder]) or SearchOrder.RELEVANCE.value,
            after=_position(query.get("after", "")),
        )

    @property
    def filters(self) -> SearchFilters:
        return SearchFilters(
            run_id=UUID(self.run) if self.run else None,
            kinds=(self.kind,) if self.kind else (),
            agent=self.agent,
            tool=self.tool,
            statuses=(self.status,) if self.status else (),
            errors_only=bool(self.errors),
            since=_time(self.since),
            until=_time(self.until),
        )

    @property
    def is_filtered(self) -> bool:
        """Return whether a filter other than the text and the run limits the results."""
        return self.filters != SearchFilters(run_id=self.filters.run_id)

    def query_string(self, *, after: Position | None = None, **changes: str) -> str:
        """Return the query string of a link to this search with `changes`: to its first page, or to the next one.

        `after`: the position at which the page before the next one ends.
        """
        fields = {
            "q": self.text,
            "run": self.run,
            "kind": self.kind,
            "agent": self.agent,
            "tool": self.tool,
            "status": self.status,
            "errors": self.errors,
            "since": self.since,
            "until": self.until,
            "order": self.order if self.order != SearchOrder.RELEVANCE else "",
            "after": "-".join(map(str, after or ())),
            **changes,
        }
        return f"?{urlencode({name: value for name, value in fields.items() if value})}"


def _id(query: QueryDict, name: str) -> str:
    text = query.get(name, "")
    try:
        return str(UUID(text)) if text else ""
    except ValueError:
        raise InvalidQuery(f"{name} must be a run ID, not {text[:64]!r}") from None


def _choice(query: QueryDict, name: str, choices: list[str]) -> str:
    text = query.get(name, "")
    if text and text not in choices:
        raise InvalidQuery(f"{name} must be one of {', '.join(choices)}, not {text[:64]!r}")
    return text


def _name(query: QueryDict, name: str) -> str:
    text = BARE.clean_text(query.get(name, "").strip())[0]
    if len(text) > MAX_NAME:
        raise InvalidQuery(f"{name} can have at most {MAX_NAME} characters, not {len(text)}")
    return text


def _minute(query: QueryDict, name: str) -> str:
    """Return a time as the input sends it. Raises InvalidQuery."""
    text = query.get(name, "")
    try:
        if text and (not MINUTE.fullmatch(text) or _time(text) is None):
            raise ValueError
    except ValueError:
        raise InvalidQuery(f"{name} must be a time such as 2026-11-20T16:45, not {text[:64]!r}") from None
    return text


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else None


def _position(text: str) -> Position:
    """Return a position in the results; empty for the first page. Raises InvalidQuery."""
    numbers = [int(part) for part in text.split("-")] if POSITION.fullmatch(text) else []
    if (text and not numbers) or any(number >= 2**64 for number in numbers):
        raise InvalidQuery(f"after is not a position in the results: {text[:64]!r}")
    return tuple(numbers)


PAGE_SIZE = 25
KINDS = [("message", "Messages"), ("tool_call", "Tool calls"), ("event", "Events")]
ORDERS = [(SearchOrder.RELEVANCE.value, "Best match"), (SearchOrder.NEWEST.value, "Newest first")]
ROLES = {"system": "System message", "user": "User message", "assistant": "Assistant"}


@dataclass(frozen=True)
class ListedResult:
    """A result as a row."""

    result: Result

    @property
    def href(self) -> str:
        """Return the URL of the result in the timeline."""
        return f"{self.run_href}?event={self.result.seq}#target"

    @property
    def run_href(self) -> str:
        """Return the URL of the run or of the flow run."""
        return reverse("runs:flow-run" if self.result.is_flow else "runs:detail", args=[self.result.run_id])

    @property
    def whole_href(self) -> str:
        """Return the URL of the whole text. Empty for an event of a flow run: the flow run's page shows it."""
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
    """A page of results, or why there is none."""

    results: list[ListedResult]
    #: Query string of the next page; empty on the last page.
    more: str = ""
    #: Whether the search stopped before the end of the index, because it took too long.
    is_partial: bool = False
    #: Whether there are more matches than were ranked.
    is_cut: bool = False
    #: What is wrong with the text of the search.
    error: str = ""
    #: Whether the form has a text to search for.
    is_search: bool = True


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show the form and a page of results."""
    entry = enter(principal_of(request), project, Action.READ)
    form = SearchForm.parse(request.GET)
    # A run of another project gives the same error as an unknown run.
    run = run_in(entry.project, form.filters.run_id) if form.filters.run_id else None
    page = _search(entry.project, form)
    context = {
        **project_context(entry),
        "form": form,
        "run": run,
        "run_title": clean(run.title) or UNTITLED if run is not None else "",
        "page": page,
        "lag_s": search_index.lag_s(),
        "is_extending": search_index.is_extending(),
        "bounds": {"limit": index_entries.LIMIT, "tail": index_entries.TAIL, "part": index_entries.PART},
        "ranked": MAX_RANKED,
        "is_first_page": not form.after,
        "first_page": form.query_string(),
        "all_runs": form.query_string(run=""),
        "by_time": form.query_string(order=SearchOrder.NEWEST.value),
        "clear": SearchForm(text=form.text, run=form.run).query_string(),
        **_choices(entry.project, form),
    }
    # htmx displays only responses with status 200.
    status = 400 if page.error and not HtmxDetails(request) else 200
    return render(request, "runs/search/search.html", context, status=status)


def _search(project: Project, form: SearchForm) -> ResultPage:
    """Return a page of results. It is empty, and says why, if the text is invalid or has nothing to search for."""
    try:
        terms = parse(form.text)
    except InvalidQuery as error:
        return ResultPage([], error=str(error))
    if not terms:
        return ResultPage([], is_search=False)
    query = Search(project.pk, terms, form.filters, SearchOrder(form.order))
    rows = search(query, RowSpan(form.after, limit=PAGE_SIZE + 1))
    end = rows.position_of(PAGE_SIZE - 1) if len(rows) > PAGE_SIZE else rows.search_end
    results = [ListedResult(result) for result in rows.items[:PAGE_SIZE]]
    more = form.query_string(after=end) if end is not None else ""
    is_partial = len(rows) <= PAGE_SIZE and rows.search_end is not None
    return ResultPage(results, more, is_partial=is_partial, is_cut=any(rows.tail))


def _choices(project: Project, form: SearchForm) -> dict[str, Any]:
    """Return the choices of the menus."""
    agents = Agent.objects.filter(project=project).order_by("slug").values_list("slug", flat=True)[:MAX_CHOICES]
    return {
        "kinds": KINDS,
        "orders": ORDERS,
        "statuses": [status.value for status in RunStatus],
        # With the selected agent, even if it was deleted: its runs still exist.
        "agents": sorted({*agents, *filter(None, [form.agent])}),
    }
