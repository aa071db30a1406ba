"""Send Celery messages: a run is ready, or there is other work.

With Redis any worker may get a message. Without it, the broker is in memory and reaches only a worker of this process.
A lost message only costs time: the sweep and the clock find the same work.
"""

from __future__ import annotations

import atexit
import logging
import os
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from agentops.base.database.after_commit import after_commit
from runs import chaos
from runs.lifecycle.debounce import Debounce
from runs.models import AgentRun

log = logging.getLogger(__name__)
ADVANCE, SWEEP = "runs.advance", "runs.sweep"
IMPORT, FLOWS = "runs.import_uploads", "runs.advance_flows"
SETTLE, EXPORT, INDEX = "runs.settle_traces", "runs.export_events", "runs.index_texts"
SEND_ALERTS, SEND_MAIL, DELETE_PROJECTS = "runs.send_alerts", "runs.send_mail", "runs.delete_projects"
#: Seconds after which an upkeep request is dropped: the clock sends the same task more often.
EXPIRES_S = 60.0
#: Imported with the first message: importing Celery takes half a second, and most commands send no message.
CELERY_APP = "agentops.celery.app"

_worker_is_here = False
#: Queues in memory, each with a message priority, for which more runs wait than the queue can hold. The sweep fills
#: them.
_crowded: set[tuple[str, int]] = set()
#: Whether the last message of this process failed because the broker was unavailable.
_broker_is_away = False


def expect_worker() -> None:
    """Send messages from now on, even without Redis, because this process has a worker."""
    global _worker_is_here
    _worker_is_here = True


def can_send() -> bool:
    """Whether a message of this process can reach a worker."""
    return bool(settings.REDIS_URL) or _worker_is_here


def is_broker_away() -> bool:
    """Whether the last message of this process could not be sent."""
    return _broker_is_away


# --- Runs ---


def wake(run: AgentRun) -> None:
    """Send the message of a queued run after the current transaction has committed. Never raises."""
    after_commit(_wake, run)


def _wake(run: AgentRun) -> None:
    chaos.point("command.committed")
    # Without a broker no worker would receive it: the sweep of a worker on this database finds the run.
    if not can_send():
        return
    if (run.queue, _priority(run)) in _crowded:
        # At the end of the queue it would overtake runs that have waited longer and are not in the queue.
        sweep_now()
    elif send(run):
        chaos.point("command.hint_sent")


def _priority(run: AgentRun) -> int:
    return run.priority + 1


def leave_to_sweep(queue: str, priority: int, is_crowded: bool) -> None:
    """Leave a queue in memory to the sweep while more runs wait for it than it can hold."""
    (_crowded.add if is_crowded else _crowded.discard)((queue, priority))


def send(run: AgentRun, *, priority: int | None = None) -> bool:
    """Send the message that makes a worker claim a run, with the run's priority or another. Never raises.

    Returns whether the broker accepted it.
    """
    name = str(run.agent_config.get("agent_id") or "")
    return _send_task(
        ADVANCE,
        args=[str(run.pk)],
        kwargs={"step": run.step_count + 1, "epoch": run.lease_epoch},
        queue=run.queue,
        priority=_priority(run) if priority is None else priority,
        # The name displayed by monitors. Few different values, because Celery counts by it.
        shadow=f"{ADVANCE} {name}".strip(),
    )


# --- Upkeep: queues and priorities are CELERY_TASK_ROUTES ---


def wake_sweep() -> None:
    """Request a sweep for ended waits, after the commit of the current transaction. Never raises."""
    after_commit(_send_sweep)


def sweep_now() -> None:
    """Request a sweep for ended waits now, regardless of the current transaction. Never raises."""
    ask_now(SWEEP)


def wake_importer() -> None:
    """Wake a worker to import uploaded files, after the commit of the current transaction. Never raises."""
    after_commit(_send_import)


def wake_flows() -> None:
    """Wake a worker to process flow runs, after the commit of the current transaction. Never raises."""
    after_commit(_send_flows)


def ask_for(task: str, *, countdown_s: float = 0.0) -> None:
    """Request an upkeep task from a worker, `countdown_s` seconds after the commit of this transaction. Never raises.

    A process merges its requests into one message a second, including the last request.
    """
    after_commit(ask_now, task, countdown_s=countdown_s)


def ask_now(task: str, *, countdown_s: float = 0.0) -> None:
    """Request an upkeep task from a worker, regardless of the current transaction. Uses no database connection."""
    if can_send():
        _requests.request(task, countdown_s)


def on_change(channel: str, _: str) -> None:
    """Request the tasks that follow the log: the search index and the sinks. A listener of timeline.notify."""
    if channel.startswith("log:"):
        ask_now(INDEX)
        ask_now(EXPORT)


def on_notification(created: bool, **_: Any) -> None:
    """Request the mail about a new notification. A receiver of `post_save`."""
    if created and settings.AGENTOPS_EMAIL:
        ask_for(SEND_MAIL)


def on_project(update_fields: frozenset[str] | None, **_: Any) -> None:
    """Request the deletion of a project that was hidden. A receiver of `post_save`."""
    if update_fields and "removed_at" in update_fields:
        ask_for(DELETE_PROJECTS)


def _send_request(task: str) -> None:
    # Sweeps are claimed once a period, except for requested ones.
    _send_task(task, expires=EXPIRES_S, kwargs={"now": 1} if task == SWEEP else {})


_requests = Debounce(_send_request)


def _after_fork() -> None:
    global _requests
    _requests = Debounce(_send_request)


def flush_requests() -> None:
    """Send the upkeep requests at once that wait for the end of their second."""
    # The messages in memory of an ending process are lost.
    if settings.configured and settings.REDIS_URL:
        _requests.flush()


# A forked child does not have the thread, and the lock may be held.
os.register_at_fork(after_in_child=_after_fork)
atexit.register(flush_requests)


def _send_sweep() -> None:
    chaos.point("command.committed")
    sweep_now()


def _send_flows() -> None:
    chaos.point("flow.hint_due")
    if can_send():
        _send_task(FLOWS)


def _send_import() -> None:
    if can_send():
        _send_task(IMPORT)


def _send_task(name: str, **options: Any) -> bool:
    global _broker_is_away
    try:
        import_string(CELERY_APP).send_task(name, retry=False, **options)
    except Exception as error:  # any exception of a broken broker; the sweep and the clock find the work
        run_id = next(iter(options.get("args", ())), None)
        extra = {"run_id": run_id} if run_id else {}
        log.warning("the message %s was not sent (%s)", name, type(error).__name__, extra=extra)
        _broker_is_away = True
        return False
    _broker_is_away = False
    return True
