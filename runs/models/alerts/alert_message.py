"""The models of messages about alerts, and of their deliveries to webhooks."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from runs.models.alerts.alert_rule import AlertRule
from timeline.database_clock import Now


class AlertMessage(models.Model):
    """A message about an alert. Its text is made from the findings for each attempt; nothing of a run is copied."""

    class Event(models.TextChoices):
        """What a message says."""

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
    #: The number of findings that it announces, or that still last.
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
        """Return the deliveries that a worker may take now, by the database's clock. Uses `alert_deliveries_due`."""
        return self.filter(due_at__lte=Now()).order_by("due_at")


class AlertDelivery(models.Model):
    """A message on its way to a webhook. Its ID is the message ID by which the receiver recognises repeats."""

    class Channel(models.TextChoices):
        """Where it goes."""

        #: JSON, signed after Standard Webhooks.
        WEBHOOK = "webhook"
        #: `{text, blocks}`, as Slack and compatible programs take it.
        SLACK = "slack"

    class State(models.TextChoices):
        """The state of a delivery."""

        WAITING = "waiting"
        SENT = "sent"
        #: Given up.
        DEAD = "dead"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="+", db_index=False)
    message = models.ForeignKey(AlertMessage, models.CASCADE, related_name="deliveries", db_index=False)
    channel = models.CharField(max_length=7, choices=Channel.choices)
    state = models.CharField(max_length=7, choices=State.choices, default=State.WAITING)
    #: Number of attempts, which is also the fencing token of the claim.
    attempts = models.PositiveSmallIntegerField(default=0)
    #: When an attempt is due, by the database's clock. During an attempt, when another worker may take it.
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
