"""The requests of a durable function about its run, carried out in this process with the rules of the HTTP API.

The function works in an event loop, and the database is used by the thread of the Celery task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import orjson
from django.db import connection

from agentops.base.database_clock import clock
from agentops.base.http import strict_json
from agentops.base.refusals import Refusal
from agentops.client.errors import AgentopsError, refusal
from agentops.durable import errors
from agentops.durable.wire import RunLease
from runs.database_errors import STORAGE_ERRORS, raise_unless_storage_error
from runs.engine.leases import Lease
from runs.errors import RunNotFound
from runs.models import AgentRun
from runs.remote import ends, graph_states, holds, journal, operations
from runs.remote.bodies import LIMITS, FinishStep, ReleaseBody, StepsBody, parsed
from timeline.models import LeaseLost

#: Seconds between two attempts to reach the database.
STORAGE_WAIT_S = 0.5


class ThreadCalls:
    """Calls that coroutines leave to the thread of the run."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    async def result_of(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call` in the thread of the run. Raises its exceptions."""
        future = asyncio.get_running_loop().create_future()
        self._calls.put(partial(_settle, future, call))
        return await future

    def end(self) -> None:
        """Make `carry_out` return False after the earlier calls."""
        self._calls.put(None)

    def carry_out(self, timeout_s: float, before: Callable[[], None]) -> bool:
        """Call `before` and carry out the next call, or wait for one at most for a time. Returns False at the end."""
        try:
            call = self._calls.get(timeout=max(timeout_s, 0.0))
        except Empty:
            return True
        if call is not None:
            before()
            call()
        return call is not None


def _settle(future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except (Exception, errors.RunInterrupted) as error:
        _post(future, future.set_exception, error)
    else:
        _post(future, future.set_result, result)


def _post(future: asyncio.Future[Any], method: Callable[[Any], None], value: Any) -> None:
    with suppress(RuntimeError):  # the event loop is closed
        future.get_loop().call_soon_threadsafe(_set, future, method, value)


def _set(future: asyncio.Future[Any], method: Callable[[Any], None], value: Any) -> None:
    if not future.done():
        method(value)


class WorkerLease(RunLease):
    """The lease of a run as its durable function sees it. The worker renews it."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(time.monotonic(), 0.0)
        self._lease = lease

    @property
    def seconds_left(self) -> float:
        """The seconds until the lease may be over; negative afterwards."""
        return -1.0 if self._lease.lost.is_set() else self._lease.valid_until - clock()


class WorkerRequests:
    """The requests about one run that this worker holds.

    After an error of the database, they are repeated while the lease is valid. They raise `errors.LeaseLost`, and
    `ApiError` for refusals.
    """

    def __init__(self, run: AgentRun, lease: Lease, calls: ThreadCalls, on_progress: Callable[[], None]) -> None:
        """Prepare the requests. `on_progress` is called, in the thread of the run, after the first finished step."""
        self._run = run
        self._project = run.project
        self._lease = lease
        self._calls = calls
        self._on_progress = on_progress
        #: Whether a step was finished.
        self.has_progress = False
        #: Whether the run was released.
        self.is_released = False
        #: Why the run is not executed further: `LeaseLost`, or an error inside agentops.
        self.failure: Exception | None = None

    async def send_ops(self, ops: Sequence[str]) -> Mapping[str, Any]:
        """Send operations in one transaction. Each is a JSON text."""
        return await self._answer(partial(self._perform, f'{{"epoch":{self._lease.epoch},"ops":[{",".join(ops)}]}}'))

    async def steps_after(self, after: int) -> Mapping[str, Any]:
        """Return the page of the journal after this number of steps."""
        return await self._answer(partial(self._page, after))

    async def piece(self, key: str, index: int) -> str:
        """Return a piece of a large value."""
        return str((await self._answer(partial(self._piece, key, index)))["data"])

    async def checkpoints(self, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return stored checkpoints of graphs."""
        return await self._answer(partial(self._checkpoints, query))

    async def release(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Release the run."""
        return await self._answer(partial(self._release, {"epoch": self._lease.epoch, **body}))

    async def _answer(self, request: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._calls.result_of(partial(self._carried_out, request))
        return answer

    # --- In the thread of the run ---

    def _carried_out(self, request: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Return the answer of a request, with the values that JSON gives. Raises errors of durable functions."""
        try:
            answer: dict[str, Any] = orjson.loads(orjson.dumps(self._repeated(request), option=orjson.OPT_NON_STR_KEYS))
            return answer
        except (LeaseLost, RunNotFound) as error:
            self.failure = error if isinstance(error, LeaseLost) else LeaseLost(str(error))
            raise errors.LeaseLost(str(error)) from error
        except Refusal as error:
            raise _as_refused(error) from error
        except Exception as error:
            self.failure = error
            raise errors.LeaseLost(f"an error inside agentops: {type(error).__name__}") from error

    def _repeated(self, request: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        while True:
            self._lease.check()
            try:
                return request()
            except STORAGE_ERRORS as error:
                raise_unless_storage_error(error)
            connection.close()
            time.sleep(STORAGE_WAIT_S)

    def _perform(self, text: str) -> Mapping[str, Any]:
        body = parsed(StepsBody, strict_json.parse(text, LIMITS))
        answer = operations.perform(self._project, self._run.pk, body.epoch, body.ops, is_packaged=True)
        self.is_released = answer["results"][-1].get("state") == "released"
        if not self.has_progress and any(isinstance(op, FinishStep) for op in body.ops):
            self.has_progress = True
            self._on_progress()
        return answer

    def _page(self, after: int) -> Mapping[str, Any]:
        steps, rest = journal.page(self._read(), after=after)
        return {"steps": steps, "steps_after": rest}

    def _piece(self, key: str, index: int) -> Mapping[str, Any]:
        return {"data": journal.piece_text(self._read(), key, index)}

    def _checkpoints(self, query: Mapping[str, Any]) -> Mapping[str, Any]:
        # As in the URL of the HTTP API, these are a JSON text.
        metadata = orjson.loads(query.get("metadata") or "{}")
        return graph_states.page(
            graph_states.of_run(self._read()), graph_states.selection_of({**query, "metadata": metadata})
        )

    def _read(self) -> AgentRun:
        return holds.read(self._project, self._run.pk, self._lease.epoch, is_packaged=True)

    def _release(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        released = ends.release(self._project, self._run.pk, parsed(ReleaseBody, document), is_packaged=True)
        self.is_released = True
        return released


def _as_refused(error: Refusal) -> AgentopsError:
    return refusal(error.status, {"code": error.code, "detail": str(error), **error.facts()}, None)
