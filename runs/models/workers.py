"""The models of worker processes, and of periodic jobs that only one process executes at a time."""

from __future__ import annotations

from datetime import timedelta

from django.db import models

from agentops.accounts.models import Project
from agentops.base.database_clock import Now

#: The prefix of the owners of leases of remote runs. The slug of the project and the name of the process follow.
REMOTE_OWNER = "remote:"
#: Seconds after which a process that has not renewed its row is considered dead.
GONE_AFTER_S = 30


def process_name(owner: str) -> str:
    """Return the name that a remote process gave itself, from the owner of its leases; the name of another worker."""
    return owner.split(":", 2)[-1] if owner.startswith(REMOTE_OWNER) else owner


class WorkerProcessQuerySet(models.QuerySet["WorkerProcess"]):
    """Queries on worker processes."""

    def alive(self) -> WorkerProcessQuerySet:
        """Return the processes that have recently renewed their rows, by the database's clock."""
        return self.filter(seen_at__gte=Now() - timedelta(seconds=GONE_AFTER_S))

    def of_site(self) -> WorkerProcessQuerySet:
        """Return the living workers of this site."""
        return self.alive().filter(project=None)

    def remote(self) -> WorkerProcessQuerySet:
        """Return the living processes elsewhere that execute remote runs."""
        return self.alive().exclude(project=None)

    def served_queues(self) -> frozenset[str]:
        """Return the queues that living workers of this site serve."""
        rows = self.of_site().values_list("queues", flat=True)
        return frozenset(queue for queues in rows for queue in queues)

    def packaged_agents(self) -> dict[str, set[int]]:
        """Return the agents of packages that living workers of this site can execute, with the versions of the code."""
        agents: dict[str, set[int]] = {}
        for offer in self.of_site().exclude(agents=None).values_list("agents", flat=True):
            for name, versions in (offer or {}).items():
                agents.setdefault(name, set()).update(versions)
        return agents


class WorkerProcess(models.Model):
    """A process that executes runs. It renews its row every few seconds, and removes it when it ends."""

    #: The owner of its leases (AgentRun.lease_owner).
    name = models.CharField(max_length=128, primary_key=True)
    host = models.CharField(max_length=64)
    pid = models.PositiveIntegerField()
    #: The project whose remote runs it executes over HTTP. Null: a worker of this site.
    project = models.ForeignKey(Project, models.CASCADE, null=True, related_name="+")
    #: The agents whose durable functions it has, each with the versions of the code. Null: it has none.
    agents = models.JSONField(null=True)
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


class ChoreQuerySet(models.QuerySet["Chore"]):
    """Queries on periodic jobs."""

    def take(self, name: str, *, every: timedelta) -> bool:
        """Claim a job. Returns True for exactly one caller in each period, which then has to execute the job."""
        self.bulk_create([Chore(name=name, taken_at=Now() - 2 * every)], ignore_conflicts=True)
        # The guarded UPDATE decides the race: one caller changes the row.
        return bool(self.filter(name=name, taken_at__lt=Now() - every).update(taken_at=Now()))

    def keep(self, name: str) -> None:
        """Restart the period of a claimed job, so that no other caller claims it."""
        self.filter(name=name).update(taken_at=Now())

    def release(self, name: str, *, every: timedelta) -> None:
        """Release a claimed job, so that the next caller can claim it at once."""
        self.filter(name=name).update(taken_at=Now() - 2 * every)


class Chore(models.Model):
    """A periodic job, and its last claim."""

    name = models.CharField(max_length=32, primary_key=True)
    #: The time of the last claim, by the database's clock.
    taken_at = models.DateTimeField()

    objects = ChoreQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name
