"""Administration of messages and tool calls, read-only. Lists do not load payloads."""

from __future__ import annotations

from django.contrib import admin

from agentops.admin_base import cells
from agentops.admin_base.filters import choice_filter, yes_filter
from runs.admin.of_run import OF_RUN, RowsOfRunsAdmin, run_cell, site_link
from runs.models import AgentRunMessage, AgentRunToolCall
from runs.statuses import Effect, ToolStatus

MESSAGE_PAGE = site_link("message", "run_id", "pk")
CALL_PAGE = site_link("call", "run_id", "pk")


@admin.register(AgentRunMessage)
class MessageAdmin(RowsOfRunsAdmin):
    """Messages."""

    names = ("message", "messages")
    key = ("run_id", "position")
    id_fields = ("run_id", "id")
    loaded = ("run_id", "position", "role", "step_number", "epoch", "model", "rolled_back_at", "created_at")
    search_help_text = "Search by run ID or message ID, or a prefix of it."
    list_display = (
        cells.computed("message", "message", lambda row: f"{row.position} {row.get_role_display()}"),
        run_cell(),
        cells.plain("role"),
        cells.plain("step_number", "step"),
        cells.words("model"),
        cells.moment("rolled_back_at", "rolled back"),
        cells.moment("created_at", "created"),
    )
    list_filter = (
        *OF_RUN,
        choice_filter("role", AgentRunMessage.Role.values),
        yes_filter("rolled_back", "rolled_back_at"),
    )
    facts = (
        ("Facts", (*list_display[1:], cells.plain("position"), cells.plain("epoch"), cells.plain("id", "ID"))),
        ("Content", (cells.payload("content", whole=MESSAGE_PAGE),)),
    )

    def name_of(self, obj: AgentRunMessage) -> str:
        return cells.line(f"Message {obj.position} of run {obj.run_id}")

    def view_on_site(self, obj: AgentRunMessage) -> str:
        return MESSAGE_PAGE(obj)


@admin.register(AgentRunToolCall)
class ToolCallAdmin(RowsOfRunsAdmin):
    """Tool calls."""

    names = ("tool call", "tool calls")
    key = ("run_id", "step_number", "id")
    id_fields = ("run_id", "id")
    loaded = (
        *("run_id", "tool_name", "call_id", "status", "effect", "starts", "attempts", "duration_ms", "step_number"),
        *("created_at", "started_at", "finished_at", "child_run_id", "resolved_by"),
    )
    text_fields = ("tool_name", "call_id")
    search_help_text = (
        "Search by run ID or call ID or a prefix of it, or by part of the tool name or the model's call ID."
    )
    list_display = (
        cells.words("tool_name", "tool", limit=60),
        run_cell(),
        cells.status(),
        cells.plain("effect"),
        cells.plain("step_number", "step"),
        cells.plain("starts"),
        cells.plain("attempts"),
        cells.plain("duration_ms", "duration (ms)"),
        cells.words("resolved_by", "resolved by", limit=40),
        cells.words("call_id", "call ID", limit=40),
        cells.moment("started_at", "started"),
    )
    list_filter = (
        *OF_RUN,
        choice_filter("status", ToolStatus),
        choice_filter("effect", Effect),
        yes_filter("child", "child_run"),
    )
    facts = (
        ("Facts", (*list_display[:9], cells.words("call_id", "call ID", limit=256), cells.words("idempotency_key"))),
        (
            "Times and links",
            (
                *(cells.moment("created_at", "planned"), cells.moment("started_at", "started")),
                *(cells.moment("finished_at", "finished"), cells.moment("resolved_at", "resolved")),
                cells.link("message_id", "runs_agentrunmessage", "requested by"),
                cells.link("result_message_id", "runs_agentrunmessage", "result"),
                cells.link("child_run_id", "runs_agentrun", "child run"),
                cells.plain("id", "ID"),
            ),
        ),
        ("Arguments and output", (cells.payload("input", whole=CALL_PAGE), cells.payload("output", whole=CALL_PAGE))),
    )

    def name_of(self, obj: AgentRunToolCall) -> str:
        return cells.line(f"{obj.tool_name} ({obj.call_id})")

    def view_on_site(self, obj: AgentRunToolCall) -> str:
        return CALL_PAGE(obj)
