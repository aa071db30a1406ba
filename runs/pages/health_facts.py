"""Facts about the health of the site, its workers, queues and clock, and the tables of workers and queues.

/readyz and /metrics read the same sources.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import django
from django.conf import settings
from django.core.checks import WARNING, run_checks
from django.db import connection
from django.template.defaultfilters import filesizeformat

from agentops.base import database_clock
from agentops.base.backing_services import UPKEEP
from agentops.base.http import health
from runs.lifecycle.suspicion import CHILD_SEPARATOR
from runs.models import WorkerProcess
from runs.queries import queue_state, remote_processes
from runs.queries.queue_state import WITHIN_S, BrokerState
from timeline.display import clean, format_duration, format_ms
from timeline.live.hub import open_streams

#: Check of /readyz → its title, and what to do if it fails.
READY_TEXTS = {
    "database": ("Database", "Look at the database server and DATABASE_URL. Nothing works without it."),
    "libraries": ("Libraries of models", "See the log of the web process."),
    "migrations": ("Migrations", "Run agentops migrate, then restart all processes."),
    "disk": ("Free disk", "Delete old runs with agentops retention, or enlarge the disk."),
    "broker": (
        "Broker",
        "Look at the Redis server and REDIS_URL. Until then, workers begin nothing new, and pages react more slowly.",
    ),
}


@dataclass(frozen=True)
class Fact:
    """A fact about the site."""

    name: str
    value: str
    #: What to do; empty unless the fact needs attention.
    advice: str = ""
    #: Whether the fact can report a problem.
    is_checked: bool = True


def readiness() -> Iterator[Fact]:
    """Yield the checks of /readyz for this process."""
    for name, result in health.readiness.check().items():
        title, advice = READY_TEXTS.get(name, (name, "See the log of the web process."))
        if not result["ok"]:
            yield Fact(title, str(result["problem"]), advice)
        elif name == "broker" and not settings.REDIS_URL:
            yield Fact(title, "none: processes look into the database instead")
        elif name == "disk":
            free = filesizeformat(shutil.disk_usage(settings.AGENTOPS_HOME).free)
            # The disk is checked only if it has the database.
            has_database = connection.vendor == "sqlite"
            yield Fact(title, f"{free} on the machine of the web process", is_checked=has_database)
        elif name == "migrations":
            yield Fact(title, "all applied")
        else:
            yield Fact(title, f"answers in {format_ms(float(str(result['ms'])))}")


def storage() -> Iterator[Fact]:
    """Yield sizes that are cheap to read, and versions."""
    yield Fact("Size of the database", filesizeformat(_database_size()), is_checked=False)
    yield Fact("Open event streams", f"{open_streams()} in this web process", is_checked=False)
    parts = [f"agentops {version('agentops')}", f"Django {django.get_version()}", f"Python {platform.python_version()}"]
    yield Fact("Versions", ", ".join([*parts, _database_version()]), is_checked=False)


def configuration() -> Iterator[Fact]:
    """Yield the results of `agentops check --database default`, with `--deploy` if there is a database server."""
    # A site on SQLite runs on one machine; deployment checks do not apply to it.
    is_deployed = connection.vendor != "sqlite"
    for message in run_checks(include_deployment_checks=is_deployed, databases=["default"]):
        is_own = str(message.id).startswith("agentops.")
        if is_own and message.level >= WARNING and not message.is_silenced():
            advice = message.hint or "Correct the setting, then restart all processes."
            yield Fact(str(message.id), str(message.msg), advice)


def _database_size() -> int:
    """Return the size of the database in bytes, on SQLite including its write-ahead log."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_database_size(current_database())")
            return int(cursor.fetchone()[0])
    path = str(connection.settings_dict["NAME"])
    files = [Path(path), Path(f"{path}-wal")]
    return sum(file.stat().st_size for file in files if file.is_file())


def _database_version() -> str:
    """Return the name and the version of the database server."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT split_part(current_setting('server_version'), ' ', 1)")
            return f"PostgreSQL {cursor.fetchone()[0]}"
        cursor.execute("SELECT sqlite_version()")
        return f"SQLite {cursor.fetchone()[0]}"


#: Maximum listed workers.
MAX_WORKERS = 50


class ShownWorker(NamedTuple):
    """A row of the table of workers."""

    name: str
    queues: str
    runs: int
    concurrency: int
    since: datetime


class ShownQueue(NamedTuple):
    """A row of the table of queues."""

    name: str
    messages: int
    #: Messages by priority, such as "6: 3; 9: 1".
    by_priority: str


@dataclass(frozen=True)
class ShownWorkers:
    """The workers that are alive."""

    #: The processes that have a row.
    listed: list[ShownWorker]
    #: Number of workers: the processes, and other owners of leases, such as commands.
    count: int
    #: Number of workers without a run.
    idle: int

    def __str__(self) -> str:
        return f"{self.count}: {self.count - self.idle} with runs, {self.idle} idle" if self.count else "none"


def shown_workers() -> ShownWorkers:
    """Return the workers of this site that are alive. Two queries."""
    busy: dict[str, int] = {}
    for owner, count in queue_state.working_workers().items():
        # A child process that executes a suspected run counts as its worker. Its name is that of the worker with a
        # suffix. The separator may also occur in the host name, so only the last part is searched for it.
        host_and_pid, colon, token = owner.rpartition(":")
        name = host_and_pid + colon + token.partition(CHILD_SEPARATOR)[0]
        busy[name] = busy.get(name, 0) + count
    processes = list(WorkerProcess.objects.of_site().order_by("name"))
    listed = [
        ShownWorker(each.name, ", ".join(each.queues), busy.get(each.name, 0), each.concurrency, each.started_at)
        for each in processes[:MAX_WORKERS]
    ]
    names = {each.name for each in processes}
    return ShownWorkers(listed, len(names | set(busy)), len(names - set(busy)))


def shown_queues(broker: BrokerState) -> Iterator[ShownQueue]:
    """Yield the queues in the order of their names, the queue of upkeep last."""
    for queue in sorted(broker.lengths, key=lambda name: (name == UPKEEP, name)):
        counts = broker.lengths[queue]
        by_priority = "; ".join(f"{priority}: {counts[priority]:,}" for priority in sorted(counts))
        yield ShownQueue(queue, sum(counts.values()), by_priority)


#: Seconds that work may wait for a worker.
LONG_WAIT_S = 60
#: Maximum named agents.
MAX_NAMED = 10
#: Periods of the clock without a sweep after which it counts as down.
PERIODS = 3
NO_ANSWER = f"unknown: Redis has not answered within {WITHIN_S:g} s"


def work_facts(workers: ShownWorkers, broker: BrokerState | None) -> Iterator[Fact]:
    """Yield facts about waiting work and delays. `broker` is None without Redis, and if Redis does not answer."""
    queued, due, lapsed = queue_state.oldest_queued(), queue_state.oldest_due_wait(), queue_state.lapsed_count()
    is_stuck = _seconds(queued) > LONG_WAIT_S or _seconds(due) > LONG_WAIT_S
    advice = "Runs wait, and no worker is at work. Start one: agentops worker" if is_stuck and not workers.count else ""
    yield Fact("Workers", str(workers), advice)
    more = "Start more workers, or raise their concurrency." if workers.count else "Start a worker: agentops worker"
    yield _clock()
    yield _oldest_message(broker, more)
    yield Fact("Oldest queued run", _age(queued), more if _seconds(queued) > LONG_WAIT_S else "")
    yield Fact("Oldest due run", _age(due), more if _seconds(due) > LONG_WAIT_S else "")
    text = "Another worker, or another process of a remote run, continues them within seconds. If none does, start one."
    advice = text if lapsed else ""
    yield Fact("Runs whose worker is gone", str(lapsed), advice)
    yield from _remote_runs()
    yield _recoveries()
    yield _place_waits()
    yield from _unserved_queues()


def _remote_runs() -> Iterator[Fact]:
    """Yield since when the oldest queued remote run waits; nothing without one."""
    queued = remote_processes.oldest_queued()
    if queued is not None:
        advice = "The page of the run says which process it waits for." if _seconds(queued) > LONG_WAIT_S else ""
        yield Fact("Oldest queued remote run", _age(queued), advice)


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
    """Return the age of the oldest message in the queues. `more` is the advice if it has waited too long."""
    if not settings.REDIS_URL:
        return Fact("Oldest message", "unknown: the queues are in the memory of the workers", is_checked=False)
    if broker is None:
        return Fact("Oldest message", NO_ANSWER, "Look at the Redis server and REDIS_URL.")
    since = broker.oldest_sent_at
    return Fact("Oldest message", _age(since), more if _seconds(since) > LONG_WAIT_S else "")


def _recoveries() -> Fact:
    """Return the times after which other workers continued the runs of dead workers."""
    name, times = "Time until a run of a dead worker continues", queue_state.recoveries_of_last_day()
    if times is None:
        return Fact(name, "no worker has died in the last 24 hours", is_checked=False)
    median, longest = format_duration(times.median_s), format_duration(times.worst_s)
    runs = f"{times.runs} run{'' if times.runs == 1 else 's'}"
    return Fact(name, f"median {median}, longest {longest} ({runs} in the last 24 hours)", is_checked=False)


def _place_waits() -> Fact:
    """Return the number of runs that wait because their agent or project has reached its limit of running runs."""
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
    """Return how long work has waited, for display."""
    return "none" if since is None else f"waits for {format_duration(_seconds(since))}"


def _seconds(since: datetime | None) -> float:
    """Return the seconds since a time; 0 without one."""
    return 0.0 if since is None else database_clock.seconds_between(since, database_clock.now())
