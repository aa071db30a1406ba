"""The inbox of a run: what people and policies want of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from runs.models.run import AgentRun


class RunCommand(models.Model):
    """A wish, recorded first and acted on by whoever drives the run; read once."""

    class Type(models.TextChoices):
        PAUSE = "pause"
        STOP = "stop"
        SEND = "send"
        REPLY = "reply"

    class Outcome(models.TextChoices):
        #: It did what it asks for; a message was heard.
        APPLIED = "applied"
        #: Something else came first: another command, or an end of the run.
        SUPERSEDED = "superseded"
        #: A message to a run that ended before it could hear it.
        REFUSED = "refused"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="commands", db_index=False)
    #: Makes a repeat harmless: the same key posts once.
    key = models.CharField(max_length=128, null=True)
    type = models.CharField(max_length=8, choices=Type.choices)
    payload = models.JSONField(default=dict)
    created_by = models.CharField(max_length=200)
    received_at = models.DateTimeField()
    #: When it ended, in whichever way; None while it is open.
    applied_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, null=True)

    class Meta:
        db_table = "agent_run_commands"
        indexes = [
            # inbox.pending: what the driver of a run reads before each turn.
            models.Index(fields=["run", "id"], name="command_pending", condition=Q(applied_at__isnull=True)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "key"], condition=Q(key__isnull=False), name="command_key_once"),
            models.CheckConstraint(
                condition=Q(applied_at__isnull=True, outcome__isnull=True)
                | Q(applied_at__isnull=False, outcome__isnull=False),
                name="command_ended_with_outcome",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} for {self.run_id}"
