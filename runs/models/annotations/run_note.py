"""The model of notes on runs."""

from __future__ import annotations

from django.db import models
from uuid_utils.compat import uuid7

from agentops.projects.models import Project
from runs.models.run import AgentRun


class RunNote(models.Model):
    """A note that a person or a program wrote about a run. Written by runs.actions.annotations.run_notes only."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="run_notes", db_index=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="notes", db_index=False)
    #: Plain text, redacted.
    text = models.TextField()
    #: The actor, in the form of the audit log, for display.
    author = models.CharField(max_length=200)
    #: Who may edit the note: `Principal.holder`, which stays the same when a user is renamed.
    holder = models.CharField(max_length=64)
    created_at = models.DateTimeField()
    edited_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "agent_run_notes"
        indexes = [
            # The notes of a run, oldest first.
            models.Index(fields=["run", "id"], name="notes_of_run"),
        ]

    def __str__(self) -> str:
        return f"{self.author} {self.created_at:%Y-%m-%d %H:%M}"
