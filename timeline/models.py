"""The models of logs, events and tombstones, and the errors of logs."""

from __future__ import annotations

from django.db import models
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database.joined_json import JoinedJSONField
from agentops.base.database_clock import StampField
from agentops.base.refusals import NotFound
from timeline.joined_texts import MEMBERS, WHOLE_PAYLOAD


class Source(models.TextChoices):
    """The kind of writer of an event."""

    WORKER = "worker"
    WEB = "web"
    INGEST = "ingest"
    IMPORT = "import"
    POLICY = "policy"


class Phase(models.TextChoices):
    """The phase of a run after an event. Coarser than its status."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class RunKind(models.TextChoices):
    """The kind of a run."""

    SESSION = "session"
    JOB = "job"


class Log(models.Model):
    """An ordered log of events. Only timeline.log writes `last_seq` and `epoch`."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.PROTECT, related_name="logs")
    last_seq = models.BigIntegerField(default=0)
    #: The default node of its events: the ID of the run's agent.
    node_id = models.CharField(max_length=128, default="", db_default="", blank=True)
    #: The kind of its events.
    run_kind = models.CharField(
        max_length=8, choices=RunKind.choices, default=RunKind.SESSION, db_default=RunKind.SESSION.value
    )
    #: The fencing token: the lowest epoch that may append.
    epoch = models.IntegerField(default=0)
    #: The time at which the last event was stored, by the database's clock.
    last_event_at = models.DateTimeField(null=True)
    created_at = StampField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.id)


class Event(models.Model):
    """An immutable event of a log. Written by timeline.log.append only; triggers reject changes."""

    # (log, seq) is the natural key, but Django 5.2 supports neither admin nor foreign keys for composite keys.
    id = models.BigAutoField(primary_key=True)
    log = models.ForeignKey(Log, models.PROTECT, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    #: The message, tool call or child run that the event refers to.
    ref_id = models.UUIDField(null=True)
    #: The sender's idempotency key. Null without one; the wire format then has "~<seq>".
    event_id = models.CharField(max_length=128, null=True)
    run_kind = models.CharField(max_length=8, choices=RunKind.choices, default=RunKind.SESSION)
    phase = models.CharField(max_length=9, choices=Phase.choices)
    type = models.CharField(max_length=128)
    #: The time of the event by the writer's clock. Events are ordered by `seq`, not by time.
    ts = models.DateTimeField()
    step = models.IntegerField(null=True)
    node_id = models.CharField(max_length=128, default="", blank=True)
    #: Queries read it with its text, which may lie in a message: see timeline.joined_texts.
    payload = JoinedJSONField(default=dict, sql=WHOLE_PAYLOAD, members=set(MEMBERS.values()))
    #: The part of the message whose text begins with that of the event. Null: the payload is stored whole.
    text_part = models.SmallIntegerField(null=True)
    source = models.CharField(max_length=6, choices=Source.choices)
    epoch = models.IntegerField(null=True)
    #: Arrived after the log's terminal event.
    late = models.BooleanField(default=False)
    #: Kinds of replacements made before storing: a comma-separated list of "nul", "surrogate" and "redacted".
    sanitized = models.CharField(max_length=32, default="", blank=True)
    #: SHA-256 of the body as sent, for events with an event_id. Distinguishes a repeat from a conflict.
    body_sha256 = models.BinaryField(max_length=32, null=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_events"
        constraints = [
            # Also used by read(), by streams and by the timeline.
            models.UniqueConstraint(fields=["log", "seq"], name="event_seq_once"),
            # Also used by append() to find repeats.
            models.UniqueConstraint(
                fields=["log", "event_id"], condition=models.Q(event_id__isnull=False), name="event_id_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.log_id} {self.seq} {self.type}"


class Tombstone(models.Model):
    """The record of a log, and its run, that retention deleted. It contains neither the title nor any content.

    It is written first, together with hiding the run. The rows are then deleted in batches.
    """

    #: The ID of the deleted log.
    id = models.UUIDField(primary_key=True, editable=False)
    project = models.ForeignKey(Project, models.PROTECT, related_name="tombstones")
    #: The run group that was deleted together: the smallest ID of its logs.
    family = models.UUIDField()
    #: Agent, status, source and steps of the run.
    facts = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)
    #: The reason for the deletion, as text.
    reason = models.CharField(max_length=200)
    #: The actor, in the form of the audit log.
    removed_by = models.CharField(max_length=200)
    removed_at = models.DateTimeField()
    #: The number of deleted rows by table, updated in the transaction that deletes them.
    rows = models.JSONField(default=dict)
    #: The time at which the last row was deleted. Null while rows are left.
    finished_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "run deleted by retention"
        verbose_name_plural = "runs deleted by retention"
        indexes = [
            # Unfinished deletions, which are continued, and excluded from checks and streams.
            models.Index(fields=["family"], name="tombstone_unfinished", condition=models.Q(finished_at__isnull=True))
        ]

    def __str__(self) -> str:
        return f"{self.id} deleted {self.removed_at:%Y-%m-%d}"


class MaintenanceDoor(models.Model):
    """On SQLite, a row in this table makes the append-only triggers allow changes, because there are no local settings.

    It is created and deleted within one transaction (timeline/tombstones.py), so it is never visible to others.
    """

    reason = models.CharField(max_length=200)
    opened_at = StampField(auto_now_add=True)

    def __str__(self) -> str:
        return self.reason


class LogNotFound(NotFound):
    """The log does not exist. Its ID is that of a run."""

    code = "run_not_found"


class LeaseLost(Exception):
    """Another worker has claimed the run. The caller's state is stale and must be discarded."""
