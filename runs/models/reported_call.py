"""The model of the names that programs report for a model call."""

from __future__ import annotations

from django.db import models

from agentops.accounts.models import Project
from runs.models.run import AgentRun


class ReportedCall(models.Model):
    """A name of a model call in imported sessions, and the run that counts the call.

    A call may have several names, because copies of a session name it differently. The rows of one call have the same
    `call` and the same `run`.
    """

    project = models.ForeignKey(Project, models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=128)
    #: The identity of the call, also stored in the usage of its turn.
    call = models.UUIDField(db_index=True)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="+")
    #: Whether the run is known to have copied it from another session.
    is_copy = models.BooleanField(default=False)
    #: Whether its usage came from a copy, which is complete: later reports of the run itself are part of it.
    is_whole = models.BooleanField(default=False)

    class Meta:
        db_table = "agent_run_reported_calls"
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="reported_call_once")]

    def __str__(self) -> str:
        return self.name
