"""The model of the sessions that workers open with a command-line program, such as Claude Code."""

from __future__ import annotations

from django.db import models

from runs.models.run import AgentRun


class CliSession(models.Model):
    """A session of a program. Its row is stored before the program is started with its ID."""

    #: The ID that the program knows.
    id = models.UUIDField(primary_key=True, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="cli_sessions", db_index=False)
    #: The session whose transcript it continues. That transcript is not changed.
    resumed = models.ForeignKey("self", models.SET_NULL, null=True, related_name="+")
    #: The fencing token of the worker.
    epoch = models.IntegerField()
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_cli_sessions"
        indexes = [models.Index(fields=["run", "created_at"], name="cli_session_of_run")]

    def __str__(self) -> str:
        return str(self.pk)
