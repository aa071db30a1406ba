"""The models of alert rules, alerts, and messages about them with their deliveries to webhooks."""

from __future__ import annotations

from uuid import UUID

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database_clock import Now, StampField
from runs.models.flows import FlowRun
from runs.models.run import AgentRun


class AlertRuleQuerySet(models.QuerySet["AlertRule"]):
    """Queries on rules."""

    def enabled(self) -> AlertRuleQuerySet:
        """Return the rules that workers evaluate. Uses the index `alert_rules_enabled`."""
        return self.filter(is_enabled=True).order_by("pk")


class AlertRule(models.Model):
    """A rule that alerts the members of a project. Only runs.alerts.alert_rule_changes writes it."""

    class Kind(models.TextChoices):
        """The condition of a rule."""

        RUN_FAILED = "run_failed"
        #: A run that should be active has had no event for `minutes`.
        RUN_STALLED = "run_stalled"
        #: A run has waited for a person for `minutes`: for an approval, an answer, a decision about a call, or a
        #: resume.
        RUN_WAITING = "run_waiting"
        #: The run's own cost is at least `limit_usd`.
        RUN_COST = "run_cost"
        #: The cost of the project's current day (UTC) is at least `limit_usd`.
        DAY_COST = "day_cost"
        #: At least `percent` of an agent's last `last_runs` runs failed, if there are at least `min_runs`.
        ERROR_RATE = "error_rate"
        #: The oldest event that a sink of the project has not received has waited for `minutes`.
        SINK_BEHIND = "sink_behind"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="alert_rules", db_index=False)
    name = models.CharField(max_length=63)
    kind = models.CharField(max_length=11, choices=Kind.choices)
    #: The limits. Null unless the kind uses the limit.
    minutes = models.PositiveIntegerField(null=True)
    limit_usd = models.DecimalField(max_digits=12, decimal_places=4, null=True)
    percent = models.PositiveSmallIntegerField(null=True)
    last_runs = models.PositiveSmallIntegerField(null=True)
    min_runs = models.PositiveSmallIntegerField(null=True)
    #: Limits the rule to runs of the agent with this name (of a flow: `flow NAME`), and to runs with this label. Empty:
    #: all runs.
    agent = models.CharField(max_length=128, blank=True)
    label = models.CharField(max_length=200, blank=True)
    #: Whether operators and admins are notified, in the notification menu and by e-mail.
    sends_email = models.BooleanField(default=True)
    #: The URLs of the other channels and the signing secret, as encrypted JSON, and the ID of the key. Null: none.
    sealed = models.BinaryField(null=True)
    key_id = models.CharField(max_length=16, blank=True)
    #: The part of each channel's URL that the interface displays, by channel.
    shown_urls = models.JSONField(default=dict)
    #: Minimum minutes between messages about an agent. Findings in that time are counted in the next message.
    group_minutes = models.PositiveIntegerField(default=10)
    #: Hours after which a continuing condition is reported again. 0: never.
    repeat_hours = models.PositiveIntegerField(default=24)
    announces_end = models.BooleanField(default=False)
    is_enabled = models.BooleanField(default=True)
    #: The time up to which ended runs were checked, updated once a minute. After the rule is enabled again, it is
    #: several minutes in the future.
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
    """Mutes a rule, a run or an agent until a time. Exactly one target is set."""

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
            # The mutes of a project that have not ended.
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


# --- Messages ---


class AlertMessage(models.Model):
    """A message about an alert. It stores no data of runs: its text is built from the findings for each attempt."""

    class Event(models.TextChoices):
        """Why a message is sent."""

        OPENED = "opened"
        #: There are more findings since the last message.
        CONTINUED = "continued"
        #: Nothing has changed, and `repeat_hours` have passed.
        REPEATED = "repeated"
        CLOSED = "closed"
        TEST = "test"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    rule = models.ForeignKey(AlertRule, models.CASCADE, related_name="messages")
    #: Null for a test.
    alert = models.ForeignKey("runs.Alert", models.CASCADE, null=True, related_name="messages")
    event = models.CharField(max_length=9, choices=Event.choices)
    #: The number of findings that it reports for the first time, or that still continue.
    count = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_alert_messages"
        constraints = [
            models.CheckConstraint(
                condition=Q(event="test", alert=None) | (~Q(event="test") & Q(alert__isnull=False)),
                name="alert_message_of_alert",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event} {self.pk}"


class AlertDeliveryQuerySet(models.QuerySet["AlertDelivery"]):
    """Queries on deliveries."""

    def due(self) -> AlertDeliveryQuerySet:
        """Return the deliveries that a worker may claim now, by the database's clock. Uses `alert_deliveries_due`."""
        return self.filter(due_at__lte=Now()).order_by("due_at")


class AlertDelivery(models.Model):
    """A message for a webhook. Its ID is sent as the message ID, by which the receiver recognises repeats."""

    class Channel(models.TextChoices):
        """The destination."""

        #: JSON, signed according to Standard Webhooks.
        WEBHOOK = "webhook"
        #: `{text, blocks}`, the format of Slack and compatible programs.
        SLACK = "slack"

    class State(models.TextChoices):
        """The state of a delivery."""

        WAITING = "waiting"
        SENT = "sent"
        #: No further attempts are made.
        DEAD = "dead"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    message = models.ForeignKey(AlertMessage, models.CASCADE, related_name="deliveries", db_index=False)
    channel = models.CharField(max_length=7, choices=Channel.choices)
    state = models.CharField(max_length=7, choices=State.choices, default=State.WAITING)
    #: Number of attempts. Also the fencing token of a worker's claim.
    attempts = models.PositiveSmallIntegerField(default=0)
    #: When the next attempt is due, by the database's clock. During an attempt: when another worker may claim it.
    due_at = models.DateTimeField(null=True)
    status_code = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)

    objects = AlertDeliveryQuerySet.as_manager()

    class Meta:
        db_table = "agent_run_alert_deliveries"
        verbose_name_plural = "alert deliveries"
        indexes = [
            # AlertDeliveryQuerySet.due.
            models.Index("due_at", name="alert_deliveries_due", condition=Q(due_at__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["message", "channel"], name="alert_delivery_once"),
            models.CheckConstraint(
                condition=Q(state="waiting", due_at__isnull=False) | (~Q(state="waiting") & Q(due_at=None)),
                name="alert_delivery_due_while_waiting",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.channel} {self.state}"


# --- Alerts ---


class Alert(models.Model):
    """The findings of a rule about one agent, from the first one until all have ended. Only runs.alerts writes it."""

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
    #: The time of the last message; null if none was sent.
    announced_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "agent_run_alerts"
        indexes = [
            # The alerts of a project, newest first: IDs are ordered by time.
            models.Index(fields=["project", "-id"], name="alerts_newest"),
            # The newest alert of a rule and an agent, which may be reopened.
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


#: Findings that the next evaluation needs: continuing ones, and unreported ones.
PENDING = Q(ended_at=None) | Q(message=None, is_silent=False)


class AlertFinding(models.Model):
    """A run that matches a rule, or a matching state of an agent or of the project. One message reports it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    rule = models.ForeignKey(AlertRule, models.CASCADE, related_name="+", db_index=False)
    alert = models.ForeignKey(Alert, models.CASCADE, related_name="findings", db_index=False)
    #: The run, or the flow run. Both are null if the rule is not about single runs.
    run = models.ForeignKey(AgentRun, models.PROTECT, null=True, related_name="alert_findings")
    flow_run = models.ForeignKey(FlowRun, models.PROTECT, null=True, related_name="alert_findings")
    #: Identifies a stall or wait of a run that may have several. Empty for conditions that occur once, such as a
    #: failure.
    episode = models.CharField(max_length=64, blank=True)
    #: A short description of the finding, without any text of the run.
    detail = models.CharField(max_length=200, blank=True)
    found_at = models.DateTimeField()
    #: The time when the condition ended. A failure ends immediately.
    ended_at = models.DateTimeField(null=True)
    #: The message that reported it.
    message = models.ForeignKey(AlertMessage, models.SET_NULL, null=True, related_name="findings")
    #: Whether no message reports it, because it was muted, or ended before its message was due.
    is_silent = models.BooleanField(default=False)

    class Meta:
        db_table = "agent_run_alert_findings"
        indexes = [
            # The findings of an alert, newest first.
            models.Index(fields=["alert", "-id"], name="alert_findings_of_alert"),
            # The findings for the next evaluation.
            models.Index(fields=["rule"], name="alert_findings_pending", condition=PENDING),
        ]
        constraints = [
            # A failure of a run has one finding.
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
        """The ID of the run or of the flow run; None if the finding is about neither."""
        return self.run_id or self.flow_run_id
