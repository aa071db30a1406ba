"""Send Celery messages: a run is ready, or there is other work.

With Redis any worker may get a message. Without, the broker is in memory and reaches only a worker of this process. A
message that is lost costs time and nothing else: the sweep and the clock find what no message asked for.
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
#: Seconds after which a request for upkeep is dropped: the clock sends the same task more often.
EXPIRES_S = 60.0
#: Loaded with the first message: importing Celery takes half a second, and most commands send none.
CELERY_APP = "agentops.celery.app"

_worker_is_here = False
#: Queues in memory, each with a priority of messages, for which more runs wait than it holds. The sweep fills them.
_crowded: set[tuple[str, int]] = set()
#: Whether the broker has not taken the last message of this process.
_broker_is_away = False


def expect_worker() -> None:
    """Send messages from now on, also without Redis: this process has a worker."""
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
    # Without a broker nobody would get it: the sweep of a worker on this database finds the run.
    if not can_send():
        return
    if (run.queue, _priority(run)) in _crowded:
        # At the end of the queue it would be before runs that have waited longer, and are not in it.
        sweep_now()
    elif send(run):
        chaos.point("command.hint_sent")


def _priority(run: AgentRun) -> int:
    return run.priority + 1


def leave_to_sweep(queue: str, priority: int, is_crowded: bool) -> None:
    """Let only the sweep send messages to a queue in memory, while more runs wait for it than it holds."""
    (_crowded.add if is_crowded else _crowded.discard)((queue, priority))


def send(run: AgentRun, *, priority: int | None = None) -> bool:
    """Send the message that lets a worker claim a run, with that of the run or another priority. Never raises.

    Returns whether the broker has it.
    """
    name = str(run.agent_config.get("agent_id") or "")
    return _send_task(
        ADVANCE,
        args=[str(run.pk)],
        kwargs={"step": run.step_count + 1, "epoch": run.lease_epoch},
        queue=run.queue,
        priority=_priority(run) if priority is None else priority,
        # What monitors show. Few different ones, because Celery counts by it.
        shadow=f"{ADVANCE} {name}".strip(),
    )


# --- Upkeep: queues and priorities are CELERY_TASK_ROUTES ---


def wake_sweep() -> None:
    """Let a worker look now for waits that have ended, once the current transaction is committed. Never raises."""
    after_commit(_send_sweep)


def sweep_now() -> None:
    """Let a worker look now for waits that have ended, whatever becomes of the current transaction. Never raises."""
    ask_now(SWEEP)


def wake_importer() -> None:
    """Wake a worker to import uploaded files, once the current transaction is committed. Never raises."""
    after_commit(_send_import)


def wake_flows() -> None:
    """Wake a worker to look at flow runs, once the current transaction is committed. Never raises."""
    after_commit(_send_flows)


def ask_for(task: str, *, countdown_s: float = 0.0) -> None:
    """Ask a worker for a task of upkeep, `countdown_s` seconds after the commit of this transaction. Never raises.

    Many requests of a process become one message a second. The last of them is answered too.
    """
    after_commit(ask_now, task, countdown_s=countdown_s)


def ask_now(task: str, *, countdown_s: float = 0.0) -> None:
    """Ask a worker for a task of upkeep, whatever becomes of the current transaction. Uses no connection."""
    if can_send():
        _requests.request(task, countdown_s)


def on_change(channel: str, _: str) -> None:
    """Ask for what follows the log: the search index and the sinks. A listener of timeline.notify."""
    if channel.startswith("log:"):
        ask_now(INDEX)
        ask_now(EXPORT)


def on_notification(created: bool, **_: Any) -> None:
    """Ask for the mail about a new notification. A receiver of `post_save`."""
    if created and settings.AGENTOPS_EMAIL:
        ask_for(SEND_MAIL)


def on_project(update_fields: frozenset[str] | None, **_: Any) -> None:
    """Ask for the deletion of a project that was hidden. A receiver of `post_save`."""
    if update_fields and "removed_at" in update_fields:
        ask_for(DELETE_PROJECTS)


def _send_request(task: str) -> None:
    # Sweeps are claimed once a period, but for those that are asked for.
    _send_task(task, expires=EXPIRES_S, kwargs={"now": 1} if task == SWEEP else {})


_requests = Debounce(_send_request)


def _after_fork() -> None:
    global _requests
    _requests = Debounce(_send_request)


def flush_requests() -> None:
    """Send at once the requests for upkeep that wait for the end of their second."""
    # Nobody reads the messages in memory of a process that ends.
    if settings.configured and settings.REDIS_URL:
        _requests.flush()


# A forked child has neither the thread nor, perhaps, a free lock.
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
    except Exception as error:  # whatever a broken broker raises; the sweep and the clock find what there is to do
        run_id = next(iter(options.get("args", ())), None)
        extra = {"run_id": run_id} if run_id else {}
        log.warning("the message %s was not sent (%s)", name, type(error).__name__, extra=extra)
        _broker_is_away = True
        return False
    _broker_is_away = False
    return True
