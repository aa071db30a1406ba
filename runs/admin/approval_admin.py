"""Administration of approvals, read-only. They are decided on the pages of the site, not here."""

from __future__ import annotations

from django.contrib import admin

from agentops.admin_base import cells
from agentops.admin_base.filters import choice_filter
from runs.admin.of_run import OF_RUN, RowsOfRunsAdmin, run_cell
from runs.models import Approval


@admin.register(Approval)
class ApprovalAdmin(RowsOfRunsAdmin):
    """Approvals of tool calls."""

    key = ("run_id", "id")
    id_fields = ("run_id", "id")
    text_fields = ("tool_name", "decided_by")
    search_help_text = "Search by run ID or approval ID or a prefix of it, or by part of the tool or the decider."
    list_display = (
        cells.words("tool_name", "tool", limit=60),
        run_cell(),
        cells.plain("state"),
        cells.words("requested_by", "requested by", limit=60),
        cells.words("decided_by", "decided by", limit=60),
        cells.moment("created_at", "requested"),
        cells.moment("expires_at", "expires"),
        cells.moment("decided_at", "decided"),
    )
    list_filter = (*OF_RUN, choice_filter("state", Approval.State))
    facts = (
        (None, (*list_display, cells.link("call_id", "runs_agentruntoolcall", "call"), cells.plain("id", "ID"))),
        ("Request", (cells.words("reason"), cells.payload("arguments"))),
        ("Decision", (cells.payload("changes"), cells.words("message"), cells.plain("always"))),
    )

    def name_of(self, obj: Approval) -> str:
        return cells.line(f"Approval of {obj.tool_name}")
