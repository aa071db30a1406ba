"""The model of commands: the inbox of a run."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from runs.models.run import AgentRun


class RunCommand(models.Model):
    """A command to a run. It is stored first, and applied once by the worker that executes the run."""

    class Type(models.TextChoices):
        """The kinds of commands."""

        PAUSE = "pause"
        STOP = "stop"
        SEND = "send"
        REPLY = "reply"

    class Outcome(models.TextChoices):
        """The outcomes of commands."""

        #: The command took effect. A message was added to the conversation.
        APPLIED = "applied"
        #: Another command, or the end of the run, came first.
        SUPERSEDED = "superseded"
        #: The run ended before the message was added to its conversation.
        REFUSED = "refused"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="commands", db_index=False)
    #: The idempotency key: a command with the same key is stored once.
    key = models.CharField(max_length=128, null=True)
    type = models.CharField(max_length=8, choices=Type.choices)
    payload = models.JSONField(default=dict)
    created_by = models.CharField(max_length=200)
    received_at = models.DateTimeField()
    #: The time of the outcome. Null while the command is pending.
    applied_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, null=True)

    class Meta:
        db_table = "agent_run_commands"
        indexes = [
            # inbox.pending, which a worker queries before each turn.
            models.Index(fields=["run", "id"], name="command_pending", condition=Q(applied_at__isnull=True)),
            # The deletion of a run, which also has to find commands that are not pending.
            models.Index(fields=["run"], name="command_of_run"),
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
