"""The states of graphs that processes elsewhere execute: checkpoints, the values of their channels, pending writes."""

from __future__ import annotations

from django.db import models
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from runs.models.run import AgentRun


class GraphThread(models.Model):
    """A thread of a graph that is executed outside of runs. The graph's program chooses its name."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="graph_threads", db_index=False)
    name = models.CharField(max_length=200)
    #: When values were last stored, by the database's clock.
    modified_at = models.DateTimeField()

    class Meta:
        db_table = "graph_threads"
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="graph_thread_once")]
        indexes = [
            # old_records.delete_sessions: oldest first.
            models.Index(fields=["project", "modified_at"], name="graph_thread_old"),
        ]

    def __str__(self) -> str:
        return self.name


class GraphValue(models.Model):
    """A stored value of a graph: of a run, or of a thread. Only the process can read its text.

    A checkpoint names the channel values that it consists of, so that unchanged ones are stored once.
    """

    class Kind(models.TextChoices):
        """The kind of value."""

        CHECKPOINT = "checkpoint"
        CHANNEL = "channel"
        WRITE = "write"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    #: The run that stored the value; None for a value of a thread. Runs that continue this one read it too.
    run = models.ForeignKey(AgentRun, models.PROTECT, null=True, related_name="graph_values", db_index=False)
    thread = models.ForeignKey(GraphThread, models.CASCADE, null=True, related_name="values", db_index=False)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    #: The sub-graph; empty for the graph itself.
    namespace = models.CharField(max_length=300, blank=True, default="")
    #: The ID of the checkpoint; empty for the value of a channel.
    checkpoint = models.CharField(max_length=64, blank=True, default="")
    #: Of a channel: its name and version. Of a write: its task and number.
    key = models.CharField(max_length=300, blank=True, default="")
    #: Number of the piece, from 0, of a text that is too large for one request.
    index = models.PositiveSmallIntegerField(default=0)
    #: The last step of the run when the value was stored, for forks.
    step_number = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()
    #: Of a checkpoint: its parent, metadata and channel keys. Of a write: task, channel and path.
    facts = models.JSONField(default=dict)
    # Last, because it may be large: SQLite reads a value to reach the columns after it.
    text = models.TextField()

    class Meta:
        db_table = "graph_values"
        constraints = [
            # Also serve the reads of a run and of a thread.
            models.UniqueConstraint(
                fields=["run", "kind", "namespace", "checkpoint", "key", "index"], name="graph_value_of_run_once"
            ),
            models.UniqueConstraint(
                fields=["thread", "kind", "namespace", "checkpoint", "key", "index"], name="graph_value_of_thread_once"
            ),
            models.CheckConstraint(
                condition=models.Q(run__isnull=True) ^ models.Q(thread__isnull=True), name="graph_value_has_one_owner"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.checkpoint or self.key}"
