"""The models of alert rules and mutes."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from runs.models.run import AgentRun
from timeline.database_clock import StampField


class AlertRuleQuerySet(models.QuerySet["AlertRule"]):
    """Queries on rules."""

    def enabled(self) -> AlertRuleQuerySet:
        """Return the rules that workers evaluate. Uses the index `alert_rules_enabled`."""
        return self.filter(is_enabled=True).order_by("pk")


class AlertRule(models.Model):
    """What the members of a project want to be told about, and how. Written by runs.alerts.alert_rule_changes only."""

    class Kind(models.TextChoices):
        """What a rule looks for."""

        RUN_FAILED = "run_failed"
        #: No event for `minutes` although the run should be working.
        RUN_STALLED = "run_stalled"
        #: Waits for a person for `minutes`: an approval, an answer, a decision about a call, or a resume.
        RUN_WAITING = "run_waiting"
        #: The run's own cost is at least `limit_usd`.
        RUN_COST = "run_cost"
        #: The cost of the project's current day (UTC) is at least `limit_usd`.
        DAY_COST = "day_cost"
        #: At least `percent` of an agent's last `last_runs` runs failed, if there are at least `min_runs`.
        ERROR_RATE = "error_rate"
        #: The oldest event that a sink of the project has not had has waited for `minutes`.
        SINK_BEHIND = "sink_behind"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="alert_rules", db_index=False)
    name = models.CharField(max_length=63)
    kind = models.CharField(max_length=11, choices=Kind.choices)
    #: The limits of the kind. Null: the kind has no such limit.
    minutes = models.PositiveIntegerField(null=True)
    limit_usd = models.DecimalField(max_digits=12, decimal_places=4, null=True)
    percent = models.PositiveSmallIntegerField(null=True)
    last_runs = models.PositiveSmallIntegerField(null=True)
    min_runs = models.PositiveSmallIntegerField(null=True)
    #: Only runs of the agent with this name (`flow NAME`: of this flow), and only runs with this label. Empty: all.
    agent = models.CharField(max_length=128, blank=True)
    label = models.CharField(max_length=200, blank=True)
    #: Whether operators and admins are notified, in the bell and by e-mail.
    sends_email = models.BooleanField(default=True)
    #: The URLs of the other channels and the signing secret, as encrypted JSON, and the ID of the key. Null: none.
    sealed = models.BinaryField(null=True)
    key_id = models.CharField(max_length=16, blank=True)
    #: Channel → what the interface shows of its URL.
    shown_urls = models.JSONField(default=dict)
    #: At most one message about an agent in this time. Runs that are found meanwhile are counted in the next one.
    group_minutes = models.PositiveIntegerField(default=10)
    #: Hours until a condition that lasts is announced again. 0: never.
    repeat_hours = models.PositiveIntegerField(default=24)
    announces_end = models.BooleanField(default=False)
    is_enabled = models.BooleanField(default=True)
    #: Up to when runs that ended were looked at. Moved once a minute. Some minutes in the future after `is_enabled` was
    #: set again.
    checked_at = models.DateTimeField()
    #: The actor, in the form of the audit log.
    created_by = models.CharField(max_length=200)
    created_at = StampField(auto_now_add=True)
    updated_at = StampField(auto_now=True)

    objects = AlertRuleQuerySet.as_manager()

    class Meta:
        db_table = "agent_run_alert_rules"
        indexes = [
            # AlertRuleQuerySet.enabled.
            models.Index(fields=["id"], name="alert_rules_enabled", condition=Q(is_enabled=True)),
        ]
        constraints = [
            # Also lists the rules of a project.
            models.UniqueConstraint(fields=["project", "name"], name="alert_rule_once"),
            models.CheckConstraint(
                condition=Q(
                    kind__in=[
                        *("run_failed", "run_stalled", "run_waiting", "run_cost", "day_cost", "error_rate"),
                        "sink_behind",
                    ]
                ),
                name="alert_rule_kind_known",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class AlertMute(models.Model):
    """Silence about a rule, a run or an agent for a time: exactly one of them is set."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="alert_mutes", db_index=False)
    rule = models.ForeignKey(AlertRule, models.CASCADE, null=True, related_name="mutes")
    run = models.ForeignKey(AgentRun, models.PROTECT, null=True, related_name="alert_mutes")
    agent = models.CharField(max_length=128, blank=True)
    until = models.DateTimeField()
    created_by = models.CharField(max_length=200)
    created_at = StampField(auto_now_add=True)

    class Meta:
        db_table = "agent_run_alert_mutes"
        indexes = [
            # The mutes of projects that have not ended.
            models.Index(fields=["project", "until"], name="alert_mutes_of_project"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(rule__isnull=False, run=None, agent="")
                | Q(rule=None, run__isnull=False, agent="")
                | (Q(rule=None, run=None) & ~Q(agent="")),
                name="alert_mute_of_one",
            ),
            models.UniqueConstraint(
                fields=["project", "rule"], condition=Q(rule__isnull=False), name="alert_mute_rule"
            ),
            models.UniqueConstraint(fields=["project", "run"], condition=Q(run__isnull=False), name="alert_mute_run"),
            models.UniqueConstraint(fields=["project", "agent"], condition=~Q(agent=""), name="alert_mute_agent"),
        ]

    def __str__(self) -> str:
        return f"{self.rule_id or self.run_id or self.agent} until {self.until}"
