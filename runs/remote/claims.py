"""Claims of remote runs by processes elsewhere, and the renewal of their leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.agents.policies import Trigger
from runs.conversation import ancestry
from runs.engine import ending
from runs.engine.leases import Held, renew_unlocked
from runs.engine.policy_acts import Occasion
from runs.engine.results import Progress
from runs.lifecycle import transitions
from runs.models import AgentRun, Attempt, RunCommand, WorkerProcess
from runs.models.querysets import RunQuerySet
from runs.models.workers import REMOTE_OWNER
from runs.remote import holds, journal
from runs.remote.bodies import ClaimBody, HeartbeatBody
from runs.remote.holds import RemoteHold
from runs.remote.operations import named_commands
from runs.statuses import DEATHS
from timeline.models import LeaseLost

#: A run pauses after its processes have died this often in the same step. More often than for workers, because another
#: run of the process may be the cause.
MAX_DEATHS = 5
#: How many runs are tried at most for one claim.
CANDIDATES = 20
#: Seconds after which a process looks for runs, if no event of the stream came before.
POLL_S = 5.0


@dataclass(frozen=True)
class RemoteClaim:
    """A claimed run, and the first page of its journal."""

    run: AgentRun
    is_first: bool
    steps: list[dict[str, Any]]
    #: The offset of the next page; None without one.
    steps_after: int | None


def owner_of(project: Project, worker: str) -> str:
    """Return the owner of the leases of a process. Processes of other projects have other owners."""
    return f"{REMOTE_OWNER}{project.slug}:{worker}"[:128]


def claim(project: Project, body: ClaimBody) -> RemoteClaim | None:
    """Claim the first run that the process can execute; None without one.

    A run that may crash its processes pauses, as does one whose policy for deaths says so, or whose rules cannot be
    read: then the next one is tried.
    """
    for run_id in _candidates(project, body).values_list("pk", flat=True)[:CANDIDATES]:
        claimed = transitions.claim(run_id, owner_of(project, body.worker), careful=False, remote=True)
        if claimed is None:
            continue
        claimed.run.project = project
        try:
            if _is_released(claimed.run, is_first=claimed.is_first, died=claimed.died):
                continue
        except LeaseLost:
            # This request took so long that another process has claimed the run.
            continue
        return opened(claimed.run, is_first=claimed.is_first)
    return None


def opened(run: AgentRun, *, is_first: bool) -> RemoteClaim:
    """Return a claimed run with the first page of its journal."""
    steps, after = journal.page(run)
    return RemoteClaim(run, is_first, steps, after)


def document(claimed: RemoteClaim) -> dict[str, Any]:
    """Return a claimed run as its process reads it."""
    run = claimed.run
    config = run.agent_config
    return {
        "run": {
            "id": str(run.pk),
            "agent": config.get("agent_id"),
            "version": run.code_version,
            "prompt": _first_prompt(run),
            "title": run.title,
            "labels": run.labels,
            "session_id": run.session_id,
            "parent_run_id": str(run.parent_run_id) if run.parent_run_id else None,
            "resumed_from": str(run.resumed_from_id) if run.resumed_from_id else None,
            "root_run_id": str(run.root_run_id),
            "settings": config.get("settings") or {},
        },
        "epoch": run.lease_epoch,
        "lease_s": settings.AGENTOPS_LEASE_S,
        "renew_s": settings.AGENTOPS_RENEW_S,
        "is_first": claimed.is_first,
        "steps": claimed.steps,
        "steps_after": claimed.steps_after,
    }


def _first_prompt(run: AgentRun) -> Any:
    """Return the prompt with which the execution of the code began: that of the first run of the conversation.

    The message of a resume must not become the argument of a function that is executed again from its beginning.
    """
    first = ancestry.segments_of(run)[0].run_id
    return run.prompt if first == run.pk else AgentRun.objects.values_list("prompt", flat=True).get(pk=first)


def _candidates(project: Project, body: ClaimBody) -> RunQuerySet:
    """Return the runs that the process can execute, in the order of claiming."""
    offers = [Q(agent_config__agent_id=name, code_version__in=versions) for name, versions in body.agents.items()]
    runs = AgentRun.objects.remotely_runnable().filter(reduce(or_, offers), project=project, queue__in=body.queues)
    return runs.order_by("priority", "queued_at")


def _is_released(run: AgentRun, *, is_first: bool, died: bool) -> bool:
    """Close the model call of a lost process, and handle its death. Returns whether the run was released."""
    with transaction.atomic():
        # Locked, so that no command arrives until the end of the transaction.
        hold = holds.lock(run.project, run.pk, run.lease_epoch)
        if not is_first:
            ending.abandon_open_turn(hold.lease)
        if holds.is_released_by_rules(hold):
            return True
        if is_first or not died:
            return False
        in_step = Attempt.objects.filter(run=run, step_number=run.step_count + 1, end_reason__in=DEATHS)
        if (deaths := in_step.count()) >= MAX_DEATHS:
            return ending.pause_poisoned(hold, deaths, processes="processes") is Progress.RELEASED
        return is_released_by_policy(hold, "process")


def is_released_by_policy(hold: RemoteHold, executor: str) -> bool:
    """Follow a pending command, or apply the rule for deaths, after the death of an executor, such as "process"."""
    if holds.follow_commands(hold):
        return True
    where = f"in step {hold.run.step_count + 1}"
    return holds.apply_policy(hold, Occasion(Trigger.ON_DEAD, "worker_died", f"the {executor} died {where}", where))


def heartbeat(project: Project, body: HeartbeatBody) -> dict[str, Any]:
    """Renew the leases of a process, and return which are lost, and the pending commands of the others."""
    _announce(project, body)
    named = {UUID(run.id): run.epoch for run in body.runs}
    owned = AgentRun.objects.remote().filter(project=project, pk__in=list(named)).values_list("pk", flat=True)
    leases: list[Held] = [(run_id, named[run_id]) for run_id in owned]
    lost = {str(run_id) for run_id in named.keys() - {run_id for run_id, _ in leases}}
    if leases:
        lost |= {str(run_id) for run_id, _ in renew_unlocked(leases).lost}
    return {
        "lease_s": settings.AGENTOPS_LEASE_S,
        "renew_s": settings.AGENTOPS_RENEW_S,
        "poll_s": POLL_S,
        "lost": sorted(lost),
        "commands": _commands([run_id for run_id, _ in leases if str(run_id) not in lost]),
    }


def _commands(run_ids: Sequence[UUID]) -> Mapping[str, list[str]]:
    """Return the names of the pending commands of each run that has any."""
    pending = RunCommand.objects.filter(run__in=run_ids, applied_at=None).values_list("run", "type").distinct()
    types: dict[str, set[str]] = {}
    for run_id, kind in pending:
        types.setdefault(str(run_id), set()).add(kind)
    return {run_id: sorted(named_commands(kinds)) for run_id, kinds in types.items()}


def _announce(project: Project, body: HeartbeatBody) -> None:
    """Store that the process is alive, for the page of workers."""
    host, _, pid = body.worker.partition(":")
    number = pid.partition(":")[0]
    process = WorkerProcess(
        name=owner_of(project, body.worker),
        project=project,
        host=host[:64],
        pid=int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0,
        agents=body.agents,
        queues=body.queues,
        concurrency=body.concurrency,
        started_at=Now(),
        seen_at=Now(),
    )
    renewed = ["agents", "queues", "concurrency", "seen_at"]
    WorkerProcess.objects.bulk_create([process], update_conflicts=True, unique_fields=["name"], update_fields=renewed)
