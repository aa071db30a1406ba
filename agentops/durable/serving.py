"""`serve`: claims runs for durable functions, and executes them until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentops.client.connection import pause_s
from agentops.client.errors import AgentopsError, ApiError
from agentops.durable.codec import Codec, Values
from agentops.durable.functions import Functions
from agentops.durable.heartbeat import Heartbeat
from agentops.durable.hints import follow_hints
from agentops.durable.holding import Claim, HeldRun
from agentops.durable.wire import RunLease, RunRequests, WorkSite, is_retryable

log = logging.getLogger("agentops.durable")

#: Seconds between claims without a hint.
POLL_S = 5.0
#: Seconds after a claim in vain during which hints are collected.
HINT_PAUSE_S = 0.1
#: Seconds that running steps get when the process ends.
GRACE_S = 25.0


async def serve(
    *functions: object,
    url: str | None = None,
    key: str | None = None,
    concurrency: int = 10,
    queues: Sequence[str] = ("default",),
    codec: Codec | None = None,
    stop: asyncio.Event | None = None,
    grace_s: float = GRACE_S,
    poll_s: float = POLL_S,
    http_options: Mapping[str, Any] | None = None,
) -> None:
    """Execute runs of the functions' agents until `stop` is set, and then end gracefully.

    `functions`: durable functions, and objects of frameworks that `as_durable_function` accepts.
    `url`, `key`: of the site, and an API key of scope `work`; by default, the variables `AGENTOPS_URL` and
    `AGENTOPS_API_KEY`. `concurrency`: number of runs at the same time. `codec`: encodes the values of steps. `grace_s`:
    how long running steps may continue after `stop`; then the runs are handed back. `http_options`: arguments for the
    clients of httpx, such as `verify` or `proxy`.

    Raises `ApiError` if the site refuses the key or an agent. Waits for a site that cannot be reached.
    """
    site = WorkSite(_given(url, "url", "AGENTOPS_URL"), _given(key, "key", "AGENTOPS_API_KEY"), http_options or {})
    places = {"queues": list(queues), "concurrency": concurrency}
    server = _Server(Functions(functions), site, values=Values(codec), places=places, grace_s=grace_s)
    await server.run(stop or asyncio.Event(), poll_s=poll_s, http_options=http_options or {})


def _given(value: str | None, name: str, variable: str) -> str:
    """Return an argument, or the value of its variable. Raises `ValueError` if both are missing."""
    given = value or os.environ.get(variable, "")
    if not given:
        raise ValueError(f"serve() needs {name}, or the variable {variable}")
    return given


def serve_forever(*functions: object, **options: Any) -> None:
    """Call `serve` in an event loop until SIGTERM or SIGINT, then end gracefully. A second signal ends it at once."""
    asyncio.run(_until_signal(functions, options))


async def _until_signal(functions: Sequence[object], options: Mapping[str, Any]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)

    def end() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        stop.set()

    for number in signals:
        try:
            loop.add_signal_handler(number, end)
        except NotImplementedError:  # on Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    await serve(*functions, stop=stop, **options)


class _Server:
    """One call of `serve`."""

    def __init__(
        self, functions: Functions, site: WorkSite, *, values: Values, places: Mapping[str, Any], grace_s: float
    ) -> None:
        self._functions = functions
        self._site = site
        self._values = values
        self._grace_s = grace_s
        self._concurrency = int(places["concurrency"])
        host = socket.gethostname()[:40] or "host"
        worker = f"{host}:{os.getpid()}:{secrets.token_hex(4)}"
        #: What each request for work says about this process.
        self._self = {"worker": worker, "agents": functions.versions, "queues": places["queues"]}
        self._held: dict[str, HeldRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    async def run(self, stop: asyncio.Event, *, poll_s: float, http_options: Mapping[str, Any]) -> None:
        """Register the agents, and execute runs until `stop`."""
        self._heartbeat = Heartbeat(self._site, http_options, self._beat, self._receive)
        background: list[asyncio.Task[Any]] = []
        try:
            await self._register(stop)
            self._heartbeat.start()
            background.append(asyncio.create_task(follow_hints(self._site, self._on_hint)))
            background.append(asyncio.create_task(self._end_on(stop)))
            await self._claim_until(stop, poll_s)
        finally:
            await self._end()
            self._heartbeat.end()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._site.close()

    async def _register(self, stop: asyncio.Event) -> None:
        attempt = 0
        while not stop.is_set():
            try:
                await self._site.post("/agents", {"agents": self._functions.offers})
                return
            except AgentopsError as error:
                if not is_retryable(error):
                    raise
                if not attempt:
                    log.warning("agentops: waiting for the site: %s", error)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause_s(attempt))
            attempt += 1

    # --- Claims ---

    async def _claim_until(self, stop: asyncio.Event, poll_s: float) -> None:
        failures = 0
        while not stop.is_set():
            self._wake.clear()
            pause = poll_s
            try:
                if len(self._tasks) < self._concurrency and await self._claim():
                    continue
                failures = 0
                # Many hints at once lead to one claim.
                await asyncio.sleep(HINT_PAUSE_S)
            except AgentopsError as error:
                if not is_retryable(error):
                    raise
                if not failures:
                    log.warning("agentops: no runs can be claimed: %s", error)
                requested = error.retry_after_s if isinstance(error, ApiError) else None
                pause = pause_s(failures) if requested is None else requested
                failures += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    async def _claim(self) -> bool:
        """Claim a run, and begin its execution. Return whether there may be further runs."""
        began = time.monotonic()
        document = await self._site.post("/claim", self._self)
        if document is None:
            return False
        claim = Claim(document, RunLease(began, float(document["lease_s"])))
        function = self._functions.find(claim.run["agent"], claim.run["version"])
        if function is None:
            raise LookupError(f"the site sent a run of {claim.run['agent']!r} that this process cannot execute")
        requests = RunRequests(self._site, str(claim.run["id"]), claim.epoch, claim.lease)
        held = HeldRun(claim, function, requests, values=self._values, grace_s=self._grace_s)
        if (earlier := self._held.get(held.id)) is not None:
            earlier.lose("this process has claimed the run again")
        self._held[held.id] = held
        task = asyncio.create_task(held.execute())
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, held))
        return True

    def _ended(self, task: asyncio.Task[None], held: HeldRun) -> None:
        self._tasks.discard(task)
        if self._held.get(held.id) is held:
            del self._held[held.id]
        self._wake.set()

    # --- Heartbeats and hints ---

    def _beat(self) -> Mapping[str, Any]:
        """Return the next heartbeat. Called in its thread."""
        runs = [{"id": held.id, "epoch": held.epoch} for held in list(self._held.values()) if not held.is_lost]
        return {**self._self, "concurrency": self._concurrency, "runs": runs}

    def _receive(self, answer: Mapping[str, Any], request: Mapping[str, Any], began: float) -> None:
        for row in request["runs"]:
            held = self._held.get(row["id"])
            if held is None or held.epoch != row["epoch"]:
                continue
            if held.id in answer["lost"]:
                held.lose("another process may have claimed the run")
            else:
                held.lease.renew(began, float(answer["lease_s"]))
                held.follow(answer["commands"].get(held.id, ()))

    def _on_hint(self, run_id: str) -> None:
        if run_id in self._held:
            self._heartbeat.hurry()
        else:
            self._wake.set()

    # --- The end ---

    async def _end_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._hand_back()
        self._wake.set()

    def _hand_back(self) -> None:
        log.info("agentops: ending; %d runs are handed back", len(self._held))
        for held in list(self._held.values()):
            held.hand_back()

    async def _end(self) -> None:
        """Hand back all runs, and wait until their functions have ended or the grace period is over."""
        self._hand_back()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
