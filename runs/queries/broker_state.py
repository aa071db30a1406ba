"""What waits in Redis, for metrics and pages: read within a second, or not at all.

Without Redis the queues are in the memory of each worker, where no other process can count them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimedOut
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Min
from django.utils.module_loading import import_string

from agentops.base.broker import backlog
from agentops.base.broker.queues import UPKEEP
from runs.models import Agent, AgentRun, WorkerProcess
from runs.queries.queue_state import SENT_AT
from runs.statuses import RunStatus

log = logging.getLogger(__name__)
#: Seconds after which Redis counts as not answering.
WITHIN_S = 1.0
#: Queues whose messages are counted, in the order of their names.
MAX_QUEUES = 100
#: Messages at the head of a queue that are looked at, and of all queues. Some may name runs that are no longer queued.
HEAD, MAX_HEADS = 20, 900
#: One thread: while Redis hangs, the next readers wait for it and time out, and no threads accumulate.
_thread = ThreadPoolExecutor(1, thread_name_prefix="backlog")


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The messages in Redis."""

    #: Messages by queue and priority; each queue of the site, also empty ones.
    lengths: Mapping[str, Mapping[int, int]]
    #: When the oldest message of a run that is still queued was sent, by the database's clock.
    oldest_sent_at: datetime | None


def read() -> BrokerState | None:
    """Return what waits in Redis. None if it did not answer within `WITHIN_S`. At most three queries."""
    # Not part of the second: the first import of Celery in a process takes half of it.
    import_string(backlog.CELERY_APP)
    future = _thread.submit(_read, _queues())
    try:
        lengths, heads = future.result(WITHIN_S)
    except TimedOut:
        future.cancel()
        return None
    except Exception as error:  # whatever a broken broker raises
        log.warning("the queues in Redis cannot be read: %s", type(error).__name__)
        return None
    return BrokerState(lengths, _oldest_sent_at(heads) if heads else None)


def _queues() -> list[str]:
    """Return the queues that an agent, a run or a living worker names, and that of upkeep."""
    of_runs = AgentRun.objects.claimable().order_by().values_list("queue", flat=True)
    named = set(Agent.objects.order_by().values_list("queue", flat=True).union(of_runs))
    return [*sorted(named | WorkerProcess.objects.served_queues())[:MAX_QUEUES], UPKEEP]


def _read(queues: Iterable[str]) -> tuple[dict[str, dict[int, int]], list[UUID]]:
    lengths = {queue: backlog.lengths(queue) for queue in queues}
    # Those of upkeep name no runs.
    parts = [(queue, priority) for queue in lengths if queue != UPKEEP for priority in lengths[queue]]
    heads = [run_id for part in parts for run_id in backlog.oldest(*part, HEAD)]
    return lengths, heads[:MAX_HEADS]


def _oldest_sent_at(heads: list[UUID]) -> datetime | None:
    queued = AgentRun.objects.native().filter(pk__in=heads, status=RunStatus.QUEUED)
    oldest: datetime | None = queued.aggregate(at=Min(SENT_AT))["at"]
    return oldest
