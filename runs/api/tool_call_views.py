"""`…/agent-runs/{run}/tool-calls` and `…/tool-calls/{call}`: the tool calls of a run."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import NotFound
from runs.actions.reveal import reveal
from runs.api.base_views import ApiView, RecordListView
from runs.api.problems import JSON
from runs.api.requests.pagination import page_of
from runs.api.requests.queries import Choices, Cursor, Limit, ListStart, QuerySerializer, SecretsQuery, Text
from runs.conversation.long_outputs import text_of
from runs.models import AgentRunToolCall
from runs.queries.json_lists import Where
from runs.queries.long_texts import long_output, masked
from runs.queries.record_columns import TOOL_CALL, TOOL_CALLS, of_run
from runs.queries.run_columns import with_id
from runs.statuses import ToolStatus

TEXT = "text/plain; charset=utf-8"


class ToolCallsQuery(QuerySerializer):
    tool_name = Text(max_length=256, help_text="Filter by tool name, exact match.", style={"example": "read_file"})
    status = Choices(
        choices=[status.value for status in ToolStatus],
        required=False,
        help_text="Filter by status. Repeat the parameter or separate values with commas.",
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

    A long output is sent in pieces; if the connection ends before the last piece, it is incomplete. An output other
    than text is sent as JSON. Empty until the call ends.
    """

    accepts_any_type = True

    @extend_schema(responses={(200, TEXT): str})
    def get(self, request: Request, **_: Any) -> HttpResponseBase:
        run, call_id = self.get_run_key(), self.kwargs["call_id"]
        pieces = long_output(run.pk, call_id)
        if pieces is not None:
            response: HttpResponseBase = StreamingHttpResponse(map(str.encode, masked(pieces)))
        else:
            calls = AgentRunToolCall.objects.filter(run=run.pk, pk=call_id)
            call = calls.only("output").first()
            if call is None:
                raise NotFound("no such tool call in this run", code="tool_call_not_found")
            response = HttpResponse("" if call.output is None else text_of(REDACTOR.clean(call.output)[0]))
        response.headers["Content-Type"] = TEXT
        response.headers["Content-Disposition"] = 'attachment; filename="output.txt"'
        return response
