"""Concurrency limits of agents and projects, and queues of agents.

A limit is a number of places for running runs. A run takes a place while its status is `running`, and none while it
waits, so the children of a waiting parent can use the parent's place. The claim enforces the limits. A run that gets no
place stays queued, and is woken when a place is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agentops.accounts.models import Project
from agentops.base.database.statements import after_commit
from runs.lifecycle.wake import wake
from runs.models import Agent, AgentRun, WorkerProcess
from runs.models.querysets import RunQuerySet
from runs.statuses import RunStatus

#: Maximum number of runs that are woken when their queue changes. The sweep finds the others.
MAX_WOKEN = 100


def has_place(run: AgentRun) -> bool:
    """Whether a queued run may start now, by the limits of its agent and its project. Without limits, sends no query.

    Called in the transaction that starts the run, which has locked the run. Then this locks the agent and the project
    if they have a limit, so that the second of two concurrent claims counts the run of the first.
    """
    running = AgentRun.with_removed.running().filter(project=run.project_id)
    if run.agent is not None and not _has_place(run.agent, running.filter(agent=run.agent_id)):
        return False
    return _has_place(run.project, running)


def _has_place(owner: Agent | Project, running: RunQuerySet) -> bool:
    """Whether fewer than `max_running` runs of the owner are running. Locks the owner if it has a limit."""
    if owner.max_running is None:
        return True
    rows = type(owner).objects.select_for_update(no_key=True).filter(pk=owner.pk)
    limit = rows.values_list("max_running", flat=True).first()
    return limit is None or running.count() < limit


def do_others_wait(run: AgentRun) -> bool:
    """Whether a run waits for a worker of the queue of this run, or for its place."""
    waiting = AgentRun.objects.runnable().filter(queue=run.queue)
    if waiting.filter(is_packaged=False).exists() or is_awaited(run):
        return True
    packaged = waiting.filter(is_packaged=True)
    return packaged.exists() and packaged.with_code(WorkerProcess.objects.packaged_agents()).exists()


def is_awaited(run: AgentRun) -> bool:
    """Whether a queued run waits for the place of this running one. Without limits, sends no query.

    Returns False if a place is free. If it is known which queues have workers, only runs in these queues count, and of
    agents of packages, only those whose code a worker has.
    """
    running = AgentRun.with_removed.running().filter(project=run.project_id)
    queued = AgentRun.objects.native().filter(project=run.project_id, status=RunStatus.QUEUED)
    if served := WorkerProcess.objects.served_queues() if _has_limit(run) else None:
        queued = queued.filter(queue__in=served).with_code(WorkerProcess.objects.packaged_agents())
    of_agent = run.agent is not None and _is_full(run.agent, running.filter(agent=run.agent_id))
    return (of_agent and queued.filter(agent=run.agent_id).exists()) or (
        _is_full(run.project, running) and queued.exists()
    )


def _has_limit(run: AgentRun) -> bool:
    return run.project.max_running is not None or (run.agent is not None and run.agent.max_running is not None)


def _is_full(owner: Agent | Project, running: RunQuerySet) -> bool:
    """Whether all places of the owner are taken. Locks nothing; False without a limit."""
    return owner.max_running is not None and running.count() >= owner.max_running


def leave(run: AgentRun) -> None:
    """Wake a run for each place that this run releases, after the commit. Without limits, does nothing."""
    if run.is_recorded:
        return
    if run.agent is not None and run.agent.max_running is not None:
        after_commit(wake_next, run.project_id, run.agent_id)
    if run.project.max_running is not None:
        after_commit(wake_next, run.project_id)


def wake_next(project_id: UUID, agent_id: UUID | None = None) -> None:
    """Wake the first run that can take a free place, by priority and then by waiting time.

    If it is known which queues have workers, only a run in these queues is woken. Uses the index `run_for_place`.
    """
    queued = AgentRun.objects.runnable().filter(project=project_id, status=RunStatus.QUEUED)
    if served := WorkerProcess.objects.served_queues():
        queued = queued.filter(queue__in=served).with_code(WorkerProcess.objects.packaged_agents())
    if agent_id is not None:
        queued = queued.filter(agent=agent_id)
    run = queued.order_by("priority", "queued_at").first()
    if run is not None:
        wake(run)


def follow(project: Project, slug: str, placement: Mapping[str, Any]) -> None:
    """Give the unended runs of an agent its new queue and priority.

    After the commit, at most `MAX_WOKEN` queued ones are woken. Only the fields in `placement` change. Does nothing if
    the agent does not exist, or has these values. Called in the transaction that changes the agent, before its row is
    locked.
    """
    changes = {name: placement[name] for name in ("queue", "priority") if name in placement}
    agent = Agent.objects.filter(project=project, slug=slug).exclude(**changes).only("pk").first() if changes else None
    if agent is None:
        return
    # Filtered by completed_at for the index `run_unended`. Locked in the same order as parents and their children.
    unended = AgentRun.objects.unended().filter(agent=agent, completed_at=None).order_by("pk")
    rows = list(unended.select_for_update(no_key=True, of=("self",)).values_list("pk", "status"))
    AgentRun.objects.filter(pk__in=[run_id for run_id, _ in rows]).update(**changes)
    queued = AgentRun.objects.filter(pk__in=[run_id for run_id, status in rows if status == RunStatus.QUEUED])
    for run in queued.order_by("queued_at")[:MAX_WOKEN]:
        wake(run)
