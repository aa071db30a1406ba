"""Executes a run of an agent of a package: a Celery task holds the run, and the function works in an event loop.

It needs the client. Only packages that have it have agents, so other processes do not import this module.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.db import connection

from agentops.base.database.statements import fault_of
from agentops.durable.codec import Values
from agentops.durable.functions import DurableFunction
from agentops.durable.holding import Claim, HeldRun
from runs.database_errors import STORAGE_ERRORS
from runs.engine import ending
from runs.engine.drive import LOOK_FOR_OTHERS_S, STOP_CHECK_S
from runs.engine.step import ClaimContext
from runs.engine.turns.model_stream import LoopThread
from runs.lifecycle import command_outcomes, places
from runs.models import AgentRun
from runs.worker.packaged.requests import ThreadCalls, WorkerLease, WorkerRequests
from timeline.models import LeaseLost

log = logging.getLogger(__name__)


class Execution:
    """The execution of one claimed run, in the thread of its Celery task."""

    def __init__(
        self, run: AgentRun, claim: ClaimContext, function: DurableFunction, document: Mapping[str, Any]
    ) -> None:
        self._run = run
        self._function = function
        self._lease = claim.lease
        self._shutdown = claim.shutdown
        self._calls = ThreadCalls()
        self._requests = WorkerRequests(run, claim.lease, self._calls, claim.on_progress)
        self._document = document
        self._slice_end = time.monotonic() + settings.AGENTOPS_SLICE_S
        #: Set in the event loop.
        self._held: HeldRun | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The notifications that the function has got.
        self._notified: set[str] = set()

    def run_in(self, loop: LoopThread) -> None:
        """Execute the function in an event loop until the run is released. Raises `LeaseLost` and other errors."""
        done = loop.submit(self._execute())
        done.add_done_callback(lambda _: self._calls.end())
        next_look = 0.0
        while self._calls.carry_out(next_look - time.monotonic(), before=self._notice_end):
            if time.monotonic() >= next_look:
                self._look_safely()
                next_look = time.monotonic() + STOP_CHECK_S
        done.result()
        if self._requests.is_released:
            return
        if self._requests.failure is not None:
            raise self._requests.failure
        self._lease.check()
        raise RuntimeError(f"the code of {self._function!r} ended without a release of its run")

    async def _execute(self) -> None:
        self._loop = asyncio.get_running_loop()
        grace_s = float(settings.AGENTOPS_GRACE_S)
        claim = Claim(self._document, WorkerLease(self._lease))
        self._held = HeldRun(claim, self._function, self._requests, values=Values(None), grace_s=grace_s)
        await self._held.execute()

    # --- What ends the function from outside ---

    def _look_safely(self) -> None:
        """Call `_look`. After an error, end the function, unless the database does not answer.

        Raises `LeaseLost` if the event loop has ended.
        """
        held = self._held
        if held is None:
            return
        if self._loop is not None and not self._loop.is_running() and self._shutdown.requested.is_set():
            raise LeaseLost(f"the worker has ended before run {self._run.pk} was handed back")
        try:
            self._look(held)
        except Exception as error:
            if isinstance(error, STORAGE_ERRORS) and fault_of(error) is not None:
                connection.close()
                return
            self._requests.failure = error
            self._notify("lost", held.lose, str(error))

    def _look(self, held: HeldRun) -> None:
        """Notify the function of the end of the worker, commands, and the end of its slice. Raises `LeaseLost`."""
        self._lease.check()
        self._notice_end()
        for command in sorted(command_outcomes.pending_types(self._run.pk) & ending.STOP_OR_PAUSE):
            self._notify(command, held.follow, [command])
        if self._requests.has_progress and time.monotonic() >= self._slice_end and self._do_others_wait():
            self._notify("slice", held.give_turn)

    def _notice_end(self) -> None:
        """Notify the function of the end of the worker, before it begins another step."""
        if self._held is not None and self._shutdown.requested.is_set():
            self._notify("ending", self._held.hand_back)

    def _notify(self, what: str, method: Callable[..., None], *values: Any) -> None:
        """Call a method of the held run in its event loop, once for each reason."""
        if what not in self._notified:
            self._notified.add(what)
            log.info("a durable function has to end: %s", what, extra={"run_id": str(self._run.pk)})
            assert self._loop is not None
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(method, *values)

    def _do_others_wait(self) -> bool:
        """Whether to release the run at the end of its slice. Checks once a second."""
        if settings.AGENTOPS_SLICE_S == 0 or places.do_others_wait(self._run):
            return True
        self._slice_end = time.monotonic() + LOOK_FOR_OTHERS_S
        return False
