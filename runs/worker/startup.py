"""The start and end of a Celery worker, for each pool: threads, prefork or solo.

The worker takes no message before the database has the schema of this version and the libraries of the agents' models
are loaded. Otherwise the duration of a model call would include the import.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, cast

from celery import bootsteps, signals
from celery.platforms import set_pdeathsig
from django.conf import settings
from django.db import connection, connections

from agentops.base.broker import places
from agentops.base.broker.queues import UPKEEP
from agentops.base.database.applied_migrations import is_migrated
from runs import environment
from runs.lifecycle import wake
from runs.worker import worker
from runs.worker.exporting import exporting

log = logging.getLogger(__name__)
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h
#: The signal with which the parent of a forking pool tells its children to hand back their runs.
END_OF_CHILD = signal.SIGUSR2
#: The Celery worker of this process.
_controller: Any = None
#: The process that forks the children of this pool, if the pool forks.
_forking_parent: int | None = None
#: Whether this process is such a child, or a process that one has forked.
_is_forked = False


def connect_signals() -> None:
    """Connect to Celery's signals."""
    # worker_init comes before the broker is connected.
    signals.worker_init.connect(_prepare)
    signals.worker_process_init.connect(_start_child)
    # Celery sends this from its SIGTERM handler, holding a lock that is not reentrant: a second SIGTERM during it would
    # stop the worker for ever.
    signals.worker_shutting_down.lock = threading.RLock()
    signals.worker_shutting_down.connect(_ask_to_stop)
    signals.worker_shutdown.connect(_close)
    signals.worker_process_shutdown.connect(_close)


def _prepare(sender: Any, **_: Any) -> None:
    global _controller, _forking_parent
    _controller = sender
    pool = str(sender.pool_cls)
    if "prefork" in pool and not settings.REDIS_URL:
        log.error("a worker with the pool prefork needs REDIS_URL: its processes share no memory")
        raise SystemExit(EXIT_CONFIG)
    environment.hide_secrets()
    # Imported by name, because it belongs to the commands, another entry point.
    warm_up = import_module("runs.management.site.warm_up")
    warm_up.load_worker()
    warm_up.try_to_load_vendors()
    # The modules loaded so far live as long as the process, so the garbage collector can skip them.
    gc.freeze()
    if "prefork" in pool:
        _forking_parent = os.getpid()
        # A child inherits this, and gets a signal that came before it was ready once it is: see `_start_child`.
        signal.pthread_sigmask(signal.SIG_BLOCK, [END_OF_CHILD])
        os.register_at_fork(after_in_child=_die_with_parent)
        _close_pool()
    else:
        wake.expect_worker()
    runs = sorted(set(sender.app.amqp.queues.consume_from) - {UPKEEP})
    worker.served = worker.Served(runs, 1 if "solo" in pool or _forking_parent is not None else sender.concurrency)
    _set_places(sender, is_solo="solo" in pool)
    # Workers need no data from each other, and could not verify what other processes write into Redis.
    sender.options |= {"without_gossip": True, "without_mingle": True}
    sender.app.steps["worker"].add(OpeningStep)
    # In a thread: Celery would fork a process, and without Redis no other process can send this one a message.
    if sender.options.pop("beat", False) or not settings.REDIS_URL:
        sender.options["with_clock"] = True


def _set_places(sender: Any, *, is_solo: bool) -> None:
    """Give the pool one place for each run, and further places for upkeep."""
    queues = set(sender.app.amqp.queues.consume_from)
    here = places.here
    here.is_open = False
    if is_solo:
        here.runs, here.upkeep = 1, 1
        return
    here.runs = sender.concurrency if queues - {UPKEEP} else 0
    here.upkeep = (places.UPKEEP_PLACES if here.runs else sender.concurrency) if UPKEEP in queues else 0
    sender.concurrency = here.total()


class OpeningStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Opens the worker for messages once it is ready, and touches the alive file."""

    requires = ("celery.worker.components:Timer",)

    def start(self, controller: Any) -> None:
        """Check now and once in each period, until the worker is ready."""
        timer = controller.timer
        timer.call_repeatedly(settings.AGENTOPS_SWEEP_S, _touch_alive_file)
        if not _open():
            self._look = timer.call_repeatedly(settings.AGENTOPS_SWEEP_S, self._look_again)

    def close(self, controller: Any) -> None:
        """Have the runs handed back for every kind of worker shutdown.

        Celery's signals announce only operating system signals.
        """
        _ask_to_stop()

    def _look_again(self) -> None:
        if _open():
            self._look.cancel()


def _open() -> bool:
    _touch_alive_file()
    if not is_migrated():
        return False
    import_module("runs.management.site.warm_up").try_to_load_vendors()
    if _forking_parent is not None:
        _close_pool()
    else:
        worker.current()
    places.here.open()
    # Messages may have been queued before this worker started.
    wake.sweep_now()
    return True


def _touch_alive_file() -> None:
    """Touch the file that tells a monitor that this process works. Errors do not stop the process."""
    if not settings.AGENTOPS_ALIVE_FILE:
        return
    try:
        Path(settings.AGENTOPS_ALIVE_FILE).touch()
    except OSError as error:
        log.warning("AGENTOPS_ALIVE_FILE cannot be touched: %s", error.strerror)


def _die_with_parent() -> None:
    # Celery does this too, but later. A child that waits until then, for a lock that another thread of its parent held
    # at the fork, would survive its parent.
    global _is_forked
    if not _is_forked:
        _is_forked = True
        set_pdeathsig("SIGKILL")
        if os.getppid() != _forking_parent:
            os._exit(1)  # the parent died before the call


def _start_child(**_: Any) -> None:
    if _forking_parent is None or os.getpid() == _forking_parent:
        return  # a pool without processes also announces itself
    _forget_pool()
    signal.signal(END_OF_CHILD, _end_child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [END_OF_CHILD])
    worker.current()


def _end_child(number: int, frame: FrameType | None) -> None:
    worker.leave_handler(lambda: worker.current().ask_to_stop())


def _ask_to_stop(**_: Any) -> None:
    worker.leave_handler(_stop_all)


def _stop_all() -> None:
    if _forking_parent is None:
        worker.current().ask_to_stop()
        return
    try:
        children = _controller.pool.info.get("processes", ())
    except AttributeError:
        return  # Celery's pool has not started yet, or has ended
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, END_OF_CHILD)


def _close(**_: Any) -> None:
    if os.getpid() != _forking_parent:
        worker.current().close(settings.AGENTOPS_GRACE_S + 5)
        exporting.close()


def _close_pool() -> None:
    """Close the connections of this process, so that no child inherits one."""
    connections.close_all()
    if connection.vendor == "postgresql":
        cast("Any", connection).close_pool()


def _forget_pool() -> None:
    """Drop the inherited connections without closing them, because they belong to the parent."""
    if connection.vendor == "postgresql":
        cast("Any", connection)._connection_pools.clear()
