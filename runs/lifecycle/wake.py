"""Send Celery messages: a run is ready, a file was uploaded, a flow run is due.

With Redis any worker may get a message. Without, the broker is in memory and reaches only a worker of this process. A
message that is lost costs time and nothing else: the sweep finds what nobody was told of.
"""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from agentops.broker.queues import FIRST, UPKEEP
from runs import chaos
from runs.models import AgentRun
from timeline.bulk.after_commit import after_commit

log = logging.getLogger(__name__)
ADVANCE = "runs.advance"
IMPORT = "runs.import_uploads"
FLOWS = "runs.advance_flows"
SWEEP = "runs.sweep"
#: Loaded with the first message: importing Celery takes half a second, and most commands send none.
CELERY_APP = "agentops.celery.app"

_worker_is_here = False


def expect_worker() -> None:
    """Send messages from now on, also without Redis: this process has a worker."""
    global _worker_is_here
    _worker_is_here = True


def wake(run: AgentRun) -> None:
    """Send the message of a queued run after the current transaction has committed. Never raises."""
    after_commit(_wake, run)


def wake_sweep() -> None:
    """Let a worker look now for waits that have ended, once the current transaction is committed. Never raises."""
    after_commit(_send_sweep)


def wake_importer() -> None:
    """Wake a worker to import uploaded files, once the current transaction is committed. Never raises."""
    after_commit(_send_import)


def wake_flows() -> None:
    """Wake a worker to look at flow runs, once the current transaction is committed. Never raises."""
    after_commit(_send_flows)


def _wake(run: AgentRun) -> None:
    chaos.point("command.committed")
    # Without a broker nobody would get it: the sweep of a worker on this database finds the run.
    if can_send() and send(run):
        chaos.point("command.hint_sent")


def send(run: AgentRun, *, first: bool = False) -> bool:
    """Send the message that lets a worker claim a run. `first`: before all others. Never raises.

    Returns whether the broker has it.
    """
    name = str(run.agent_config.get("agent_id") or "")
    return _send_task(
        ADVANCE,
        args=[str(run.pk)],
        # For `celery inspect active`.
        kwargs={"step": run.step_count + 1},
        queue=run.queue,
        priority=FIRST if first else run.priority + 1,
        # What monitors show. Few different ones, because Celery counts by it.
        shadow=f"{ADVANCE} {name}".strip(),
    )


def can_send() -> bool:
    """Whether a message of this process can reach a worker."""
    return bool(settings.REDIS_URL) or _worker_is_here


def _send_sweep() -> None:
    chaos.point("command.committed")
    if can_send():
        _send_task(SWEEP, kwargs={"now": 1}, queue=UPKEEP, priority=FIRST)


def _send_flows() -> None:
    chaos.point("flow.hint_due")
    if can_send():
        _send_task(FLOWS, queue=UPKEEP, priority=FIRST)


def _send_import() -> None:
    if can_send():
        _send_task(IMPORT, queue=UPKEEP)


def _send_task(name: str, **options: Any) -> bool:
    try:
        import_string(CELERY_APP).send_task(name, retry=False, **options)
    except Exception as error:  # whatever a broken broker raises; the sweep finds what there is to do
        run_id = next(iter(options.get("args", ())), None)
        extra = {"run_id": run_id} if run_id else {}
        log.warning("the message %s was not sent (%s)", name, type(error).__name__, extra=extra)
        return False
    return True
