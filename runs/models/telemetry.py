"""The models of sinks, of deliveries to them, and of metrics counted from events."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database_clock import Now, StampField


class SinkQuerySet(models.QuerySet["Sink"]):
    """Queries on sinks."""

    def sending(self) -> SinkQuerySet:
        """Return the sinks that send: enabled ones, unless the telemetry of their project is off."""
        return self.filter(Q(project=None) | Q(project__exports_telemetry=True), is_enabled=True)


class Sink(models.Model):
    """A receiver of events: a telemetry backend, a webhook or a folder. Only runs.telemetry.sink_changes writes it."""

    class Origin(models.TextChoices):
        """The source of a sink's configuration."""

        #: The admins of its project.
        PROJECT = "project"
        #: The variables of the site's environment.
        ENVIRONMENT = "environment"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    #: Null for a sink of the whole site, which gets the events of all projects.
    project = models.ForeignKey(Project, models.CASCADE, null=True, related_name="sinks", db_index=False)
    name = models.CharField(max_length=63)
    #: The name of the kind; see runs.telemetry.sink_targets.
    kind = models.CharField(max_length=32)
    origin = models.CharField(max_length=11, choices=Origin.choices, default=Origin.PROJECT)
    #: The options of the kind, without secrets.
    config = models.JSONField(default=dict)
    #: The secrets of the kind as encrypted JSON, and the ID of the key (agentops.accounts.sealing). Null: no secrets.
    sealed = models.BinaryField(null=True)
    key_id = models.CharField(max_length=16, blank=True)
    #: The hint of each secret for the interface: its last characters.
    secret_hints = models.JSONField(default=dict)
    #: The event types that are sent. Empty: the default of the kind.
    event_types = models.JSONField(default=list)
    is_enabled = models.BooleanField(default=True)
    #: Why the exporter has disabled the sink. Empty if a person did.
    disabled_reason = models.CharField(max_length=500, blank=True)
    #: The actor, in the form of the audit log.
    created_by = models.CharField(max_length=200)
    created_at = StampField(auto_now_add=True)
    updated_at = StampField(auto_now=True)

    objects = SinkQuerySet.as_manager()

    class Meta:
        db_table = "agent_run_sinks"
        constraints = [
            # Also lists the sinks of a project.
            models.UniqueConstraint(fields=["project", "name"], name="sink_name_once"),
            models.UniqueConstraint(fields=["name"], condition=Q(project=None), name="sink_of_site_once"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_paused(self) -> bool:
        """Whether the sink is enabled but waits at its position, because the telemetry of its project is off."""
        return self.is_enabled and self.project is not None and not self.project.exports_telemetry

    @property
    def is_sending(self) -> bool:
        """Whether events are sent to it, as in `SinkQuerySet.sending`."""
        return self.is_enabled and not self.is_paused


class SinkCursorQuerySet(models.QuerySet["SinkCursor"]):
    """Queries on cursors."""

    def due(self, newest: int) -> SinkCursorQuerySet:
        """Return the cursors with unsent events up to `newest` that no worker has claimed, by the database's clock."""
        free = Q(leased_until=None) | Q(leased_until__lt=Now())
        waited = Q(due_at=None) | Q(due_at__lte=Now())
        return self.filter(free, waited, sink__in=Sink.objects.sending(), event_id__lt=newest)


class SinkCursor(models.Model):
    """The position of a sink. It changes with each batch, and is therefore not a part of `Sink`.

    Each event up to `event_id` was sent, has a `Delivery`, or is not selected. No event is missed: the exporter reads
    only up to an ID below which no event can appear any more (timeline.reading).
    """

    sink = models.OneToOneField(Sink, models.CASCADE, primary_key=True, related_name="cursor")
    #: The last processed event, by the ID of its row.
    event_id = models.BigIntegerField(default=0)
    #: The time when the next attempt is due after a failure, by the database's clock.
    due_at = models.DateTimeField(null=True)
    #: The end of a worker's claim, by the database's clock. Null: not claimed.
    leased_until = models.DateTimeField(null=True)
    #: How often workers have claimed the sink. Also the fencing token of the current worker.
    claims = models.BigIntegerField(default=0)
    #: Failed attempts since the last success.
    failures = models.PositiveIntegerField(default=0)
    last_error = models.CharField(max_length=500, blank=True)
    last_error_at = models.DateTimeField(null=True)
    last_success_at = models.DateTimeField(null=True)
    #: Number of events that the receiver has accepted, and that it has permanently refused.
    sent_events = models.BigIntegerField(default=0)
    dead_events = models.BigIntegerField(default=0)

    objects = SinkCursorQuerySet.as_manager()

    class Meta:
        db_table = "agent_run_sink_cursors"

    def __str__(self) -> str:
        return f"{self.sink_id} up to event {self.event_id}"


# --- Deliveries ---

#: The event type of a test.
TEST = "test"


class DeliveryQuerySet(models.QuerySet["Delivery"]):
    """Queries on deliveries."""

    def due(self) -> DeliveryQuerySet:
        """Return the deliveries that a worker may claim now, oldest first, by the database's clock."""
        # After several failures the whole sink rests, so that an unavailable receiver is not tried once for each event.
        rested = Q(sink__cursor__due_at=None) | Q(sink__cursor__due_at__lte=Now())
        ready = Q(event_type=TEST) | Q(rested, sink__in=Sink.objects.sending())
        return self.filter(ready, due_at__lte=Now()).order_by("due_at", "first_event", "pk")


class Delivery(models.Model):
    """Events that are, or were, sent to a sink in one request.

    A webhook has one for each event. Other sinks have one for each refused batch, and for each test. The content is not
    stored, but built from the events for each attempt.
    """

    class State(models.TextChoices):
        """The state of a delivery."""

        WAITING = "waiting"
        SENT = "sent"
        #: Permanently refused, or not accepted in any attempt. A person can send it again.
        DEAD = "dead"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    sink = models.ForeignKey(Sink, models.CASCADE, related_name="deliveries", db_index=False)
    #: Null for a sink of the whole site.
    project = models.ForeignKey(Project, models.CASCADE, null=True, related_name="+", db_index=False)
    #: The ID of the message, the same at every attempt, by which the receiver recognises repeats.
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
    #: When the next attempt is due, by the database's clock. During an attempt: when another worker may claim it.
    due_at = models.DateTimeField(null=True)
    #: The response to the last attempt: its status, and the redacted start of its body. Null without a response.
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
            # The due deliveries of a sink, regardless of how many deliveries of other sinks wait.
            models.Index(fields=["sink", "due_at"], name="deliveries_due_of_sink", condition=Q(due_at__isnull=False)),
            # The number of dead deliveries, and their list.
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


# --- Metrics ---


class MetricCount(models.Model):
    """A counter with its labels. It never decreases."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=64)
    #: The labels in Prometheus's text format, such as `model="m-1",token="input"`.
    labels = models.CharField(max_length=400, blank=True)
    value = models.FloatField(default=0)

    class Meta:
        db_table = "agent_run_metric_counts"
        constraints = [models.UniqueConstraint(fields=["name", "labels"], name="metric_count_once")]

    def __str__(self) -> str:
        return f"{self.name}{{{self.labels}}} {self.value}"


class MetricPosition(models.Model):
    """Up to which event metrics are counted: one row, created when the metrics are first read."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    #: The last event that is counted, by the ID of its row.
    event_id = models.BigIntegerField(default=0)

    class Meta:
        db_table = "agent_run_metric_position"

    def __str__(self) -> str:
        return f"up to event {self.event_id}"
