"""The models of sinks: where events are sent, and how far each sink has got."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from timeline.database_clock import Now, StampField


class SinkQuerySet(models.QuerySet["Sink"]):
    """Queries on sinks."""

    def sending(self) -> SinkQuerySet:
        """Return the sinks that send: enabled ones, unless the telemetry of their project is off."""
        return self.filter(Q(project=None) | Q(project__exports_telemetry=True), is_enabled=True)


class Sink(models.Model):
    """A receiver of events: a telemetry backend, a webhook or a folder. Written by runs.telemetry.sink_changes only."""

    class Origin(models.TextChoices):
        """Who configures a sink."""

        #: The admins of its project.
        PROJECT = "project"
        #: The variables of the site's environment.
        ENVIRONMENT = "environment"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    #: Null: the events of all projects.
    project = models.ForeignKey(Project, models.CASCADE, null=True, related_name="sinks", db_index=False)
    name = models.CharField(max_length=63)
    #: The name of the kind; see runs.telemetry.sink_kinds.
    kind = models.CharField(max_length=32)
    origin = models.CharField(max_length=11, choices=Origin.choices, default=Origin.PROJECT)
    #: The options of the kind, without secrets.
    config = models.JSONField(default=dict)
    #: The secrets of the kind as encrypted JSON, and the ID of the key (redaction_rules/sealing.py). Null: none.
    sealed = models.BinaryField(null=True)
    key_id = models.CharField(max_length=16, blank=True)
    #: What the interface shows of each secret: its last characters.
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
        """Whether the sink is enabled and keeps its position, because the telemetry of its project is off."""
        return self.is_enabled and self.project is not None and not self.project.exports_telemetry

    @property
    def is_sending(self) -> bool:
        """Whether events are sent to it, as in `SinkQuerySet.sending`."""
        return self.is_enabled and not self.is_paused


class SinkCursorQuerySet(models.QuerySet["SinkCursor"]):
    """Queries on cursors."""

    def due(self, newest: int) -> SinkCursorQuerySet:
        """Return the cursors with events up to `newest` ahead that no worker has, by the database's clock."""
        free = Q(leased_until=None) | Q(leased_until__lt=Now())
        waited = Q(due_at=None) | Q(due_at__lte=Now())
        return self.filter(free, waited, sink__in=Sink.objects.sending(), event_id__lt=newest)


class SinkCursor(models.Model):
    """How far a sink has got. Changed for each batch, and therefore not a part of `Sink`.

    Everything up to `event_id` was sent, is a `Delivery`, or is not wanted. IDs of events are a position that misses
    nothing, because the exporter reads only up to an ID below which no event can appear (timeline.bulk.settled).
    """

    sink = models.OneToOneField(Sink, models.CASCADE, primary_key=True, related_name="cursor")
    #: The last event that is settled, by the ID of its row.
    event_id = models.BigIntegerField(default=0)
    #: After a failure: when the next attempt is due, by the database's clock.
    due_at = models.DateTimeField(null=True)
    #: Until when a worker has the sink, by the database's clock. Null: none has.
    leased_until = models.DateTimeField(null=True)
    #: How often a worker has taken the sink; the fencing token of that worker.
    claims = models.BigIntegerField(default=0)
    #: Failed attempts since the last success.
    failures = models.PositiveIntegerField(default=0)
    last_error = models.CharField(max_length=500, blank=True)
    last_error_at = models.DateTimeField(null=True)
    last_success_at = models.DateTimeField(null=True)
    #: Events that the receiver has accepted, and those that it never will.
    sent_events = models.BigIntegerField(default=0)
    dead_events = models.BigIntegerField(default=0)

    objects = SinkCursorQuerySet.as_manager()

    class Meta:
        db_table = "agent_run_sink_cursors"

    def __str__(self) -> str:
        return f"{self.sink_id} up to event {self.event_id}"
