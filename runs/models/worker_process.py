"""The model of worker processes and the queues that they serve."""

from __future__ import annotations

from datetime import timedelta

from django.db import models

from agentops.base.database_clock import Now

#: Seconds after which a process that has not renewed its row counts as gone.
GONE_AFTER_S = 30


class WorkerProcessQuerySet(models.QuerySet["WorkerProcess"]):
    """Queries on worker processes."""

    def alive(self) -> WorkerProcessQuerySet:
        """Return the processes that have recently renewed their rows, by the database's clock."""
        return self.filter(seen_at__gte=Now() - timedelta(seconds=GONE_AFTER_S))

    def served_queues(self) -> frozenset[str]:
        """Return the queues served by living processes. Empty: no process is running, or none has a row."""
        rows = self.alive().values_list("queues", flat=True)
        return frozenset(queue for queues in rows for queue in queues)


class WorkerProcess(models.Model):
    """A worker process. It renews its row every few seconds, and removes it when it ends."""

    #: The owner of its leases (AgentRun.lease_owner).
    name = models.CharField(max_length=128, primary_key=True)
    host = models.CharField(max_length=64)
    pid = models.PositiveIntegerField()
    #: The names of the queues from which it takes runs.
    queues = models.JSONField(default=list)
    #: Maximum number of runs that it executes concurrently.
    concurrency = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()

    objects = WorkerProcessQuerySet.as_manager()

    class Meta:
        db_table = "worker_processes"

    def __str__(self) -> str:
        return self.name
