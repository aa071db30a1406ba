"""Administration of logs, events, tombstones and chores, read-only.

It is in this package because the timeline package does not depend on runs.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, yes_filter
from agentops.admin_base.pages import RecordAdmin
from agentops.admin_base.scope import everything_or_nothing
from runs.admin.of_run import OF_RUN, RowsOfRunsAdmin, run_cell, site_link
from runs.models import Chore
from timeline.events import EventType
from timeline.models import Event, Log, Phase, Source, Tombstone

EVENT_PAGE = site_link("event", "log_id", "seq")


@admin.register(Log)
class LogAdmin(RowsOfRunsAdmin):
    """Logs. A log has the ID of its run."""

    key = ("id",)
    run_field = "id"
    project_path = "project"
    newest_runs = 1_000
    list_display = (
        cells.plain("id", "log"),
        run_cell("id"),
        cells.plain("last_seq", "events"),
        cells.plain("epoch"),
        cells.moment("last_event_at", "newest event"),
        cells.moment("created_at", "created"),
    )
    list_filter = (ProjectFilter,)
    facts = ((None, (*list_display, cells.link("project_id", "projects_project", "project"))),)

    def tools(self, request: HttpRequest, obj: Log) -> list[tuple[str, str]]:
        return [("Events", f"{reverse('admin:timeline_event_changelist')}?run={obj.pk}")]


@admin.register(Event)
class EventAdmin(RowsOfRunsAdmin):
    """Events."""

    key = ("log_id", "seq")
    run_field = "log_id"
    project_path = "log__project"
    id_fields = ("log_id",)
    text_fields = ("type",)
    loaded = (
        *("log_id", "seq", "type", "phase", "step", "source", "epoch", "late", "sanitized", "ts"),
        *("event_id", "created_at"),
    )
    search_help_text = "Search by run ID or prefix of it, or by part of the event type."
    list_display = (
        cells.computed("event", "event", lambda row: f"#{row.seq}"),
        run_cell("log_id"),
        cells.words("type", limit=60),
        cells.plain("step"),
        cells.plain("phase"),
        cells.plain("source"),
        cells.plain("epoch"),
        cells.yes("late"),
        cells.words("sanitized", "redacted"),
        cells.moment("ts", "time"),
    )
    list_filter = (
        *OF_RUN,
        choice_filter("type", EventType),
        choice_filter("source", Source.values),
        choice_filter("phase", Phase.values),
        yes_filter("named", "event_id", title="ID from the sender"),
    )
    facts = (
        (
            "Facts",
            (
                *list_display[1:],
                cells.plain("seq"),
                cells.words("event_id", "event ID", limit=128),
                cells.words("node_id", "node", limit=128),
                cells.plain("run_kind"),
                cells.plain("ref_id", "refers to"),
                cells.moment("created_at", "stored"),
            ),
        ),
        ("Payload", (cells.payload("payload", whole=EVENT_PAGE),)),
    )

    def name_of(self, obj: Event) -> str:
        return cells.line(f"Event {obj.seq} of run {obj.log_id}: {obj.type}")

    def view_on_site(self, obj: Event) -> str:
        return EVENT_PAGE(obj)


@admin.register(Tombstone)
class TombstoneAdmin(RecordAdmin):
    """Summaries of runs that were deleted by retention."""

    loaded = ("family", "reason", "removed_by", "removed_at", "finished_at", "project_id", "project__slug")
    id_fields = ("id", "family")
    text_fields = ("reason", "removed_by")
    search_help_text = "Search by run ID or prefix of it, or by part of the reason or of who deleted it."
    list_display = (
        cells.plain("id", "run"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.words("reason"),
        cells.words("removed_by", "deleted by"),
        cells.moment("removed_at", "deleted"),
        cells.moment("finished_at", "deletion finished"),
    )
    list_filter = (ProjectFilter, yes_filter("finished", "finished_at"))
    facts = (
        (
            None,
            (
                *list_display,
                cells.plain("family", "run group"),
                *(cells.moment("created_at", "created"), cells.moment("completed_at", "ended")),
                *(cells.payload("facts"), cells.payload("rows", "deleted rows")),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))


@admin.register(Chore)
class ChoreAdmin(RecordAdmin):
    """Background chores. For superusers only."""

    key = ("name",)
    id_fields = ()
    text_fields = ("name",)
    search_help_text = "Search by part of the name."
    list_display = (cells.words("name", "chore"), cells.moment("taken_at", "last started"))
    facts = ((None, list_display),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return everything_or_nothing(request, admin.ModelAdmin.get_queryset(self, request))
