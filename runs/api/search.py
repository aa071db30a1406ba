"""`…/search`: messages, tool calls and events of all runs of a project, by their texts."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.base.redaction.redact import BARE
from agentops.base.refusals import InvalidQuery
from runs.api.answers import SearchPage, SearchRow
from runs.api.base_views import ApiView
from runs.api.requests.bodies import Choice, IdField, StringField
from runs.api.requests.queries import Choices, Cursor, Limit, QuerySerializer, Text, Time
from runs.models import SearchEntry
from runs.queries.searching.search_results import RANKED, Search, SearchFilters, SearchOrder, search
from runs.queries.searching.search_terms import MAX_TERMS, MAX_TEXT, parse
from runs.statuses import RunStatus
from runs.upkeep import search_index


class SearchText(StringField):
    """The text of a search. Its value is the list of terms."""

    default_error_messages = {"required": "this is required: the text to search for"}

    def __init__(self) -> None:
        text = (
            "Words that an entry contains, all of them, each literally and also as a part of a longer word; case is "
            f'ignored. Spaces belong to a term in double quotes. At most {MAX_TERMS} terms. Example: `timeout "100 %"`.'
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
        required=False,
        help_text="Filter by what is found. Repeat the parameter or separate values with commas.",
        style={"example": ["message", "tool_call"]},
    )
    agent_id = Text(help_text="Filter by agent name.", style={"example": "reviewer"})
    tool_name = Text(max_length=256, help_text="Only calls of this tool, exact match.", style={"example": "read_file"})
    status = Choices(
        choices=[status.value for status in RunStatus],
        required=False,
        help_text="Filter by the status of the run or flow run. Repeat the parameter or separate values with commas.",
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
        help_text=f"`relevance`: best match first, of the newest {RANKED} matches; `newest`: all matches. A page "
        "of `newest` may be short or empty and still have a `next`, if the search took long.",
    )
    limit, cursor = Limit(), Cursor()


@extend_schema(responses=SearchPage)
class SearchView(ApiView):
    """Search the messages, tool calls and events of the runs and flow runs of a project.

    Finds texts stored up to several seconds ago (`lag_s`). Secrets are masked before a text is indexed.
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
        asked = Search(self.get_project().pk, query["q"], filters, SearchOrder(query["order"]))
        results = self.paginate_queryset(partial(search, asked))
        response: Response = self.get_paginated_response(SearchRow(results, many=True).data)
        response.data = {"lag_s": search_index.lag_s(), **response.data}
        return response
