"""Logs, their events, the counts that removed ones leave behind, and the maintenance row of SQLite."""

from __future__ import annotations

from django.db import models
from uuid_utils.compat import uuid7

from agentops.projects.models import Project


class Source(models.TextChoices):
    """Who wrote an event."""

    WORKER = "worker"
    WEB = "web"
    INGEST = "ingest"
    IMPORT = "import"
    POLICY = "policy"


class Phase(models.TextChoices):
    """What an event's reader may say of the run after it; coarser than a run's status."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class RunKind(models.TextChoices):
    SESSION = "session"
    JOB = "job"


class Log(models.Model):
    """One ordered log. `last_seq` is its counter and `epoch` its fence; only timeline.log writes them."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.PROTECT, related_name="logs")
    last_seq = models.BigIntegerField(default=0)
    #: What its events are of where they name no node themselves: the id of a run's agent.
    node_id = models.CharField(max_length=128, default="", db_default="", blank=True)
    #: The lowest epoch that may still append; a worker that was taken over holds a lower one.
    epoch = models.IntegerField(default=0)
    #: When the newest event was stored (database clock): how a reader tells a silent run from a busy one.
    last_event_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.id)


class Event(models.Model):
    """One immutable line of a log. Never written but by timeline.log.append; triggers refuse changes."""

    # (log, seq) is the true key; Django 5.2 has no admin and no foreign keys for composite keys.
    id = models.BigAutoField(primary_key=True)
    log = models.ForeignKey(Log, models.PROTECT, related_name="events", db_index=False)
    seq = models.BigIntegerField()
    #: The message, tool call or child run that the event speaks of.
    ref_id = models.UUIDField(null=True)
    #: Chosen by the sender, so that a repeat is known; null for what needs none: the wire form then says "~<seq>".
    event_id = models.CharField(max_length=128, null=True)
    run_kind = models.CharField(max_length=8, choices=RunKind.choices, default=RunKind.SESSION)
    phase = models.CharField(max_length=9, choices=Phase.choices)
    type = models.CharField(max_length=128)
    #: When it happened, by the clock of whoever reports it; order is by `seq`, never by this.
    ts = models.DateTimeField()
    step = models.IntegerField(null=True)
    node_id = models.CharField(max_length=128, default="", blank=True)
    payload = models.JSONField(default=dict)
    source = models.CharField(max_length=6, choices=Source.choices)
    epoch = models.IntegerField(null=True)
    #: Arrived after the log's terminal event.
    late = models.BooleanField(default=False)
    #: What was replaced at the door: a comma list of "nul", "surrogate", "redacted".
    sanitized = models.CharField(max_length=32, default="", blank=True)
    #: SHA-256 of the body as sent, where the sender chose the event_id: tells a repeat from a conflict.
    body_sha256 = models.BinaryField(max_length=32, null=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_events"
        constraints = [
            # Also serves read(log, after seq), the stream and the timeline.
            models.UniqueConstraint(fields=["log", "seq"], name="event_seq_once"),
            # Also serves the look-up of repeats in append.
            models.UniqueConstraint(
                fields=["log", "event_id"], condition=models.Q(event_id__isnull=False), name="event_id_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.log_id} {self.seq} {self.type}"


class Tombstone(models.Model):
    """What is left of a log, and of what it was the log of, after its removal: no title, nothing that anybody said.

    It is written first, and hides what it stands for from everyone; the rows go after that, in batches.
    """

    #: Of the log that was removed.
    id = models.UUIDField(primary_key=True, editable=False)
    project = models.ForeignKey(Project, models.PROTECT, related_name="tombstones")
    #: What was removed together has one name: the id of one of them.
    family = models.UUIDField()
    #: What it was, in a few words: agent, status, source, steps.
    facts = models.JSONField(default=dict)
    created_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)
    #: Why, in words for people.
    reason = models.CharField(max_length=200)
    #: As the audit trail names them.
    removed_by = models.CharField(max_length=200)
    removed_at = models.DateTimeField()
    #: Table → rows removed from it so far; counted in the transaction that removes them.
    rows = models.JSONField(default=dict)
    #: When the last row was gone; null while rows are left.
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            # What a removal that was cut off goes on with; checks and streams leave it out.
            models.Index(fields=["family"], name="tombstone_unfinished", condition=models.Q(finished_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.id} removed {self.removed_at:%Y-%m-%d}"


class MaintenanceDoor(models.Model):
    """SQLite has no transaction-local settings: while a row stands here, the triggers let changes pass.

    The row is made and deleted inside one transaction (timeline/maintenance.py), so nobody else ever sees it.
    """

    reason = models.CharField(max_length=200)
    opened_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.reason
