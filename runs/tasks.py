"""Celery's door: a task says "there is work" and nothing more. Lost, the sweep finds the work.

Signals of Celery start and end the worker of the process.
"""

from __future__ import annotations

import gc
import threading
from typing import Any
from uuid import UUID

from celery import shared_task, signals
from django.conf import settings

from runs import chaos, environment
from runs.lifecycle.wake import expect_worker, send
from runs.upkeep import retention
from runs.worker import worker

#: Redis gives a hint to whoever has waited longest for one, so an idle worker is found after one or two.
MOST_PASSES = 3


@shared_task(name="runs.advance")
def advance(run_id: str, passed: int = 0) -> None:
    """Have this worker look for work; where it has no free slot, pass the hint on, for another one may have."""
    chaos.point("hint.received")
    run = UUID(run_id)
    if not worker.current().hear(run) and passed < MOST_PASSES:
        send(run, passed=passed + 1)


@shared_task(name="runs.sweep")
def sweep() -> None:
    """Beat's extra look, beside the one that each worker makes by itself."""
    worker.current().look()


@shared_task(name="runs.upkeep.retention")
def remove_expired() -> None:
    """Beat's look for runs that were kept for long enough; of all that look, one works, once a day."""
    for _ in retention.daily():
        pass


# worker_init comes before the broker is connected: sweeping must not depend on it.
@signals.worker_init.connect
def start(sender: Any, **_: Any) -> None:
    # Before the pool forks: children have what their parent has.
    environment.hide_secrets()
    # What is loaded by now lives as long as the process: the collector need not look at it again and again.
    gc.freeze()
    # A forking pool's parent drives nothing: its children each have a worker of their own.
    if "prefork" not in str(sender.pool_cls):
        expect_worker()
        worker.current().start_sweeping()


@signals.worker_process_init.connect
def start_child(**_: Any) -> None:
    worker.current().start_sweeping()


# Celery sends this from its handler of SIGTERM, under a lock that its holder cannot take again: a second SIGTERM that
# came while it did so stopped the worker for ever.
signals.worker_shutting_down.lock = threading.RLock()


@signals.worker_shutting_down.connect
def ask_to_stop(**_: Any) -> None:
    worker.leave_handler(lambda: worker.current().ask_to_stop())


@signals.worker_shutdown.connect
@signals.worker_process_shutdown.connect
def close(**_: Any) -> None:
    worker.current().close(settings.AGENTOPS_GRACE_S + 5)
