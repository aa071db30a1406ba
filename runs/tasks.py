"""The Celery tasks that drive runs. A task carries a slice of one run; the claim in the database decides who has it.

So a message may be lost, late or doubled: see docs/decisions.
"""

from __future__ import annotations

from uuid import UUID

from celery import shared_task
from django.db import connections

from runs import chaos
from runs.lifecycle import wake
from runs.upkeep import retention
from runs.worker import startup, sweep, worker
from runs.worker.housekeeping import going_on

startup.connect_signals()


@shared_task(name=wake.ADVANCE)
def advance(run_id: str, step: int | None = None) -> None:
    """Claim a run and drive it until it waits, ends, or has used its slice while others wait.

    `step`: the number of its next step when the message was sent, for `celery inspect active`.
    """
    chaos.point("hint.received")
    try:
        worker.current().drive(UUID(run_id))
    finally:
        connections.close_all()


@shared_task(name=wake.SWEEP)
def sweep_runs(now: int = 0) -> None:
    """End waits, and send messages that are missing; `now`: also if another worker has just done so."""
    with going_on("the sweep"):
        sweep.sweep(now=bool(now))


@shared_task(name="runs.upkeep.retention")
def remove_expired() -> None:
    """Apply the retention; sent by Celery beat. Of all processes that check, one works, once a day."""
    for _ in retention.daily():
        pass
