"""Administration of alert rules, alerts and deliveries, read-only. Rules are changed on the pages of the site."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from agentops.admin_base import cells
from agentops.admin_base.filters import ProjectFilter, choice_filter, id_filter, yes_filter
from agentops.admin_base.pages import RecordAdmin, Table
from runs.models import Alert, AlertDelivery, AlertFinding, AlertMute, AlertRule


@admin.register(AlertRule)
class AlertRuleAdmin(RecordAdmin):
    """Alert rules. The URLs of their webhooks are never displayed."""

    text_fields = ("name", "agent", "label")
    loaded = (
        *("name", "kind", "minutes", "limit_usd", "percent", "last_runs", "min_runs", "agent", "label", "sends_email"),
        *("shown_urls", "group_minutes", "repeat_hours", "announces_end", "is_enabled", "checked_at", "created_by"),
        *("created_at", "updated_at", "project_id", "project__slug"),
    )
    list_display = (
        cells.words("name"),
        cells.plain("kind"),
        cells.plain("is_enabled", "enabled"),
        cells.words("agent"),
        cells.moment("checked_at", "checked"),
        cells.moment("created_at", "created"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
    )
    list_filter = (ProjectFilter, choice_filter("kind", AlertRule.Kind.values))
    search_help_text = "Search by ID or prefix of it, or by part of the name, the agent or the label."
    facts = (
        (None, (*list_display, cells.words("label"), cells.words("created_by", "created by"), cells.plain("id", "ID"))),
        (
            "Limits",
            tuple(cells.plain(name) for name in ("minutes", "limit_usd", "percent", "last_runs", "min_runs")),
        ),
        (
            "Messages",
            (
                *(cells.plain(name) for name in ("sends_email", "group_minutes", "repeat_hours", "announces_end")),
                cells.payload("shown_urls"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: AlertRule) -> str:
        return cells.line(obj.name)

    def history(self, request: HttpRequest, obj: AlertRule) -> Iterator[Table | None]:
        rows: Any = Alert.objects.filter(rule=obj).order_by("-pk")
        yield self.table(request, Alert, rows, {"rule": obj.pk}, without="rule")


@admin.register(Alert)
class AlertAdmin(RecordAdmin):
    """Alerts."""

    id_fields = ("id", "rule_id")
    text_fields = ("agent",)
    loaded = (
        *("agent", "count", "opened_at", "last_seen_at", "closed_at", "announced_at", "rule_id", "rule__name"),
        *("project_id", "project__slug"),
    )
    list_display = (
        cells.moment("opened_at", "opened"),
        cells.link("rule_id", "runs_alertrule", "rule", text="rule__name"),
        cells.words("agent"),
        cells.plain("count"),
        cells.moment("announced_at", "last message"),
        cells.moment("closed_at", "closed"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
    )
    list_filter = (ProjectFilter, id_filter("rule", field="rule"), yes_filter("closed", "closed_at"))
    search_help_text = "Search by alert ID or rule ID or a prefix of it, or by part of the agent."
    facts = ((None, (*list_display, cells.moment("last_seen_at", "newest finding"), cells.plain("id", "ID"))),)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project", "rule"))

    def name_of(self, obj: Alert) -> str:
        return cells.line(f"{obj.rule.name}: {obj.agent or obj.project.slug}")

    def history(self, request: HttpRequest, obj: Alert) -> Iterator[Table | None]:
        found: Any = AlertFinding.objects.filter(alert=obj).order_by("-pk")
        yield self.table(request, AlertFinding, found, {"alert": obj.pk}, without="alert")
        sent: Any = AlertDelivery.objects.filter(message__alert=obj).order_by("-pk")
        yield self.table(request, AlertDelivery, sent, {"alert": obj.pk})


@admin.register(AlertFinding)
class AlertFindingAdmin(RecordAdmin):
    """Findings of alerts."""

    id_fields = ("id", "run_id", "flow_run_id", "alert_id")
    text_fields = ("detail",)
    loaded = (
        *("detail", "found_at", "ended_at", "is_silent", "run_id", "flow_run_id", "alert_id", "message_id"),
        "project_id",
    )
    list_display = (
        cells.moment("found_at", "found"),
        cells.link("alert_id", "runs_alert", "alert"),
        cells.link("run_id", "runs_agentrun", "run"),
        cells.link("flow_run_id", "runs_flowrun", "flow run"),
        cells.words("detail"),
        cells.moment("ended_at", "ended"),
        cells.plain("is_silent", "silent"),
    )
    list_filter = (ProjectFilter, id_filter("alert", field="alert"), id_filter("run", field="run"))
    search_help_text = "Search by the ID of a finding, a run or an alert, or a prefix of it, or by part of the detail."
    facts = ((None, (*list_display, cells.plain("message_id", "message"), cells.plain("id", "ID"))),)

    def name_of(self, obj: AlertFinding) -> str:
        return cells.line(obj.detail or str(obj.pk))


@admin.register(AlertMute)
class AlertMuteAdmin(RecordAdmin):
    """Mutes."""

    id_fields = ("id", "run_id", "rule_id")
    text_fields = ("agent", "created_by")
    loaded = ("agent", "until", "created_by", "created_at", "run_id", "rule_id", "project_id", "project__slug")
    list_display = (
        cells.moment("until"),
        cells.link("rule_id", "runs_alertrule", "rule"),
        cells.link("run_id", "runs_agentrun", "run"),
        cells.words("agent"),
        cells.words("created_by", "created by"),
        cells.moment("created_at", "created"),
        cells.link("project_id", "projects_project", "project", text="project__slug"),
    )
    list_filter = (ProjectFilter,)
    search_help_text = (
        "Search by the ID of a mute, a run or a rule, or a prefix of it, or by part of the agent or actor."
    )
    facts = ((None, (*list_display, cells.plain("id", "ID"))),)

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project"))

    def name_of(self, obj: AlertMute) -> str:
        return cells.line(obj.agent or str(obj.run_id or obj.rule_id))


@admin.register(AlertDelivery)
class AlertDeliveryAdmin(RecordAdmin):
    """Messages to webhooks."""

    text_fields = ("error",)
    loaded = (
        *("channel", "state", "attempts", "due_at", "status_code", "error", "created_at", "sent_at", "project_id"),
        *("project__slug", "message__event", "message__rule_id", "message__rule__name"),
    )
    list_display = (
        cells.moment("created_at", "created"),
        cells.link("message__rule_id", "runs_alertrule", "rule", text="message__rule__name"),
        cells.plain("message__event", "event"),
        cells.plain("channel"),
        cells.plain("state"),
        cells.plain("attempts"),
        cells.words("error"),
        cells.moment("sent_at", "sent"),
    )
    list_filter = (
        ProjectFilter,
        choice_filter("state", AlertDelivery.State.values),
        id_filter("alert", field="message__alert"),
    )
    search_help_text = "Search by ID or prefix of it, or by part of the error."
    facts = (
        (
            None,
            (
                *list_display,
                cells.link("project_id", "projects_project", "project", text="project__slug"),
                cells.plain("status_code", "status of the answer"),
                cells.moment("due_at", "next attempt"),
                cells.plain("id", "ID"),
            ),
        ),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return super().for_list(rows.select_related("project", "message__rule"))

    def name_of(self, obj: AlertDelivery) -> str:
        return cells.line(f"{obj.channel} {obj.created_at:%Y-%m-%d %H:%M}")
