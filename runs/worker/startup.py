"""The start and end of a Celery worker, for each pool: threads, prefork or solo.

The worker takes no message before the database has the schema of this version, and the libraries of the agents' models
are imported: otherwise the duration of a model call would include the import.
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
from django.db import Error, connection, connections

from agentops.base import worker_places
from agentops.base.backing_services import UPKEEP
from agentops.base.database.applied_migrations import is_migrated
from runs import environment
from runs.lifecycle import wake
from runs.worker import worker
from runs.worker.packaged import registering
from runs.worker.packaged.catalogue import AGENTS
from runs.worker.upkeep import exporting

log = logging.getLogger(__name__)
EXIT_CONFIG = 78  # EX_CONFIG of sysexits.h
#: The signal with which the parent of a forking pool tells its children to hand back their runs.
END_OF_CHILD = signal.SIGUSR2
#: The Celery worker of this process.
_controller: Any = None
#: The ID of the process that forks the children of the pool; None if the pool does not fork.
_forking_parent: int | None = None
#: Whether this process was forked by that process or its children.
_is_forked = False


def connect_signals() -> None:
    """Connect to Celery's signals."""
    # worker_init is sent before the broker is connected.
    signals.worker_init.connect(_prepare)
    signals.worker_process_init.connect(_start_child)
    # Celery sends this signal from its SIGTERM handler, and holds the lock until it returns. With the default lock,
    # which is not reentrant, a second SIGTERM during the handler would block the worker for ever.
    signals.worker_shutting_down.lock = threading.RLock()
    signals.worker_shutting_down.connect(_ask_to_stop)
    signals.worker_shutdown.connect(_close)
    signals.worker_process_shutdown.connect(_close)


def _prepare(sender: Any, **_: Any) -> None:
    """Prepare a Celery worker: import libraries, set the places of its pool, and add its opening step."""
    global _controller, _forking_parent
    _controller = sender
    pool = str(sender.pool_cls)
    if "prefork" in pool and not settings.REDIS_URL:
        log.error("a worker with the pool prefork needs REDIS_URL: its processes share no memory")
        raise SystemExit(EXIT_CONFIG)
    environment.hide_secrets()
    # Imported by name, because the module belongs to the commands, which may not be imported from here.
    warm_up = import_module("runs.management.site.warm_up")
    warm_up.load_worker()
    AGENTS.all()
    warm_up.try_to_load_vendors()
    # The modules imported so far live as long as the process, so the garbage collector can skip them.
    gc.freeze()
    if "prefork" in pool:
        _forking_parent = os.getpid()
        # Children inherit the blocked signal. A child that gets it before it is ready handles it in `_start_child`.
        signal.pthread_sigmask(signal.SIG_BLOCK, [END_OF_CHILD])
        os.register_at_fork(after_in_child=_die_with_parent)
        _close_pool()
    else:
        wake.expect_worker()
    runs = sorted(set(sender.app.amqp.queues.consume_from) - {UPKEEP})
    worker.served = worker.Served(runs, 1 if "solo" in pool or _forking_parent is not None else sender.concurrency)
    _set_places(sender, is_solo="solo" in pool)
    # Without data from other workers: none is needed, and what processes write into Redis cannot be verified.
    sender.options |= {"without_gossip": True, "without_mingle": True}
    sender.app.steps["worker"].add(OpeningStep)
    # The clock runs in a thread. Celery would fork a process for it, which could not send messages without Redis.
    if sender.options.pop("beat", False) or not settings.REDIS_URL:
        sender.options["with_clock"] = True


def _set_places(sender: Any, *, is_solo: bool) -> None:
    """Give the pool one place for each run, and further places for upkeep."""
    queues = set(sender.app.amqp.queues.consume_from)
    here = worker_places.here
    here.is_open = False
    if is_solo:
        here.runs, here.upkeep = 1, 1
        return
    here.runs = sender.concurrency if queues - {UPKEEP} else 0
    here.upkeep = (worker_places.UPKEEP_PLACES if here.runs else sender.concurrency) if UPKEEP in queues else 0
    sender.concurrency = here.total()


class OpeningStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Opens the worker for messages once it is ready, and touches the alive file."""

    requires = ("celery.worker.components:Timer",)

    def start(self, controller: Any) -> None:
        """Check now, and once in each period, whether the worker can be opened."""
        timer = controller.timer
        timer.call_repeatedly(settings.AGENTOPS_SWEEP_S, _touch_alive_file)
        if not _open():
            self._check = timer.call_repeatedly(settings.AGENTOPS_SWEEP_S, self._check_again)

    def close(self, controller: Any) -> None:
        """Ask the worker to stop. Celery calls this for every shutdown, but sends its signals for SIGTERM only."""
        _ask_to_stop()

    def _check_again(self) -> None:
        if _open():
            self._check.cancel()


def _open() -> bool:
    """Allow the worker to take messages. Returns False if the database does not have the schema of this version."""
    _touch_alive_file()
    if not is_migrated():
        return False
    import_module("runs.management.site.warm_up").try_to_load_vendors()
    _register_agents()
    if _forking_parent is not None:
        _close_pool()
    else:
        worker.current()
    worker_places.here.open()
    # Messages may have been queued before this worker started.
    wake.sweep_now()
    return True


def _register_agents() -> None:
    """Register the agents of installed packages. If the database does not answer, the sweep tries again."""
    try:
        registering.register_agents()
    except Error as error:
        log.warning("the agents of packages are not registered: %s", type(error).__name__)
        connection.close()


def _touch_alive_file() -> None:
    """Touch the file that tells a monitor that this process works. Errors do not stop the process."""
    if not settings.AGENTOPS_ALIVE_FILE:
        return
    try:
        Path(settings.AGENTOPS_ALIVE_FILE).touch()
    except OSError as error:
        log.warning("AGENTOPS_ALIVE_FILE cannot be touched: %s", error.strerror)


def _die_with_parent() -> None:
    """Have the kernel kill this child when the process that forked it dies.

    Celery does this too, but later. Until then, a child could wait for ever for a lock that another thread of its
    parent held at the fork.
    """
    global _is_forked
    if not _is_forked:
        _is_forked = True
        set_pdeathsig("SIGKILL")
        if os.getppid() != _forking_parent:
            os._exit(1)  # the parent had died before


def _start_child(**_: Any) -> None:
    """Start the worker of a forked child."""
    if _forking_parent is None or os.getpid() == _forking_parent:
        return  # Celery also sends the signal for pools without processes
    _forget_pool()
    signal.signal(END_OF_CHILD, _end_child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [END_OF_CHILD])
    worker.current()


def _end_child(number: int, frame: FrameType | None) -> None:
    worker.leave_handler(lambda: worker.current().ask_to_stop())


def _ask_to_stop(**_: Any) -> None:
    worker.leave_handler(_stop_all)


def _stop_all() -> None:
    """Ask the worker of this process, or of each child of a forking pool, to stop."""
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
    """Close the database connections of this process, so that no child inherits one."""
    connections.close_all()
    if connection.vendor == "postgresql":
        cast("Any", connection).close_pool()


def _forget_pool() -> None:
    """Drop the inherited database connections without closing them, because they belong to the parent."""
    if connection.vendor == "postgresql":
        cast("Any", connection)._connection_pools.clear()
