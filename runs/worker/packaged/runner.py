"""The runs of agents of packages that a worker executes. A worker without such packages needs no client.

All functions of a process share one event loop, because the clients of frameworks keep connections that belong to it.
"""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING

from django.db import transaction

from runs.engine import ending
from runs.engine.step import ClaimContext
from runs.engine.turns.model_stream import LoopThread
from runs.models import AgentRun
from runs.queries.remote_processes import is_project_of_packages
from runs.remote import claims, holds
from runs.worker.packaged.catalogue import AGENTS

if TYPE_CHECKING:
    from agentops.durable.functions import DurableFunction


class PackagedRuns:
    """Executes the runs of agents of packages in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @cached_property
    def _loop(self) -> LoopThread:
        return LoopThread("durable-functions")

    def has_code(self, run: AgentRun) -> bool:
        """Whether this process may execute a run: it has its agent, in the version of the run."""
        return is_project_of_packages(run.project) and _function_of(run) is not None

    def execute(self, run: AgentRun, claim: ClaimContext) -> None:
        """Execute a claimed run until it is released. Raises `LeaseLost`, and errors inside agentops."""
        if _is_released(run, is_first=claim.is_new, died=claim.death_undecided):
            return
        is_first, claim.is_new, claim.death_undecided = claim.is_new, False, False
        function = _function_of(run)
        if function is None:
            raise LookupError(f"no package has {run.agent_config.get('agent_id')!r} in version {run.code_version}")
        with self._lock:
            loop = self._loop
        # With the first run of a package: see the docstring of the module.
        from runs.worker.packaged.execution import Execution

        document = claims.document(claims.opened(run, is_first=is_first))
        Execution(run, claim, function, document).run_in(loop)

    def ask_to_stop(self) -> None:
        """Stop the event loop, without waiting for it."""
        with self._lock:
            if "_loop" in vars(self):
                self._loop.ask_to_stop()

    def close(self, until: float) -> None:
        """Stop the event loop, and wait for its thread until a time of `time.monotonic()`."""
        with self._lock:
            if "_loop" in vars(self):
                self._loop.close(until)


def _function_of(run: AgentRun) -> DurableFunction | None:
    return AGENTS.find(str(run.agent_config.get("agent_id")), run.code_version or 0)


def _is_released(run: AgentRun, *, is_first: bool, died: bool) -> bool:
    """Close the model call of an earlier worker, and handle its death. Returns whether the run was released."""
    with transaction.atomic():
        # Locked, so that no command arrives until the end of the transaction.
        hold = holds.lock(run.project, run.pk, run.lease_epoch, is_packaged=True)
        if not is_first:
            ending.abandon_open_turn(hold.lease)
        if holds.is_released_by_rules(hold):
            return True
        return died and not is_first and claims.is_released_by_policy(hold, "worker")
