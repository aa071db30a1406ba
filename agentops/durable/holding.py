"""One claimed run in this process: executes its function, and releases it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentops.client.errors import AgentopsError, ApiError
from agentops.durable import releases
from agentops.durable.calling import start_thread
from agentops.durable.codec import Values
from agentops.durable.errors import LeaseLost
from agentops.durable.functions import DurableFunction
from agentops.durable.gate import RunGate
from agentops.durable.journal import Journal
from agentops.durable.run import DurableRun, current_run
from agentops.durable.steps import Steps
from agentops.durable.sync_run import SyncDurableRun
from agentops.durable.wire import RunLease, StepRequests, WatchedRequests
from agentops.durable.writer import StepWriter

log = logging.getLogger("agentops.durable")

#: Seconds that a cancelled function gets to end.
CLEANUP_S = 5.0


@dataclass(frozen=True)
class Claim:
    """A claimed run, as the site returned it."""

    document: Mapping[str, Any]
    lease: RunLease

    @property
    def run(self) -> Mapping[str, Any]:
        """The facts of the run."""
        facts: Mapping[str, Any] = self.document["run"]
        return facts

    @property
    def epoch(self) -> int:
        """The fencing token of the claim."""
        return int(self.document["epoch"])


class HeldRun:
    """A run that this process executes until it ends, waits, or is taken away."""

    def __init__(
        self, claim: Claim, function: DurableFunction, requests: StepRequests, *, values: Values, grace_s: float
    ) -> None:
        """Prepare the execution. `grace_s`: how long functions may continue when the run must end."""
        self.id = str(claim.run["id"])
        self.epoch = claim.epoch
        self.lease = claim.lease
        self._function = function
        self._grace_s = grace_s
        self._claim = claim
        self._loop = asyncio.get_running_loop()
        self._gate = RunGate()
        self._requests = WatchedRequests(requests, self.lose)
        self._journal = Journal(f"{function!r}")
        self._writer = StepWriter(self._requests.send_ops, self.follow)
        self._steps = Steps(self._journal, self._writer, self._gate, values, self._requests)
        #: Set when the function is not waited for any longer.
        self._abandoned = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._has_deadline = False
        self._lease_timer: asyncio.TimerHandle | None = None
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def is_lost(self) -> bool:
        """Whether the lease of the run was lost."""
        return isinstance(self._gate.interruption, LeaseLost)

    # --- What ends it from outside ---

    def lose(self, why: str) -> None:
        """End the function at once, because another process may execute the run."""
        self._gate.abandons_threads = True
        self._gate.interrupt(LeaseLost(why))
        self._later(CLEANUP_S, self._abandon)

    def follow(self, commands: Sequence[str]) -> None:
        """Follow the pending commands of people: end the function if the run must stop or pause."""
        if "message" in commands:
            self._steps.may_have_messages = True
        if "stop" in commands:
            self._gate.interrupt(releases.Commanded(releases.STOPPED))
            self._later(self._grace_s + CLEANUP_S, self._abandon_idle)
        elif "pause" in commands:
            reason = releases.Commanded(releases.PAUSED)
            self._close(reason)
            self._end_within_grace(reason, self._abandon_idle)

    def hand_back(self) -> None:
        """End the function because the process ends. Another one continues the run."""
        reason = releases.Commanded(releases.HANDED_BACK)
        self._close(reason)
        self._end_within_grace(reason, self._abandon)

    def give_turn(self) -> None:
        """End the function when no step works, however long that takes, because other runs wait for a worker."""
        self._close(releases.Commanded(releases.HANDED_BACK, releases.SLICE_OVER))

    def _close(self, reason: releases.Commanded) -> None:
        """Start no further steps; end the function when none works."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._gate.close(reason))

    def _end_within_grace(self, reason: releases.Commanded, abandon: Callable[[], None]) -> None:
        """End the function at the latest after the grace period, which begins with the first call."""
        if not self._has_deadline:
            self._has_deadline = True
            self._later(self._grace_s, partial(self._gate.interrupt, reason))
            self._later(self._grace_s + CLEANUP_S, abandon)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._timers.append(self._loop.call_later(seconds, call))

    def _abandon_idle(self) -> None:
        """Stop waiting for a function that does not end, unless a step works in a thread: it is waited for."""
        if self._gate.threads:
            self._later(CLEANUP_S, self._abandon_idle)
        else:
            self._abandon()

    def _abandon(self) -> None:
        """Stop waiting for functions in threads, and for the function of the run."""
        self._gate.abandons_threads = True
        self._gate.cancel_tasks()
        self._abandoned.set()

    def _watch_lease(self) -> None:
        """Drop the run when its lease may be over by the clock of this process."""
        left = self.lease.seconds_left
        if left <= 0:
            self.lose("the lease could not be renewed in time")
        else:
            self._lease_timer = self._loop.call_later(left, self._watch_lease)

    # --- The execution ---

    async def execute(self) -> None:
        """Execute the function, and release the run. Raises nothing."""
        self._watch_lease()
        try:
            await self._load_journal()
            release = self._release_after(await self._ended_function())
            await self._writer.flush()
            if release is not None and not self.is_lost:
                await self._release(release)
        except (AgentopsError, LeaseLost) as error:
            log.warning("agentops: run %s is given up at epoch %d: %s", self.id, self.epoch, error)
        except Exception:
            log.exception("agentops: run %s is given up at epoch %d", self.id, self.epoch)
        finally:
            for timer in filter(None, [*self._timers, self._lease_timer]):
                timer.cancel()
            if self._closing is not None:
                self._closing.cancel()

    async def _load_journal(self) -> None:
        page = self._claim.document
        self._journal.add(page["steps"])
        while (after := page.get("steps_after")) is not None:
            page = await self._requests.steps_after(after)
            self._journal.add(page["steps"])

    async def _ended_function(self) -> asyncio.Future[Any]:
        """Call the function, and return its future when it is done, or not waited for any longer."""
        self._steps.is_first = bool(self._claim.document.get("is_first"))
        run = DurableRun(self._claim.run, self._steps)
        if self._function.is_async:
            future: asyncio.Future[Any] = self._loop.create_task(self._call(run))
            self._gate.watch(future)  # type: ignore[arg-type]
        else:
            future = start_thread(lambda: self._call_in_thread(SyncDurableRun(run, self._gate, self._loop)))
        abandoned = self._loop.create_task(self._abandoned.wait())
        await asyncio.wait([future, abandoned], return_when=asyncio.FIRST_COMPLETED)
        abandoned.cancel()
        # Tasks that the function has started and not awaited.
        self._gate.cancel_tasks()
        if self._gate.interruption is not None and future.done() and not future.cancelled():
            future.exception()  # asyncio reports exceptions that are never read
        return future

    async def _call(self, run: DurableRun) -> Any:
        self._steps.positions.enter()
        current_run.set(run)
        return await self._function.function(run, run.prompt)

    def _call_in_thread(self, run: SyncDurableRun) -> Any:
        self._steps.positions.enter()
        return self._function.function(run, run.prompt)

    # --- The release ---

    def _release_after(self, future: asyncio.Future[Any]) -> dict[str, Any] | None:
        """Return the body of the release; None if the run is not held any more."""
        if (interruption := self._gate.interruption) is not None:
            return releases.interrupted(interruption)
        if future.cancelled():
            return releases.failed(asyncio.CancelledError("the function cancelled itself"))
        if (error := future.exception()) is not None:
            return releases.failed(error)
        self._steps.store_failures(self._steps.positions.handled_at_end())
        return releases.completed(f"{self._function!r}", future.result())

    async def _release(self, body: dict[str, Any]) -> None:
        try:
            released = await self._requests.release(body)
        except ApiError as error:
            # The site refuses the result, or the command was withdrawn.
            other = releases.failed(error) if body["to"] == "completed" else releases.HAND_BACK
            released = await self._requests.release(other)
        log.info("agentops: run %s is %s", self.id, released.get("status"))
