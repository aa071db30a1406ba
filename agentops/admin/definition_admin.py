"""Administration of agents, flows, schedules, sinks, alerts, notes, saved views and share links.

They are changed on the pages of the site. The times, time zone and state of a schedule can also be edited as a periodic
task of django-celery-beat.
"""

from __future__ import annotations

from django.contrib import admin

from agentops.admin.read_only import PROJECT, ReadOnlyAdmin
from runs import models


@admin.register(models.Agent)
class AgentAdmin(ReadOnlyAdmin):
    list_display = ("slug", "project", "provider", "model", "max_steps", "version", "updated_at")
    search_fields = ("slug", "model")
    site_page = ("runs:agent", "project.slug", "slug")


@admin.register(models.AgentVersion)
class AgentVersionAdmin(ReadOnlyAdmin):
    list_display = ("number", "agent", "changed", "created_by", "created_at")
    list_filter = ()
    list_select_related = ("agent",)
    search_fields = ("agent__slug", "created_by")
    project_path = "agent__project"
    site_page = ("runs:agent-version", "agent.project.slug", "agent.slug", "number")


@admin.register(models.Flow)
class FlowAdmin(ReadOnlyAdmin):
    list_display = ("slug", "project", "title", "version", "updated_at")
    search_fields = ("slug", "title")
    site_page = ("runs:flow", "project.slug", "slug")


@admin.register(models.FlowRun)
class FlowRunAdmin(ReadOnlyAdmin):
    list_display = ("pk", "flow", "project", "status", "status_reason", "created_at", "completed_at")
    list_filter = (PROJECT, "status")
    list_select_related = ("flow", "project")
    search_fields = ("flow__slug",)
    site_page = ("runs:flow-run", "pk")


@admin.register(models.FlowVisit)
class FlowVisitAdmin(ReadOnlyAdmin):
    list_display = ("key", "flow_run", "kind", "session", "started_at", "ended_at")
    list_filter = ()
    list_select_related = ()
    project_path = "flow_run__project"
    site_page = ("runs:flow-run", "flow_run_id")


@admin.register(models.Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = ("name", "project", "agent", "flow", "overlap", "handled_until", "created_at")
    search_fields = ("name", "agent", "flow")
    site_page = ("runs:schedule", "project.slug", "pk")


@admin.register(models.ScheduleStart)
class ScheduleStartAdmin(ReadOnlyAdmin):
    list_display = ("outcome", "schedule", "due_at", "count", "detail", "run_id", "flow_run_id", "decided_at")
    list_filter = ("outcome",)
    list_select_related = ("schedule",)
    search_fields = ("reason", "detail")
    project_path = "schedule__project"


@admin.register(models.Sink)
class SinkAdmin(ReadOnlyAdmin):
    """Sinks and webhooks. Their secrets are encrypted, and not shown."""

    list_display = ("name", "kind", "project", "is_enabled", "disabled_reason", "created_by", "created_at")
    list_filter = (PROJECT, "is_enabled")
    search_fields = ("name", "kind", "disabled_reason")
    hidden = ("secret_hints",)
    site_page = ("runs:sink", "project.slug", "pk")


@admin.register(models.SinkCursor)
class SinkCursorAdmin(ReadOnlyAdmin):
    list_display = ("event_id", "sink", "failures", "last_error", "last_success_at", "due_at", "sent_events")
    list_filter = ()
    list_select_related = ("sink",)
    search_fields = ("last_error",)
    project_path = "sink__project"


@admin.register(models.Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ("message_id", "event_type", "state", "attempts", "status_code", "error", "sink", "created_at")
    list_filter = (PROJECT, "state")
    list_select_related = ("sink", "project")
    search_fields = ("message_id", "event_type", "error")
    site_page = ("runs:sink", "project.slug", "sink_id")


@admin.register(models.AlertRule)
class AlertRuleAdmin(ReadOnlyAdmin):
    """Alert rules. The addresses of their webhooks are encrypted, and not shown."""

    list_display = ("name", "kind", "project", "is_enabled", "agent", "checked_at", "created_at")
    list_filter = (PROJECT, "kind")
    search_fields = ("name", "agent", "label")
    site_page = ("runs:alert-rules", "project.slug")


@admin.register(models.Alert)
class AlertAdmin(ReadOnlyAdmin):
    list_display = ("opened_at", "rule", "project", "agent", "count", "announced_at", "closed_at")
    list_select_related = ("rule", "project")
    search_fields = ("agent",)
    site_page = ("runs:alerts", "project.slug")


@admin.register(models.AlertFinding)
class AlertFindingAdmin(ReadOnlyAdmin):
    list_display = ("found_at", "alert", "run", "flow_run", "detail", "ended_at", "is_silent")
    search_fields = ("detail",)
    site_page = ("runs:alerts", "project.slug")


@admin.register(models.AlertMute)
class AlertMuteAdmin(ReadOnlyAdmin):
    list_display = ("until", "rule", "run", "agent", "project", "created_by", "created_at")
    list_select_related = ("rule", "project")
    search_fields = ("agent", "created_by")
    site_page = ("runs:alerts", "project.slug")


@admin.register(models.AlertDelivery)
class AlertDeliveryAdmin(ReadOnlyAdmin):
    list_display = ("channel", "message", "state", "attempts", "status_code", "error", "project", "sent_at")
    list_filter = (PROJECT, "state")
    search_fields = ("error",)
    site_page = ("runs:alert-rules", "project.slug")


@admin.register(models.RunNote)
class RunNoteAdmin(ReadOnlyAdmin):
    list_display = ("author", "text", "run", "project", "created_at", "edited_at")
    search_fields = ("author",)
    site_page = ("runs:detail", "run_id")


@admin.register(models.SavedView)
class SavedViewAdmin(ReadOnlyAdmin):
    list_display = ("name", "query", "project", "owner", "is_shared", "is_default", "created_at")
    list_select_related = ("project", "owner")
    search_fields = ("name", "query")
    site_page = ("runs:list", "project.slug")


@admin.register(models.ShareLink)
class ShareLinkAdmin(ReadOnlyAdmin):
    """Share links, without the links themselves."""

    list_display = ("created_by", "run", "project", "created_at", "expires_at", "revoked_at", "view_count")
    search_fields = ("created_by",)
    site_page = ("runs:detail", "run_id")
