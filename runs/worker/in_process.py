"""Drives one run in this process until it rests, for commands and tests that wait for it."""

from __future__ import annotations

import time
from uuid import UUID

from django.db.models import Q

from runs.engine.policy import due_resumes
from runs.lifecycle import approval_decisions, children, transitions
from runs.models import AgentRun
from runs.statuses import LIVE, RunStatus, WaitReason
from runs.worker.worker import Worker

LOOK_EVERY_S = 0.1
#: Waits that only a person ends.
FOR_PEOPLE = frozenset({WaitReason.APPROVAL, WaitReason.UNKNOWN_TOOL, WaitReason.INPUT})


def drive_to_rest(run_id: UUID, worker: Worker, *, timeout_s: float = float("inf")) -> AgentRun:
    """Return the run once it has ended, is paused or waits for a person, or after `timeout_s`.

    Drives it and its child runs, and no others; another worker may take them too. If a policy resumes the run, the run
    that continues it is returned.
    """
    until = time.monotonic() + timeout_s
    while True:
        run = _newest(run_id)
        if run.state not in LIVE or (run.state is RunStatus.WAITING and run.status_reason in FOR_PEOPLE):
            return run
        if time.monotonic() > until:
            return run
        if not any(worker.drive(ready) for ready in _ready(run)):
            time.sleep(LOOK_EVERY_S)
        transitions.end_waits()
        children.continue_parents()
        due_resumes.end_waits()
        approval_decisions.expire_due()


def _newest(run_id: UUID) -> AgentRun:
    """Return the run that continues this one, or the run itself."""
    run = AgentRun.objects.get(pk=run_id)
    while run.state is RunStatus.RESUMED:
        run = AgentRun.objects.get(resumed_from=run)
    return run


def _ready(run: AgentRun) -> list[UUID]:
    child = Q(parent_run__root_run=run.root_run_id) | Q(parent_run__parent_run__root_run=run.root_run_id)
    runs = AgentRun.objects.runnable().filter(Q(root_run=run.root_run_id) | child)
    return list(runs.values_list("pk", flat=True))
