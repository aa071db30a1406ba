"""Administration of schedules and their starts, read-only. They are changed on the pages of the site.

Times, time zone and state can be edited as periodic tasks of django-celery-beat.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, id_filter
from agentops.admin_base.pages import RecordAdmin, Table
from runs.models import Schedule, ScheduleStart


@admin.register(Schedule)
class ScheduleAdmin(RecordAdmin):
    """Schedules."""

    audited = True
    text_fields = ("name", "agent", "flow")
    loaded = (
        *("name", "agent", "flow", "overlap", "catch_up", "anchor", "state", "handled_until"),
        *("created_by", "created_at", "updated_at", "periodic_task_id", "project_id", "project__slug"),
    )
    list_display = (
        cells.words("name"),
        cells.words("agent"),
        cells.words("flow"),
        cells.words("state"),
        cells.moment("handled_until", "handled until"),
        cells.moment("created_at", "created"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
    )
    list_filter = (ProjectFilter, choice_filter("overlap", Schedule.Overlap.values))
    search_help_text = "Search by ID or prefix of it, or by part of the name, the agent or the flow."
    facts = (
        (None, (*list_display, cells.words("created_by", "created by"), cells.plain("id", "ID"))),
        (
            "Starts",
            (
                *(cells.plain(name) for name in ("overlap", "catch_up")),
                cells.moment("anchor", "intervals count from"),
                cells.link("periodic_task_id", "django_celery_beat_periodictask", "periodic task"),
                cells.payload("prompt"),
                cells.payload("inputs"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: Schedule) -> str:
        return cells.line(obj.name)

    def history(self, request: HttpRequest, obj: Schedule) -> Iterator[Table | None]:
        rows: Any = ScheduleStart.objects.filter(schedule=obj).order_by("-pk")
        yield self.table(request, ScheduleStart, rows, {"schedule": obj.pk}, without="schedule")


@admin.register(ScheduleStart)
class ScheduleStartAdmin(RecordAdmin):
    """Outcomes of due times."""

    id_fields = ("id", "schedule_id", "run_id", "flow_run_id")
    text_fields = ("reason", "detail")
    project_path = "schedule__project"
    loaded = (
        *("due_at", "first_due_at", "count", "outcome", "reason", "detail", "run_id", "flow_run_id", "decided_at"),
        *("schedule_id", "schedule__name"),
    )
    list_display = (
        cells.moment("due_at", "due"),
        cells.link("schedule_id", "runs_schedule", "schedule", text="schedule__name"),
        cells.plain("outcome"),
        cells.plain("count"),
        cells.words("detail"),
        cells.link("run_id", "runs_agentrun", "run"),
        cells.link("flow_run_id", "runs_flowrun", "flow run"),
        cells.moment("decided_at", "decided"),
    )
    list_filter = (
        ProjectFilter,
        choice_filter("outcome", ScheduleStart.Outcome.values),
        id_filter("schedule", field="schedule"),
    )
    search_help_text = "Search by the ID of a start, a schedule or a run, or a prefix of it, or by part of the detail."
    facts = (
        (
            None,
            (
                *list_display,
                cells.moment("first_due_at", "first missed"),
                cells.plain("reason"),
                cells.plain("id", "ID"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("schedule"))

    def name_of(self, obj: ScheduleStart) -> str:
        return cells.line(f"{obj.outcome} {obj.decided_at:%Y-%m-%d %H:%M}")
