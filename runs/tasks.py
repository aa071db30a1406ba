"""The Celery tasks that drive runs, each for a slice of one run.

The claim in the database decides which worker drives a run, so a message may be lost, late or duplicated: see
docs/decisions.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from celery import shared_task
from django.db import connections

from runs import chaos
from runs.actions.schedules import starting
from runs.lifecycle import wake
from runs.worker import startup, sweep, worker
from runs.worker import upkeep as upkeep  # noqa: PLC0414 - registers its tasks
from runs.worker.upkeep_call import logged_errors

startup.connect_signals()


@shared_task(name=wake.ADVANCE, bind=True)
def advance(self: Any, run_id: str, step: int | None = None, epoch: int | None = None) -> None:
    """Claim a run and drive it until it waits, ends, or has used its slice while others wait.

    `step`: the run's next step when the message was sent, for `celery inspect active`. `epoch`: the number of claims of
    the run at that time. Of two messages with the same epoch, the second one does nothing. Otherwise a run
    with two messages would get two slices in each round, because each slice ends with the next message. A message in a
    queue that the run has left does nothing either.
    """
    chaos.point("hint.received")
    driver = worker.current()
    queue = (self.request.delivery_info or {}).get("routing_key")
    of_queue = {"queue": queue} if queue else {}
    expected = of_queue if epoch is None else {**of_queue, "lease_epoch": epoch}
    try:
        # While the broker does not answer, no message can be sent for a run whose slice is over: continue with it here.
        while driver.drive(UUID(run_id), expected) and wake.is_broker_away():
            expected = of_queue
    finally:
        connections.close_all()


@shared_task(name=wake.SWEEP)
def sweep_runs(now: int = 0) -> None:
    """End waits that are over, and send missing messages. `now`: do so even if another worker has just done so."""
    with logged_errors("the sweep"):
        sweep.sweep(now=bool(now))


@shared_task(name="runs.start_scheduled")
def start_scheduled(schedule_id: str) -> None:
    """Decide about the due times of a schedule that have passed. The clock sends this task at each due time."""
    with logged_errors("the start of a schedule"):
        starting.start_due(UUID(schedule_id))
