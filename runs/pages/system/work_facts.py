"""Health facts about workers, queues and clocks. Each comes from the same source that /metrics reads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.conf import settings

from agentops.base import database_clock
from runs.pages.system.shown_workers import ShownWorkers
from runs.pages.system.site_facts import Fact
from runs.queries import queue_state, recovery_times
from runs.queries.broker_state import WITHIN_S, BrokerState
from timeline.display import clean, format_duration

#: Seconds within which a worker should claim a run.
LONG_WAIT_S = 60
#: Maximum named agents.
MAX_NAMED = 10
#: Periods without a sweep after which the clock is considered down.
PERIODS = 3
NO_ANSWER = f"unknown: Redis has not answered within {WITHIN_S:g} s"


def facts(workers: ShownWorkers, broker: BrokerState | None) -> Iterator[Fact]:
    """Yield facts about waiting work and delays. `broker`: None without Redis, or if Redis is down."""
    queued, due, lapsed = queue_state.oldest_queued(), queue_state.oldest_due_wait(), queue_state.lapsed_count()
    is_stuck = _seconds(queued) > LONG_WAIT_S or _seconds(due) > LONG_WAIT_S
    start = "" if workers.count or not is_stuck else "Runs wait, and no worker is at work. Start one: agentops worker"
    yield Fact("Workers", str(workers), start)
    more = "Start more workers, or raise their concurrency." if workers.count else "Start a worker: agentops worker"
    yield _clock()
    yield _oldest_message(broker, more)
    yield Fact("Oldest queued run", _age(queued), more if _seconds(queued) > LONG_WAIT_S else "")
    yield Fact("Oldest due run", _age(due), more if _seconds(due) > LONG_WAIT_S else "")
    gone = "Another worker continues them within seconds. If none does, start one." if lapsed else ""
    yield Fact("Runs whose worker is gone", str(lapsed), gone)
    yield _recoveries()
    yield _place_waits()
    yield from _unserved_queues()


def _clock() -> Fact:
    """Return the time of the last sweep, which a clock triggers."""
    if not settings.REDIS_URL:
        return Fact("Clock", "runs in each worker, because there is no Redis", is_checked=False)
    last = queue_state.last_sweep()
    limit_s = PERIODS * max(settings.AGENTOPS_SWEEP_S, 1)
    is_late = last is None or _seconds(last) > limit_s
    text = "no sweep so far" if last is None else f"last sweep {format_duration(_seconds(last))} ago"
    return Fact("Clock", text, "No clock: start agentops worker --beat" if is_late else "")


def _oldest_message(broker: BrokerState | None, more: str) -> Fact:
    if not settings.REDIS_URL:
        return Fact("Oldest message", "unknown: the queues are in the memory of the workers", is_checked=False)
    if broker is None:
        return Fact("Oldest message", NO_ANSWER, "Look at the Redis server and REDIS_URL.")
    since = broker.oldest_sent_at
    return Fact("Oldest message", _age(since), more if _seconds(since) > LONG_WAIT_S else "")


def _recoveries() -> Fact:
    name, times = "Time until a run of a dead worker continues", recovery_times.of_last_day()
    if times is None:
        return Fact(name, "no worker has died in the last 24 hours", is_checked=False)
    half, worst = format_duration(times.median_s), format_duration(times.worst_s)
    runs = f"{times.runs} run{'' if times.runs == 1 else 's'}"
    return Fact(name, f"median {half}, longest {worst} ({runs} in the last 24 hours)", is_checked=False)


def _place_waits() -> Fact:
    waits = queue_state.without_place()
    named = ", ".join(f"{clean(name)} ({number})" for name, number in waits.most_common(MAX_NAMED))
    rest = f" and {len(waits) - MAX_NAMED} more" if len(waits) > MAX_NAMED else ""
    text = f"{waits.total()}: {named}{rest}" if waits else "0"
    return Fact("Runs that wait for a place", text, is_checked=False)


def _unserved_queues() -> Iterator[Fact]:
    """Yield the queues that no worker serves."""
    queued = queue_state.queued_counts()
    for queue in sorted(queue_state.unserved(queued)):
        count = queued[queue]
        waiting = f"{count} run{'' if count == 1 else 's'} wait{'s' if count == 1 else ''}, and no worker serves it"
        yield Fact(f"Queue {queue}", waiting, f"Start a worker for {queue}, or give its agents another queue.")


def _age(since: datetime | None) -> str:
    return "none" if since is None else f"waits for {format_duration(_seconds(since))}"


def _seconds(since: datetime | None) -> float:
    return 0.0 if since is None else database_clock.seconds_between(since, database_clock.now())
