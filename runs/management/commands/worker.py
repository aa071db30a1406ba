"""`agentops worker`: execute queued runs until a signal.

Starts Celery's worker with the pool `threads`, see runs/worker/startup.py; with --processes, several workers.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from typing import Any, cast

from celery import signals
from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import connection, connections
from django.utils.module_loading import import_string

from agentops.accounts.command_base import EXIT_USAGE, AgentopsCommand
from agentops.accounts.names import SLUG_PATTERN
from agentops.base.backing_services import SPARE, UPKEEP
from runs import environment
from runs.agents.placement import DEFAULT_QUEUE
from runs.lifecycle.wake import CELERY_APP
from runs.management.agent.arguments import whole_up_to
from runs.management.site.start_checks import refuse_unusable_schema, warn_of_pools
from runs.management.site.worker_processes import WorkerProcesses

log = logging.getLogger(__name__)
LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
MAX_CONCURRENCY, MAX_PROCESSES = 256, 64
#: Seconds that a busy thread keeps the interpreter while other threads wait. Threads of runs release it at each query.
#: With Python's default of 5 ms and dozens of threads, they would also be interrupted between two queries, which costs
#: a sixth of the processor time of a step.
SWITCH_S = 0.01
#: Seconds after the grace period when processes that have not ended are killed.
PATIENCE_S = 15.0


class Command(AgentopsCommand):
    logs_runs = True
    help = "Execute queued runs until SIGTERM. Unfinished runs are handed back after AGENTOPS_GRACE_S."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--concurrency",
            metavar="N",
            type=whole_up_to(MAX_CONCURRENCY),
            default=settings.AGENTOPS_CONCURRENCY,
            help="runs executed at the same time (default: AGENTOPS_CONCURRENCY, %(default)s)",
        )
        parser.add_argument(
            "--processes",
            metavar="N",
            type=whole_up_to(MAX_PROCESSES),
            default=1,
            help="number of processes; each has its own slots and connection pool (default: 1)",
        )
        parser.add_argument(
            "--queues",
            metavar="Q,Q",
            type=_queues,
            default=[DEFAULT_QUEUE],
            help="queues whose runs it executes (default: %(default)s); upkeep is always done",
        )
        parser.add_argument(
            "--beat", action="store_true", help="also run the clock, which sends periodic tasks; one per site is enough"
        )
        parser.add_argument(
            "--events",
            action="store_true",
            default=settings.AGENTOPS_TASK_EVENTS,
            help="send the events of tasks, for monitors such as Flower (default: AGENTOPS_TASK_EVENTS)",
        )
        parser.add_argument("--loglevel", metavar="L", type=str.upper, choices=LEVELS, help="(default: LOG_LEVEL)")

    def handle(self, *args: Any, **options: Any) -> None:
        refuse_unusable_schema()
        _keep_logging(options["loglevel"])
        _check_pool(options["concurrency"])
        if options["processes"] > 1:
            raise SystemExit(_supervise(options))
        warn_of_pools()
        sys.setswitchinterval(SWITCH_S)
        connections.close_all()
        # Not `worker_main`, whose exit does not show whether the worker could work.
        worker = import_string(CELERY_APP).Worker(
            hostname=f"worker-{os.getpid()}@{socket.gethostname()}",
            pool_cls="threads",
            concurrency=options["concurrency"],
            queues=[*options["queues"], UPKEEP],
            # Both options serve Celery's monitors and cost three messages for each task, and one every two seconds. The
            # site does not need them: leases and the alive file show which workers are active.
            task_events=options["events"],
            without_heartbeat=not options["events"],
            quiet=True,
            beat=options["beat"],
        )
        shutdowns = _record_shutdowns()
        worker.start()
        # Ctrl-C ends the worker like SIGTERM, although Celery counts it as a failure.
        if worker.exitcode and shutdowns[-1:] != ["Warm"]:
            raise SystemExit(worker.exitcode)


def _supervise(options: Mapping[str, Any]) -> int:
    """Run several worker processes under this one, until a signal. Return the exit code."""
    connections.close_all()
    if connection.vendor == "postgresql":
        # This process no longer needs a connection or the pool's threads.
        cast("Any", connection).close_pool()
    environment.hide_secrets()
    each = ["--concurrency", str(options["concurrency"]), "--queues", ",".join(options["queues"])]
    if options["events"]:
        each.append("--events")
    if options["loglevel"]:
        each += ["--loglevel", options["loglevel"]]
    first = [*each, "--beat"] if options["beat"] else each
    processes = WorkerProcesses(
        [first, *[each] * (options["processes"] - 1)],
        alive_file=settings.AGENTOPS_ALIVE_FILE,
        patience_s=settings.AGENTOPS_GRACE_S + PATIENCE_S,
    )
    _, secrets = environment.for_own_process()
    return processes.run(secrets)


def _keep_logging(level: str | None) -> None:
    """Keep the logging of the settings, with another level if given. Celery would configure it without a receiver."""
    signals.setup_logging.connect(_do_nothing, weak=False)
    if level is not None:
        logging.getLogger().setLevel(level)


def _do_nothing(**_: Any) -> None:
    pass


def _record_shutdowns() -> list[str]:
    """Return a list that receives each shutdown request: "Warm" finishes the work, "Cold" drops it."""
    shutdowns: list[str] = []

    def note(how: str = "", **_: Any) -> None:
        shutdowns.append(how)

    signals.worker_shutting_down.connect(note, weak=False)
    return shutdowns


def _check_pool(concurrency: int) -> None:
    """Raise `CommandError` if the connection pool is too small: waiting for it would look like a broken database."""
    pool = settings.DATABASES["default"].get("OPTIONS", {}).get("pool")
    if pool and pool["max_size"] < concurrency + SPARE:
        raise CommandError(
            f"--concurrency {concurrency} needs AGENTOPS_DB_POOL={concurrency + SPARE} or more", returncode=EXIT_USAGE
        )


def _queues(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(re.match(SLUG_PATTERN, name) for name in names) or UPKEEP in names:
        raise argparse.ArgumentTypeError("names of queues with commas between them are expected, such as gpu,default")
    return list(dict.fromkeys(names))
