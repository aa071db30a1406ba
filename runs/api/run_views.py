"""`…/agent-runs`, `…/agent-runs/{run}` and `…/agent-runs/{run}/children`: lists of runs, and a run.

`…/search`: the messages, tool calls and events of a project that contain a text.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.http import HttpResponse
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.base.redaction.redact import BARE
from agentops.base.refusals import InvalidQuery
from runs.api.answers import SearchPage, SearchRow
from runs.api.base_views import ApiView, HotListView
from runs.api.requests.bodies import Choice, IdField, StringField
from runs.api.requests.pagination import Fetch, page_of
from runs.api.requests.queries import Choices, Cursor, Limit, ListFilterQuery, QuerySerializer, Text, Time
from runs.errors import RunNotFound
from runs.models import SearchEntry
from runs.queries.run_columns import CHILDREN, RUN, RUNS, runs_of, where_of, with_id
from runs.queries.run_lists.run_filters import IN_API, Filters
from runs.queries.run_lists.run_windows import Read, read_window
from runs.queries.searching.search import search_runs
from runs.queries.searching.search_results import MAX_RANKED, Search, SearchFilters, SearchOrder, search
from runs.queries.searching.search_terms import MAX_TERMS, MAX_TEXT, parse
from runs.statuses import RunStatus
from runs.upkeep import search_index


class RunsQuery(ListFilterQuery):  # type: ignore[misc]
    q = Text(
        help_text="Search titles and messages for this text, literally; case of A to Z is ignored. "
        "A page looks through the next 500 runs at most, so it may be short or empty and still have a `next`.",
        style={"example": "rate limit"},
    )
    limit, cursor = Limit(), Cursor()


@extend_schema(responses=page_of(RUNS))
class RunList(HotListView):
    """List the runs of a project, newest first."""

    query_class: ClassVar = RunsQuery

    def get_rows(self) -> Fetch:
        project_id, text = self.get_project().pk, self.query.get("q")
        indexed, unindexed = Filters.parse(self.request.query_params, IN_API).by_index()
        where = runs_of(project_id) & where_of(indexed.condition(project_id))
        read: Read = partial(search_runs, text) if text else RUNS.page
        if not unindexed:
            return partial(read, where)
        return partial(read_window, read, where, where_of(unindexed.condition(project_id)))


@extend_schema(responses={200: RUN.schema()})
class RunDetail(ApiView):
    """Get a run."""

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run = self.get_run_key()
        text = RUN.one(with_id(runs_of(run.project_id), "r.id", run.pk))
        if text is None:  # removed in the meantime
            raise RunNotFound("no such run")
        return self.etag_response(text)


@extend_schema(responses=page_of(CHILDREN))
class Children(HotListView):
    """List the child runs of a run, newest first, each with its own usage and the total of its descendants.

    A child that was resumed is listed as several runs, which have the same `root_run_id`.
    """

    def get_rows(self) -> Fetch:
        run = self.get_run_key()
        return partial(CHILDREN.page, with_id(runs_of(run.project_id), "r.parent_run_id", run.pk))


class SearchText(StringField):
    """The text of a search, converted to the list of its terms."""

    default_error_messages = {"required": "this is required: the text to search for"}

    def __init__(self) -> None:
        text = (
            "Terms that an entry must all contain, also as parts of longer words; case is ignored. A term is a word, "
            f'or text with spaces in double quotes. At most {MAX_TERMS} terms. Example: `timeout "100 %"`.'
        )
        super().__init__(
            allow_blank=False,
            min_length=1,
            max_length=MAX_TEXT,
            help_text=text,
            style={"example": 'timeout "connection reset"'},
        )

    def to_internal_value(self, data: Any) -> Any:
        try:
            # NUL and lone surrogates were replaced when the text was stored, and are replaced here too.
            terms = parse(BARE.clean_text(super().to_internal_value(data))[0])
        except InvalidQuery as error:
            raise ValidationError(str(error)) from None
        if not terms:
            raise ValidationError("this must contain a word")
        return terms


class SearchQuery(QuerySerializer):
    q = SearchText()
    run_id = IdField(required=False, help_text="Search this run only.")
    kind = Choices(
        choices=SearchEntry.Kind.values,
        help_text="Filter by kind of entry.",
        style={"example": ["message", "tool_call"]},
    )
    agent_id = Text(help_text="Filter by agent name.", style={"example": "reviewer"})
    tool_name = Text(max_length=256, help_text="Only calls of this tool, exact match.", style={"example": "read_file"})
    status = Choices(
        choices=[status.value for status in RunStatus],
        help_text="Filter by the status of the run or flow run.",
        style={"example": ["paused", "failed"]},
    )
    only = Choice(
        choices=["errors"],
        required=False,
        help_text="`errors`: only failures: calls that failed, were denied or have an unknown outcome, and events that "
        "report a failure.",
    )
    after = Time(required=False, help_text="At this time or later.", style={"example": "2026-11-20T00:00:00Z"})
    before = Time(required=False, help_text="Before this time.", style={"example": "2026-11-21T00:00:00Z"})
    order = Choice(
        choices=[order.value for order in SearchOrder],
        default=SearchOrder.RELEVANCE.value,
        help_text=f"`relevance`: the newest {MAX_RANKED} matches, best match first; `newest`: all matches, newest "
        "first. A page of `newest` may be short or empty and still have a `next`, if the search took long.",
    )
    limit, cursor = Limit(), Cursor()


@extend_schema(responses=SearchPage)
class SearchView(ApiView):
    """Search the messages, tool calls and events of the runs and flow runs of a project.

    Texts are found some seconds after they were stored (`lag_s`). Secrets are masked before a text is indexed.
    """

    query_class: ClassVar = SearchQuery

    def get(self, request: Request, **_: Any) -> Response:
        query = self.query
        filters = SearchFilters(
            run_id=query.get("run_id"),
            kinds=query.get("kind", ()),
            agent=query.get("agent_id", ""),
            tool=query.get("tool_name", ""),
            statuses=query.get("status", ()),
            errors_only="only" in query,
            since=query.get("after"),
            until=query.get("before"),
        )
        criteria = Search(self.get_project().pk, query["q"], filters, SearchOrder(query["order"]))
        results = self.paginate_queryset(partial(search, criteria))
        response: Response = self.get_paginated_response(SearchRow(results, many=True).data)
        response.data = {"lag_s": search_index.lag_s(), **response.data}
        return response
