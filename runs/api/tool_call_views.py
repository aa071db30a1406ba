"""`…/agent-runs/{run}/tool-calls` and `…/tool-calls/{call}`: what the model asked for, and what came of it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse

from runs.actions.reveal import reveal
from runs.api.base_views import JSON, ApiView
from runs.api.requests.pagination import PAGING, Pages
from runs.api.requests.parameters import SECRETS, Choices, TextParameter
from runs.api.schema.shared import page_of
from runs.errors import ToolCallNotFound
from runs.models import AgentRunToolCall
from runs.queries.record_columns import TOOL_CALL, TOOL_CALLS, of_run
from runs.queries.run_columns import with_id
from runs.statuses import ToolStatus

FILTERS = (
    TextParameter(
        name="tool_name",
        description="Filter by tool name, exact match.",
        max_length=256,
        example="read_file",
    ),
    Choices(
        name="status",
        choices=[status.value for status in ToolStatus],
        description="Filter by status. Repeat the parameter or separate values with commas.",
        example=["error", "unknown"],
    ),
)


class ToolCalls(ApiView):
    """List the tool calls of a run by step, without input and output."""

    parameters: ClassVar = {"get": (*FILTERS, *PAGING)}
    answers: ClassVar = {"get": page_of(TOOL_CALLS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run = self.look_up_run()
        where = of_run(run, "t")
        if self.query["tool_name"]:
            where = where.also("t.tool_name = %s", self.query["tool_name"])
        if self.query["status"]:
            statuses = self.query["status"]
            where = where.also(f"t.status IN ({', '.join(['%s'] * len(statuses))})", *statuses)
        pages = Pages.of(request, self.query, "tool-calls", run.pk)
        return pages.answer(lambda span: TOOL_CALLS.page(where, span))


class ToolCallDetail(ApiView):
    """Get a tool call with its input and output."""

    parameters: ClassVar = {"get": (SECRETS,)}
    answers: ClassVar = {"get": TOOL_CALL.schema()}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        run, secrets = self.look_up_run(), bool(self.query["secrets"])
        text = TOOL_CALL.one(with_id(of_run(run, "t"), "t.id", self.kwargs["call_id"]), secrets=secrets)
        if text is None:
            raise ToolCallNotFound("no such tool call in this run")
        if secrets:
            reveal(self.principal, run.project_id, AgentRunToolCall(pk=self.kwargs["call_id"]))
            return HttpResponse(text, content_type=JSON, headers={"Cache-Control": "no-store"})
        return self.tagged(text)
