"""Worker processes as in production, which share the runs of the workspace's database through Redis."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

from bench.processes import Program, running
from bench.workspace import Workspace, redis_url, sending_to_redis

READY_S = 60
#: Connections of a worker's pool beyond one for each run.
SPARE_CONNECTIONS = 8


@contextmanager
def working(workspace: Workspace, count: int, *, slots: int, name: str = "worker") -> Iterator[list[Program]]:
    """Start workers for `slots` runs each, and wait until each is ready. This process sends its messages to them."""
    command: list[str | Path] = [
        Path(sys.executable).with_name("agentops"),
        "worker",
        "--concurrency",
        str(slots),
        "--beat",
    ]
    with ExitStack() as stack, sending_to_redis():
        programs = []
        for number in range(count):
            alive = workspace.folder / f"alive-{name}-{number}-{time.monotonic_ns()}"
            environment = os.environ | {
                "AGENTOPS_ALIVE_FILE": str(alive),
                "AGENTOPS_DB_POOL": str(max(slots + SPARE_CONNECTIONS, 20)),
                "REDIS_URL": redis_url(),
            }
            log = workspace.folder / f"{name}-{number}.log"
            programs.append(stack.enter_context(running(command, environment, log)))
            wait_until(alive.exists, READY_S, programs[-1])
        yield programs


def wait_until(is_done: Callable[[], bool], within_s: float, program: Program | None = None) -> None:
    """Wait for a condition. Raise after `within_s` seconds, or when the program has ended."""
    until = time.monotonic() + within_s
    while not is_done():
        if program is not None and not program.alive():
            raise RuntimeError(program.last_line())
        if time.monotonic() > until:
            raise RuntimeError(f"not done within {within_s:.0f} s")
        time.sleep(0.05)


def wait_until_claimed(run_ids: list[UUID], within_s: float = 120) -> None:
    from runs.models import AgentRun

    wait_until(lambda: not AgentRun.objects.filter(pk__in=run_ids, started_at=None).exists(), within_s)
