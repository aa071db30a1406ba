"""Administration of flows, flow runs and their visits, read-only. They are changed by the API and by commands."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, id_filter
from agentops.admin_base.pages import RecordAdmin
from runs.models import Flow, FlowRun, FlowVisit
from runs.models.flows import STATUSES
from timeline import tombstones

_PROJECT = cells.link("project_id", "projects_project", "project", text="project__slug")


@admin.register(Flow)
class FlowAdmin(RecordAdmin):
    """Flows."""

    text_fields = ("slug", "title")
    loaded = ("slug", "title", "version", "updated_at", "project_id", "project__slug")
    search_help_text = "Search by ID or prefix of it, or by part of the name or the title."
    list_display = (
        cells.words("slug", "flow"),
        _PROJECT,
        cells.words("title", limit=60),
        cells.plain("version"),
        cells.moment("updated_at", "changed"),
    )
    list_filter = (ProjectFilter,)
    facts: ClassVar[Any] = (
        (None, (*list_display, cells.moment("created_at", "created"), cells.plain("id", "ID"))),
        ("Definition", (cells.payload("definition"),)),
    )
    audited = True

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))


@admin.register(FlowRun)
class FlowRunAdmin(RecordAdmin):
    """Flow runs."""

    key = ("log_id",)
    id_fields = ("log_id",)
    text_fields = ("flow__slug",)
    loaded = (
        *("status", "status_reason", "flow_version", "created_by", "created_at", "completed_at"),
        *("flow_id", "flow__slug", "project_id", "project__slug"),
    )
    search_help_text = "Search by ID or prefix of it, or by part of the flow's name."
    list_display = (
        cells.plain("log_id", "flow run"),
        _PROJECT,
        cells.link("flow_id", "runs_flow", "flow", text="flow__slug"),
        cells.plain("status"),
        cells.reason("status_reason", "reason"),
        cells.moment("created_at", "created"),
        cells.moment("completed_at", "ended"),
    )
    list_filter = (ProjectFilter, choice_filter("status", STATUSES))
    facts: ClassVar[Any] = (
        (None, (*list_display, cells.plain("flow_version", "version"), cells.words("created_by", "created by"))),
        (
            "End",
            (
                cells.words("error_type", "error"),
                cells.words("error_message", "message"),
                cells.link("failed_run_id", "runs_agentrun", "run that failed", short=True),
                cells.moment("dismissed_at", "dismissed"),
            ),
        ),
        ("State", (cells.payload("inputs"), cells.payload("snapshot"), cells.payload("definition"))),
    )
    audited = True

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project", "flow"))

    def name_of(self, obj: FlowRun) -> str:
        return f"Flow run {obj.pk}"


@admin.register(FlowVisit)
class FlowVisitAdmin(RecordAdmin):
    """Visits: executions of the nodes of flow runs."""

    names = ("flow visit", "flow visits")
    project_path = "flow_run__project"
    id_fields = ("id", "flow_run_id")
    loaded = ("key", "kind", "started_at", "ended_at", "flow_run_id", "session_id")
    search_help_text = "Search by visit ID or flow run ID, or by a prefix of it."
    list_display = (
        cells.words("key", "visit"),
        cells.link("flow_run_id", "runs_flowrun", "flow run", short=True),
        cells.plain("kind"),
        cells.link("session_id", "runs_agentrun", "run", short=True),
        cells.moment("started_at", "started"),
        cells.moment("ended_at", "ended"),
    )
    list_filter = (ProjectFilter, id_filter("flow_run", "flow run", field="flow_run_id"))
    facts: ClassVar[Any] = (
        (None, (*list_display, cells.plain("id", "ID"))),
        ("Values", (cells.payload("value"), cells.payload("output"), cells.payload("state"))),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, leaving out flow runs that are being deleted."""
        removing = tombstones.unfinished_tombstones().values("pk")
        return super().get_queryset(request).exclude(flow_run_id__in=removing)

    def name_of(self, obj: FlowVisit) -> str:
        return cells.line(f"Visit {obj.key} of flow run {obj.flow_run_id}")
