"""The messages waiting in Redis, for metrics and pages. A read takes at most one second.

Without Redis, the queues are in the memory of each worker, and other processes cannot count them.
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
#: Maximum queues whose messages are counted, in the order of their names.
MAX_QUEUES = 100
#: Messages inspected at the head of each queue, and in total. Some may name runs that are no longer queued.
HEAD, MAX_HEADS = 20, 900
#: One thread: while Redis hangs, other readers wait for it and time out, and no threads accumulate.
_thread = ThreadPoolExecutor(1, thread_name_prefix="backlog")


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The messages in Redis."""

    #: Messages by queue and priority, for each queue of the site, including empty queues.
    lengths: Mapping[str, Mapping[int, int]]
    #: When the oldest message of a run that is still queued was sent, by the database's clock.
    oldest_sent_at: datetime | None


def read() -> BrokerState | None:
    """Return the waiting messages; None if Redis did not answer within `WITHIN_S`. At most three queries."""
    # Excluded from the time limit: the first import of Celery in a process takes half a second.
    import_string(backlog.CELERY_APP)
    future = _thread.submit(_read, _queues())
    try:
        lengths, heads = future.result(WITHIN_S)
    except TimedOut:
        future.cancel()
        return None
    except Exception as error:  # a broken broker can raise any exception
        log.warning("the queues in Redis cannot be read: %s", type(error).__name__)
        return None
    return BrokerState(lengths, _oldest_sent_at(heads) if heads else None)


def _queues() -> list[str]:
    """Return the queues that an agent, a run or a living worker names, and the upkeep queue."""
    of_runs = AgentRun.objects.claimable().order_by().values_list("queue", flat=True)
    named = set(Agent.objects.order_by().values_list("queue", flat=True).union(of_runs))
    return [*sorted(named | WorkerProcess.objects.served_queues())[:MAX_QUEUES], UPKEEP]


def _read(queues: Iterable[str]) -> tuple[dict[str, dict[int, int]], list[UUID]]:
    lengths = {queue: backlog.lengths(queue) for queue in queues}
    # Upkeep messages name no runs.
    parts = [(queue, priority) for queue in lengths if queue != UPKEEP for priority in lengths[queue]]
    heads = [run_id for part in parts for run_id in backlog.oldest(*part, HEAD)]
    return lengths, heads[:MAX_HEADS]


def _oldest_sent_at(heads: list[UUID]) -> datetime | None:
    queued = AgentRun.objects.native().filter(pk__in=heads, status=RunStatus.QUEUED)
    oldest: datetime | None = queued.aggregate(at=Min(SENT_AT))["at"]
    return oldest
