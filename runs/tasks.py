"""The Celery tasks. A task only wakes a worker; if the task is lost, the sweep finds the run.

Signals of Celery start and stop the worker of the process.
"""

from __future__ import annotations

import gc
import os
import threading
from importlib import import_module
from typing import Any
from uuid import UUID

from celery import shared_task, signals
from django.conf import settings

from runs import chaos, environment
from runs.lifecycle.wake import expect_worker, send
from runs.upkeep import retention
from runs.worker import worker

#: Redis gives a task to the consumer that has waited longest, so an idle worker gets it after one or two.
MOST_PASSES = 3
#: The process that forks the children of this pool, where the pool forks.
_forking_parent: int | None = None


@shared_task(name="runs.advance")
def advance(run_id: str, passed: int = 0) -> None:
    """Let this worker look for ready runs. Without a free slot, pass the hint on to another worker."""
    chaos.point("hint.received")
    run = UUID(run_id)
    if not worker.current().on_hint(run) and passed < MOST_PASSES:
        send(run, passed=passed + 1)


@shared_task(name="runs.import_uploads")
def import_uploads() -> None:
    """Let this worker look for uploaded files; every worker also looks by itself."""
    worker.current().look_for_uploads()


@shared_task(name="runs.advance_flows")
def advance_flows() -> None:
    """Let this worker look for flow runs that are due; every worker also looks by itself."""
    worker.current().look_for_flows()


@shared_task(name="runs.sweep")
def sweep() -> None:
    """Let this worker sweep; sent by Celery beat, besides the sweep that each worker makes by itself."""
    worker.current().look()


@shared_task(name="runs.upkeep.retention")
def remove_expired() -> None:
    """Apply the retention; sent by Celery beat. Of all processes that check, one works, once a day."""
    for _ in retention.daily():
        pass


# worker_init comes before the broker is connected, on which sweeping must not depend.
@signals.worker_init.connect
def start(sender: Any, **_: Any) -> None:
    # Before the pool forks: children inherit this.
    environment.hide_secrets()
    _warm_up().load_worker()
    # What is loaded by now lives as long as the process, so the garbage collector can skip it.
    gc.freeze()
    # The parent of a forking pool executes no runs: each child has a worker of its own.
    if "prefork" in str(sender.pool_cls):
        global _forking_parent
        _forking_parent = os.getpid()
    else:
        expect_worker()
        _start_worker()


@signals.worker_process_init.connect
def start_child(**_: Any) -> None:
    # Celery has Linux kill a child whose parent dies, but only from a moment after the fork on. A parent that died in
    # that moment leaves a child that nobody ends.
    if _forking_parent is not None and os.getppid() != _forking_parent:
        os._exit(1)
    _start_worker()


def _start_worker() -> None:
    _warm_up().try_to_load_vendors()
    worker.current().start_sweeping()


def _warm_up() -> Any:
    # By name, because it belongs to the commands, another entry point.
    return import_module("runs.management.site.warm_up")


# Celery sends this from its SIGTERM handler, holding a lock that is not reentrant: a second SIGTERM during it would
# stop the worker for ever.
signals.worker_shutting_down.lock = threading.RLock()


@signals.worker_shutting_down.connect
def ask_to_stop(**_: Any) -> None:
    worker.leave_handler(lambda: worker.current().ask_to_stop())


@signals.worker_shutdown.connect
@signals.worker_process_shutdown.connect
def close(**_: Any) -> None:
    worker.current().close(settings.AGENTOPS_GRACE_S + 5)
