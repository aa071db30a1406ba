"""Celery's door: a task says "look at run X" and nothing more. Lost, the sweep finds it; doubled, it leaves.

May import the engine. Signals of Celery start and end the worker of the process.
"""

from __future__ import annotations

import gc
from typing import Any
from uuid import UUID

from celery import shared_task, signals
from django.conf import settings

from runs import chaos, retention
from runs.engine import worker


@shared_task(name="runs.advance")
def advance(run_id: str) -> None:
    """Drive a run for a slice, if it is runnable and this worker has a slot."""
    chaos.point("CP01")
    worker.current().drive(UUID(run_id))


@shared_task(name="runs.sweep")
def sweep() -> None:
    """Beat's extra look, beside the one that each worker makes by itself."""
    worker.current().sweep_once()


@shared_task(name="runs.retention")
def remove_expired() -> None:
    """Beat's look for runs that were kept for long enough; of all that look, one works, once a day."""
    for _ in retention.daily():
        pass


# worker_init comes before the broker is connected: sweeping must not depend on it.
@signals.worker_init.connect
def start(sender: Any, **_: Any) -> None:
    # What is loaded by now lives as long as the process: the collector need not look at it again and again.
    gc.freeze()
    # A forking pool's parent drives nothing: its children each have a worker of their own.
    if "prefork" not in str(sender.pool_cls):
        worker.current().start_sweeping()


@signals.worker_process_init.connect
def start_child(**_: Any) -> None:
    worker.current().start_sweeping()


@signals.worker_shutting_down.connect
def ask_to_stop(**_: Any) -> None:
    worker.current().ask_to_stop()


@signals.worker_shutdown.connect
@signals.worker_process_shutdown.connect
def close(**_: Any) -> None:
    worker.current().close(settings.AGENTOPS_GRACE_S + 5)
