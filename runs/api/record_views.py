"""Records below `…/agent-runs/{run}`: `/messages`, `/tool-calls`, `/checkpoints`, `/errors` and `/usage`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import NotFound
from runs.access import reveal
from runs.api.answers import CheckpointRow, ErrorRow, ModelTotals, UsagePage, UsageRow, UsageTotals, usage_totals
from runs.api.base_views import ApiView, ListView, RecordListView
from runs.api.problems import JSON
from runs.api.requests.pagination import page_of
from runs.api.requests.queries import (
    Choices,
    Cursor,
    Limit,
    ListStart,
    QuerySerializer,
    RecordPageQuery,
    SecretsQuery,
    Text,
)
from runs.conversation.long_outputs import text_of
from runs.errors import RunNotFound
from runs.models import AgentRunMessage, AgentRunToolCall, Checkpoint, RunError, TurnUsage
from runs.queries.json_lists import Where
from runs.queries.long_texts import long_output, masked
from runs.queries.record_columns import MESSAGE, MESSAGES, TOOL_CALL, TOOL_CALLS, of_run
from runs.queries.run_columns import with_id
from runs.queries.usage import usage_by_model
from runs.statuses import ToolStatus


@extend_schema(responses=page_of(MESSAGES))
class Messages(RecordListView):
    """List the messages of a run by step, without their content."""

    query_class: ClassVar = RecordPageQuery
    listing, run_column = MESSAGES, "m.run_id"


@extend_schema(responses={200: MESSAGE.schema()})
class MessageDetail(ApiView):
    """Get a message with its content."""

    query_class: ClassVar = SecretsQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run, secrets = self.get_run_key(), "secrets" in self.query
        text = MESSAGE.one(with_id(of_run(run, "m"), "m.id", self.kwargs["message_id"]), secrets=secrets)
        if text is None:
            raise NotFound("no such message in this run", code="message_not_found")
        if secrets:
            reveal(self.principal, run.project_id, AgentRunMessage(pk=self.kwargs["message_id"]))
            return HttpResponse(text, content_type=JSON, headers={"Cache-Control": "no-store"})
        return self.etag_response(text)


TEXT = "text/plain; charset=utf-8"


class ToolCallsQuery(QuerySerializer):
    tool_name = Text(max_length=256, help_text="Filter by tool name, exact match.", style={"example": "read_file"})
    status = Choices(
        choices=[status.value for status in ToolStatus],
        help_text="Filter by status.",
        style={"example": ["error", "unknown"]},
    )
    limit, cursor, at = Limit(), Cursor(), ListStart()


@extend_schema(responses=page_of(TOOL_CALLS))
class ToolCalls(RecordListView):
    """List the tool calls of a run by step, without input and output."""

    query_class: ClassVar = ToolCallsQuery
    listing, run_column = TOOL_CALLS, "t.run_id"

    def get_where(self) -> Where:
        where = super().get_where()
        if "tool_name" in self.query:
            where = where.also("t.tool_name = %s", self.query["tool_name"])
        if statuses := self.query.get("status"):
            where = where.also(f"t.status IN ({', '.join(['%s'] * len(statuses))})", *statuses)
        return where


@extend_schema(responses={200: TOOL_CALL.schema()})
class ToolCallDetail(ApiView):
    """Get a tool call with its input and output."""

    query_class: ClassVar = SecretsQuery

    def get(self, request: Request, **_: Any) -> HttpResponse:
        run, secrets = self.get_run_key(), "secrets" in self.query
        text = TOOL_CALL.one(with_id(of_run(run, "t"), "t.id", self.kwargs["call_id"]), secrets=secrets)
        if text is None:
            raise NotFound("no such tool call in this run", code="tool_call_not_found")
        if secrets:
            reveal(self.principal, run.project_id, AgentRunToolCall(pk=self.kwargs["call_id"]))
            return HttpResponse(text, content_type=JSON, headers={"Cache-Control": "no-store"})
        return self.etag_response(text)


class ToolCallOutput(ApiView):
    """Download the output of a tool call as text, with its secrets masked.

    A long output is sent in pieces; if the connection ends before the last piece, the output is incomplete. An output
    other than text is sent as JSON. The answer is empty until the call ends.
    """

    accepts_any_type = True

    @extend_schema(responses={(200, TEXT): str})
    def get(self, request: Request, **_: Any) -> HttpResponseBase:
        run, call_id = self.get_run_key(), self.kwargs["call_id"]
        pieces = long_output(run.pk, call_id)
        if pieces is not None:
            response: HttpResponseBase = StreamingHttpResponse(map(str.encode, masked(pieces)))
        else:
            call = AgentRunToolCall.objects.filter(run=run.pk, pk=call_id).only("output").first()
            if call is None:
                raise NotFound("no such tool call in this run", code="tool_call_not_found")
            response = HttpResponse("" if call.output is None else text_of(REDACTOR.clean(call.output)[0]))
        response.headers["Content-Type"] = TEXT
        response.headers["Content-Disposition"] = 'attachment; filename="output.txt"'
        return response


class Checkpoints(ListView):
    """List the checkpoints of a run: one after each finished step, from which it can be forked."""

    serializer_class = CheckpointRow

    def get_queryset(self) -> QuerySet[Checkpoint]:
        return Checkpoint.objects.filter(run=self.get_run_key().pk).order_by("step_number")


class Errors(ListView):
    """List the failed attempts of model calls, tools and steps, including those after which a retry succeeded."""

    serializer_class = ErrorRow
    query_class: ClassVar = RecordPageQuery

    def get_queryset(self) -> QuerySet[RunError]:
        return RunError.objects.filter(run=self.get_run_key().pk).order_by("step_number", "pk")


@extend_schema(responses=UsagePage)
class UsageView(ListView):
    """Get tokens and cost: of the run in `totals`, of each model in `models`, of each model call in `results`."""

    serializer_class = UsageRow

    def get_queryset(self) -> QuerySet[TurnUsage]:
        return TurnUsage.objects.filter(run=self.get_run_key().pk).order_by("step_number", "pk")

    def get_paginated_response(self, data: Any) -> Response:
        """Return a page of the usage of model calls, after the totals."""
        totals = usage_totals(self.kwargs["run_id"])
        if totals is None:  # removed in the meantime
            raise RunNotFound("no such run")
        response = super().get_paginated_response(data)
        models = ModelTotals(usage_by_model(totals.pk), many=True).data
        response.data = {"totals": UsageTotals(totals).data, "models": models, **response.data}
        return response
