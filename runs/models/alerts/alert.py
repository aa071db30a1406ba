"""The models of alerts, and of what each is about."""

from __future__ import annotations

from uuid import UUID

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from runs.models.alerts.alert_message import AlertMessage
from runs.models.alerts.alert_rule import AlertRule
from runs.models.flows.flow_run import FlowRun
from runs.models.run import AgentRun


class Alert(models.Model):
    """What a rule has found of one agent, from the first finding until all have ended. Written by runs.alerts only."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="alerts", db_index=False)
    rule = models.ForeignKey(AlertRule, models.CASCADE, related_name="alerts", db_index=False)
    #: The name of the agent, or `flow NAME` for runs of a flow. Empty for runs without an agent, and for rules about
    #: the whole project.
    agent = models.CharField(max_length=128, blank=True)
    opened_at = models.DateTimeField()
    #: The time of the newest finding.
    last_seen_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    #: The number of findings.
    count = models.PositiveIntegerField(default=0)
    #: The time of the last message. Null: nothing was sent.
    announced_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "agent_run_alerts"
        indexes = [
            # The alerts of a project, newest first: IDs are ordered by time.
            models.Index(fields=["project", "-id"], name="alerts_newest"),
            # The newest alert of a rule and an agent, which may be opened again.
            models.Index(fields=["rule", "agent", "-id"], name="alerts_of_rule"),
            # old_records.delete_batch: oldest first.
            models.Index(fields=["closed_at"], name="alerts_oldest", condition=Q(closed_at__isnull=False)),
        ]
        constraints = [
            # Also lists the open alerts of rules.
            models.UniqueConstraint(fields=["rule", "agent"], condition=Q(closed_at=None), name="alert_open_once"),
        ]

    def __str__(self) -> str:
        return f"{self.rule_id} {self.agent}"


#: Findings that matter to the next evaluation: those that last, and those that were not announced yet.
PENDING = Q(ended_at=None) | Q(message=None, is_silent=False)


class AlertFinding(models.Model):
    """A run that a rule has found, or the state of an agent or the project. Each is announced in one message."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    rule = models.ForeignKey(AlertRule, models.CASCADE, related_name="+", db_index=False)
    alert = models.ForeignKey(Alert, models.CASCADE, related_name="findings", db_index=False)
    #: The run, or the flow run. Both are null if the rule is not about single runs.
    run = models.ForeignKey(AgentRun, models.PROTECT, null=True, related_name="alert_findings")
    flow_run = models.ForeignKey(FlowRun, models.PROTECT, null=True, related_name="alert_findings")
    #: Distinguishes one stall or wait of a run from the next. Empty for what happens to a run once, such as a failure.
    episode = models.CharField(max_length=64, blank=True)
    #: What was found, in a few words that quote nothing of the run.
    detail = models.CharField(max_length=200, blank=True)
    found_at = models.DateTimeField()
    #: When it was over. A failure is over at once.
    ended_at = models.DateTimeField(null=True)
    #: The message that announced it.
    message = models.ForeignKey(AlertMessage, models.SET_NULL, null=True, related_name="findings")
    #: Never to be announced: it was muted, or over before its message was due.
    is_silent = models.BooleanField(default=False)

    class Meta:
        db_table = "agent_run_alert_findings"
        indexes = [
            # The findings of an alert, newest first.
            models.Index(fields=["alert", "-id"], name="alert_findings_of_alert"),
            # What the next evaluation needs.
            models.Index(fields=["rule"], name="alert_findings_pending", condition=PENDING),
        ]
        constraints = [
            # A failure of a run is found once.
            models.UniqueConstraint(
                fields=["rule", "run"], condition=Q(run__isnull=False, episode=""), name="alert_finding_once"
            ),
            models.UniqueConstraint(
                fields=["rule", "run", "episode"],
                condition=Q(run__isnull=False, ended_at=None) & ~Q(episode=""),
                name="alert_finding_open_once",
            ),
            models.UniqueConstraint(
                fields=["rule", "episode"],
                condition=Q(run=None, flow_run=None, ended_at=None),
                name="alert_finding_state_once",
            ),
            models.UniqueConstraint(
                fields=["rule", "flow_run"],
                condition=Q(flow_run__isnull=False, episode=""),
                name="alert_finding_flow_once",
            ),
            models.UniqueConstraint(
                fields=["rule", "flow_run", "episode"],
                condition=Q(flow_run__isnull=False, ended_at=None) & ~Q(episode=""),
                name="alert_finding_flow_open_once",
            ),
            models.CheckConstraint(condition=Q(run=None) | Q(flow_run=None), name="alert_finding_of_one"),
        ]

    def __str__(self) -> str:
        return f"{self.subject_id or self.episode}"

    @property
    def subject_id(self) -> UUID | None:
        """The ID of the run or of the flow run."""
        return self.run_id or self.flow_run_id
