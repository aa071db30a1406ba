"""The model of deliveries: what was sent to a sink, what is still to be sent, and what could not be."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from runs.models.telemetry.sink import Sink
from timeline.database_clock import Now, StampField

#: The event type of a test.
TEST = "test"


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    """Queries on deliveries."""

    def due(self) -> DeliveryQuerySet:
        """Return the deliveries that a worker may take now, oldest first, by the database's clock."""
        # After some failures the whole sink rests, so that a receiver that is down is not tried once for each event.
        rested = Q(sink__cursor__due_at=None) | Q(sink__cursor__due_at__lte=Now())
        ready = Q(event_type=TEST) | Q(rested, sink__in=Sink.objects.sending())
        return self.filter(ready, due_at__lte=Now()).order_by("due_at", "first_event", "pk")


class Delivery(models.Model):
    """Events that are, or were, sent to a sink in one request.

    A webhook has one for each event. Other sinks have one for each batch that was refused, and for each test. The
    content is made anew from the events for each attempt; nothing is copied.
    """

    class State(models.TextChoices):
        """The state of a delivery."""

        WAITING = "waiting"
        SENT = "sent"
        #: Refused for good, or not accepted in any attempt. A person can send it again.
        DEAD = "dead"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    sink = models.ForeignKey(Sink, models.CASCADE, related_name="deliveries", db_index=False)
    #: Null for a sink of the whole site.
    project = models.ForeignKey(Project, models.CASCADE, null=True, related_name="+", db_index=False)
    #: The ID by which the receiver recognises repeats. The same for every attempt.
    message_id = models.CharField(max_length=64)
    #: The range of events, by the IDs of their rows. Null for a test.
    first_event = models.BigIntegerField(null=True)
    last_event = models.BigIntegerField(null=True)
    event_count = models.PositiveIntegerField(default=1)
    #: The type of the only event; "test" for a test; empty for a batch.
    event_type = models.CharField(max_length=128, blank=True)
    #: The run of the only event. Not a foreign key: the delivery is kept when the run is deleted.
    run_id = models.UUIDField(null=True)
    state = models.CharField(max_length=7, choices=State.choices, default=State.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    #: When an attempt is due, by the database's clock. During an attempt, when another worker may take it.
    due_at = models.DateTimeField(null=True)
    #: The answer to the last attempt: its status and the redacted beginning of its body. Null without an answer.
    status_code = models.PositiveSmallIntegerField(null=True)
    response = models.CharField(max_length=1000, blank=True)
    error = models.CharField(max_length=500, blank=True)
    duration_ms = models.PositiveIntegerField(null=True)
    created_at = StampField(auto_now_add=True)
    attempted_at = models.DateTimeField(null=True)

    objects = DeliveryQuerySet.as_manager()

    class Meta:
        db_table = "agent_run_deliveries"
        verbose_name_plural = "deliveries"
        indexes = [
            # The deliveries of a sink, newest first: IDs are ordered by time.
            models.Index(fields=["sink", "-id"], name="deliveries_of_sink"),
            # DeliveryQuerySet.due.
            models.Index("due_at", name="deliveries_due", condition=Q(due_at__isnull=False)),
            # The due ones of a sink, whatever the number of those of others that wait.
            models.Index(fields=["sink", "due_at"], name="deliveries_due_of_sink", condition=Q(due_at__isnull=False)),
            # The number of dead ones, and their list.
            models.Index(fields=["sink", "id"], name="deliveries_dead", condition=Q(state="dead")),
            # old_records.delete_batch: oldest first.
            models.Index(fields=["created_at"], name="deliveries_oldest"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=["waiting", "sent", "dead"]), name="delivery_state_known"),
            models.CheckConstraint(
                condition=Q(state="waiting", due_at__isnull=False) | ~Q(state="waiting") & Q(due_at=None),
                name="delivery_due_while_waiting",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.message_id} {self.state}"
