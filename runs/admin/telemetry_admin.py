"""Administration of sinks and deliveries, read-only. They are changed by the API and `agentops sink`."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, yes_filter
from agentops.admin_base.pages import RecordAdmin
from runs.models import Delivery, Sink, SinkCursor


@admin.register(Sink)
class SinkAdmin(RecordAdmin):
    """Sinks. Their secrets are never displayed."""

    names = ("sink", "sinks")
    audited = True
    text_fields = ("name", "kind", "disabled_reason")
    loaded = (
        *("name", "kind", "origin", "config", "event_types", "is_enabled", "disabled_reason", "created_by"),
        *("created_at", "updated_at", "key_id", "project_id", "project__slug"),
    )
    search_help_text = "Search by ID or prefix of it, or by part of the name, the kind or the reason."
    list_display = (
        cells.words("name"),
        cells.plain("kind"),
        cells.plain("is_enabled", "enabled"),
        cells.words("disabled_reason", "reason"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.words("created_by", "added by"),
        cells.moment("created_at", "added"),
    )
    list_filter = (ProjectFilter,)
    facts = (
        (
            None,
            (
                *list_display,
                cells.plain("origin"),
                cells.payload("config", "options"),
                cells.payload("event_types", "event types"),
                cells.moment("updated_at", "changed"),
                cells.plain("key_id", "encryption key"),
                cells.plain("id", "ID"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: Sink) -> str:
        return cells.line(obj.name)


@admin.register(SinkCursor)
class SinkCursorAdmin(RecordAdmin):
    """The progress of each sink."""

    names = ("sink position", "sink positions")
    key = ("sink_id",)
    id_fields = ("sink_id",)
    project_path = "sink__project"
    text_fields = ("last_error",)
    search_help_text = "Search by sink ID or prefix of it, or by part of the error."
    list_display = (
        cells.link("sink_id", "runs_sink", "sink", short=True),
        cells.plain("event_id", "up to event"),
        cells.plain("failures", "failed attempts"),
        cells.words("last_error", "last error"),
        cells.moment("last_success_at", "last success"),
        cells.moment("due_at", "next attempt"),
        cells.plain("sent_events", "sent"),
        cells.plain("dead_events", "refused"),
    )
    list_filter = (ProjectFilter, yes_filter("waiting", "due_at"))
    facts = (
        (
            None,
            (
                *list_display,
                cells.moment("last_error_at", "failed"),
                cells.moment("leased_until", "claimed until"),
                cells.plain("claims"),
            ),
        ),
    )

    def name_of(self, obj: SinkCursor) -> str:
        return f"Position of sink {obj.sink_id}"


@admin.register(Delivery)
class DeliveryAdmin(RecordAdmin):
    """Deliveries to sinks."""

    names = ("delivery", "deliveries")
    text_fields = ("message_id", "event_type", "error")
    loaded = (
        *("message_id", "event_type", "event_count", "state", "attempts", "status_code", "error", "response"),
        *("created_at", "attempted_at", "due_at", "duration_ms", "run_id", "sink_id", "project_id", "project__slug"),
    )
    search_help_text = "Search by ID or prefix of it, or by part of the message ID, the event type or the error."
    list_display = (
        cells.words("event_type", "event"),
        cells.plain("event_count", "events"),
        cells.plain("state"),
        cells.plain("attempts"),
        cells.plain("status_code", "status"),
        cells.words("error"),
        cells.link("sink_id", "runs_sink", "sink", short=True),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
        cells.moment("created_at", "planned"),
    )
    list_filter = (ProjectFilter, choice_filter("state", Delivery.State.values))
    facts = (
        (
            None,
            (
                *list_display,
                cells.words("message_id", "message ID"),
                cells.plain("run_id", "run"),
                cells.payload("response"),
                cells.moment("attempted_at", "last attempt"),
                cells.moment("due_at", "next attempt"),
                cells.plain("duration_ms", "milliseconds"),
                cells.plain("id", "ID"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: Delivery) -> str:
        return cells.line(f"{obj.event_type or 'batch'} {obj.message_id}")
