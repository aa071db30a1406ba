"""Drives one run in this process until it rests, for commands and tests that wait for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

from django.db.models import Q

from runs.models import AgentRun
from runs.statuses import LIVE, RunStatus, WaitReason
from runs.worker.sweep import end_waits
from runs.worker.worker import Worker

LOOK_EVERY_S = 0.1
#: Waits that only a person ends.
FOR_PEOPLE = frozenset({WaitReason.APPROVAL, WaitReason.UNKNOWN_TOOL, WaitReason.INPUT})


def drive_to_rest(run_id: UUID, worker: Worker, *, timeout_s: float = float("inf")) -> AgentRun:
    """Return the run once it has ended, is paused or waits for a person, or after `timeout_s`.

    Drives only this run and its child runs; another worker may take them too. If a policy resumes the run, returns the
    run that continues it.
    """
    until = time.monotonic() + timeout_s
    while True:
        run = _newest(run_id)
        if is_at_rest(run) or time.monotonic() > until:
            return run
        if not any(worker.drive(ready) for ready in ready_runs([run.root_run_id])):
            time.sleep(LOOK_EVERY_S)
        end_waits()


def is_at_rest(run: AgentRun) -> bool:
    """Whether a run has ended, is paused or waits for a person."""
    return run.state not in LIVE or (run.state is RunStatus.WAITING and run.status_reason in FOR_PEOPLE)


def advance_ready(worker: Worker) -> int:
    """End waits that are over, and drive each ready run, in order. Returns how many were driven."""
    end_waits()
    return sum(worker.drive(run_id) for run_id in list(AgentRun.objects.runnable().values_list("pk", flat=True)))


def _newest(run_id: UUID) -> AgentRun:
    """Return the run that continues this one, or the run itself."""
    run = AgentRun.objects.get(pk=run_id)
    while run.state is RunStatus.RESUMED:
        run = AgentRun.objects.get(resumed_from=run)
    return run


def ready_runs(lineages: Sequence[UUID]) -> list[UUID]:
    """Return the runs of these lineages that a worker can take, with their child runs."""
    child = Q(parent_run__root_run__in=lineages) | Q(parent_run__parent_run__root_run__in=lineages)
    runs = AgentRun.objects.runnable().filter(Q(root_run__in=lineages) | child)
    return list(runs.values_list("pk", flat=True))
