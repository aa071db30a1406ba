"""Send Celery messages: a run is ready, or there is other work.

With Redis any worker may get a message. Without it, the broker is in memory and reaches only a worker of this process.
A lost message only costs time: the sweep and the clock find the same work. Requests for upkeep are sent from a thread,
which merges many requests for the same task into one message.
"""

from __future__ import annotations

import atexit
import bisect
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from agentops.base.database.statements import after_commit
from runs import chaos
from runs.models import AgentRun

#: Seconds between two calls with the same name.
INTERVAL_S = 1.0
#: Seconds that an ending process waits until its messages are sent. A command may end right after its commit.
FLUSH_S = 1.5


class Debounce:
    """Calls `send(name)` for requests, about once per INTERVAL_S for each name, and at least once after every request.

    The first request is sent at once, later ones at the end of the interval. The call for a request begins after the
    request, so the receiver sees everything committed before it. `send` may be slow, and must not raise.
    """

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        #: The times of planned calls, in order, and of the last call. Monotonic seconds.
        self._planned: dict[str, list[float]] = {}
        self._called: dict[str, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # Held during a call, so that this process forks only between two calls: `send` holds locks, such as those of
        # the pool of connections to the broker, and a forked child has no thread that would release them.
        self._sending = lock = threading.Lock()
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

    def request(self, name: str, countdown_s: float = 0.0) -> None:
        """Schedule a call of `send(name)` in `countdown_s` seconds, or up to INTERVAL_S later."""
        with self._changed:
            soonest = time.monotonic() + countdown_s
            planned = self._planned.setdefault(name, [])
            if any(soonest <= at <= soonest + INTERVAL_S for at in planned):
                return
            before = max((at for at in planned if at < soonest), default=self._called.get(name, -math.inf))
            bisect.insort(planned, max(soonest, before + INTERVAL_S))
            self._wake_thread()

    def flush(self, within_s: float = FLUSH_S) -> None:
        """Make all planned calls at once, and wait for them at most `within_s` seconds."""
        with self._changed:
            for name, times in self._planned.items():
                self._planned[name] = [0.0] if times else []
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None, timeout=within_s)

    def _wake_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="requests", daemon=True)
            # If no thread can be started, the clock finds the work; the next request tries again.
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self._changed.notify_all()

    def _run(self) -> None:
        """Make each planned call when it is due, until none is planned. Then the thread ends."""
        while True:
            with self._changed:
                due = self._take_due()
                while due is None:
                    if (wait_s := self._wait_s()) is None:
                        self._thread = None
                        self._changed.notify_all()
                        return
                    self._changed.wait(wait_s)
                    due = self._take_due()
            with self._sending:
                self._send(due)

    def _take_due(self) -> str | None:
        """Return the name of a due call, which is no longer planned; None if no call is due."""
        now = time.monotonic()
        for name, times in self._planned.items():
            if times and times[0] <= now:
                del times[0]
                self._called[name] = now
                return name
        return None

    def _wait_s(self) -> float | None:
        """Return the seconds until the next call; None if no call is planned."""
        soonest = min((times[0] for times in self._planned.values() if times), default=None)
        return None if soonest is None else max(soonest - time.monotonic(), 0.0)


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
#: Queues in memory, each with a message priority, for which more runs wait than the queue can hold. Only the sweep
#: sends messages to them.
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
    """Send the message of a run now, or request a sweep if the queue of the run is crowded."""
    chaos.point("command.committed")
    if run.is_remote:
        return  # the process that executes it is told by `timeline.log.announce_run`
    # Without a broker no worker would receive the message: the sweep of a worker on this database finds the run.
    if not can_send():
        return
    if (run.queue, _priority(run)) in _crowded:
        # A message at the end of the queue would overtake runs that have waited longer, but have no message yet.
        sweep_now()
    elif send(run):
        chaos.point("command.hint_sent")


def _priority(run: AgentRun) -> int:
    return run.priority + 1


def leave_to_sweep(queue: str, priority: int, is_crowded: bool) -> None:
    """Set whether a queue in memory is left to the sweep, because more runs wait than the queue can hold."""
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
        # The name that monitors display. It may only have few different values, because Celery counts by it.
        shadow=f"{ADVANCE} {name}".strip(),
    )


# --- Upkeep: queues and priorities are CELERY_TASK_ROUTES ---


def wake_sweep() -> None:
    """Request a sweep for waits that have ended, after the commit of the current transaction. Never raises."""
    after_commit(_send_sweep)


def sweep_now() -> None:
    """Request a sweep for waits that have ended now, regardless of the current transaction. Never raises."""
    ask_now(SWEEP)


def wake_importer() -> None:
    """Wake a worker to import uploaded files, after the commit of the current transaction. Never raises."""
    after_commit(_send_import)


def wake_flows() -> None:
    """Wake a worker to process flow runs, after the commit of the current transaction. Never raises."""
    after_commit(_send_flows)


def ask_for(task: str, *, countdown_s: float = 0.0) -> None:
    """Request an upkeep task from a worker, `countdown_s` seconds after the commit of this transaction. Never raises.

    A process sends at most one message a second for a task, and a last one after the last request.
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
    # `now`: a sweep by the clock only runs once a period; a requested one always runs.
    _send_task(task, expires=EXPIRES_S, kwargs={"now": 1} if task == SWEEP else {})


_requests = Debounce(_send_request)


def _after_fork() -> None:
    global _requests
    _requests = Debounce(_send_request)


def flush_requests() -> None:
    """Send all upkeep requests at once that wait for the end of their interval."""
    # Not without Redis: messages in memory would be lost with this process.
    if settings.configured and settings.REDIS_URL:
        _requests.flush()


# A forked child does not have the thread, and its copy of the lock may be held.
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
    """Send a Celery message. Returns whether the broker accepted it. Never raises."""
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
