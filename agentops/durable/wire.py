"""The requests of a process that executes durable functions: `/api/work` of its site."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import httpx

from agentops.client.connection import (
    STREAM_TIMEOUT,
    document_of,
    is_temporary,
    pause_s,
    request_headers,
    site_url,
    unreachable,
)
from agentops.client.errors import AgentopsError, ApiError
from agentops.durable.batches import RunBatches
from agentops.durable.codec import dump_json
from agentops.durable.errors import LeaseLost

T = TypeVar("T")
#: Seconds until a request without an answer is repeated.
TIMEOUT_S = 20.0
#: Seconds before the end of a lease at which this process stops using it.
MARGIN_S = 1.0
#: Codes and statuses that mean that the process no longer has the run, or the right to execute it.
_LOST_CODES, _LOST_STATUSES = frozenset({"lease_lost", "run_not_found"}), frozenset({401, 403, 410})
_JSON = {"Content-Type": "application/json"}


def is_retryable(error: AgentopsError) -> bool:
    """Return whether a request about work may succeed later. The site answers a repeated request as the first one."""
    return is_temporary(error) or (isinstance(error, ApiError) and error.status >= 500)


class WorkSite:
    """The connection of a process to its site, in one event loop."""

    def __init__(self, url: str, key: str, http_options: Mapping[str, Any]) -> None:
        """Prepare the connection. Raises `ValueError` for an invalid URL or key."""
        self.base = f"{site_url(url)}/api/work"
        self.headers = request_headers(key)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        self._http = httpx.AsyncClient(**{"limits": limits, **http_options})
        self.batches = RunBatches(partial(self.post, "/steps"))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, path: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object of a response. Raises `AgentopsError`."""
        return await self._send("GET", path, params=params) or {}

    async def post(self, path: str, body: Mapping[str, Any] | str) -> dict[str, Any] | None:
        """Send a JSON object, and return the object of the response; None for 204. Raises `AgentopsError`."""
        return await self._send("POST", path, content=encoded(body), headers=_JSON)

    async def _send(self, method: str, path: str, **options: Any) -> dict[str, Any] | None:
        options["headers"] = self.headers | options.get("headers", {})
        try:
            response = await self._http.request(method, f"{self.base}{path}", timeout=TIMEOUT_S, **options)
        except httpx.HTTPError as error:
            raise unreachable(error) from error
        return None if response.status_code == 204 else document_of(response)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of the stream of hints; first an empty text, when it is open. Raises `AgentopsError`."""
        options: Any = {"headers": self.headers, "timeout": STREAM_TIMEOUT}
        try:
            async with self._http.stream("GET", f"{self.base}/stream", **options) as response:
                if response.status_code != 200:
                    await response.aread()
                    document_of(response)
                yield b""
                async for chunk in response.aiter_bytes():
                    yield chunk
        except httpx.HTTPError as error:
            raise unreachable(error) from error


def encoded(body: Mapping[str, Any] | str) -> bytes:
    """Return a body as bytes. Raises `TypeError` or `ValueError` if it is not JSON."""
    return (body if isinstance(body, str) else dump_json(body)).encode()


class RunLease:
    """The right of this process to execute a run, by the clock of this process."""

    def __init__(self, began: float, lease_s: float) -> None:
        self.valid_until = 0.0
        self.renew(began, lease_s)

    def renew(self, began: float, lease_s: float) -> None:
        """Extend the lease after a successful request. `began`: `time.monotonic()` before the request was sent."""
        self.valid_until = max(self.valid_until, began + lease_s - min(MARGIN_S, lease_s / 4))

    @property
    def seconds_left(self) -> float:
        """The seconds until the lease may be over; negative afterwards."""
        return self.valid_until - time.monotonic()


class StepRequests(Protocol):
    """The requests about one held run. They raise `LeaseLost`, and `ApiError` for other refusals."""

    async def send_ops(self, ops: Sequence[str]) -> Mapping[str, Any]:
        """Send operations in one transaction. Each is a JSON text."""

    async def steps_after(self, after: int) -> Mapping[str, Any]:
        """Return the page of the journal after this number of steps."""

    async def piece(self, key: str, index: int) -> str:
        """Return a piece of a large value."""

    async def checkpoints(self, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return stored checkpoints of graphs. `query`: parameters of `GET /api/work/checkpoints`."""

    async def release(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Release the run."""


class WatchedRequests:
    """The requests about one held run, which tell when one of them has found the lease lost.

    A function that ends with such an exception has not failed, so its run must not be released as failed.
    """

    def __init__(self, requests: StepRequests, on_lost: Callable[[str], None]) -> None:
        self._requests = requests
        self._on_lost = on_lost

    async def send_ops(self, ops: Sequence[str]) -> Mapping[str, Any]:
        """Send operations in one transaction. Each is a JSON text."""
        return await self._watched(self._requests.send_ops(ops))

    async def steps_after(self, after: int) -> Mapping[str, Any]:
        """Return the page of the journal after this number of steps."""
        return await self._watched(self._requests.steps_after(after))

    async def piece(self, key: str, index: int) -> str:
        """Return a piece of a large value."""
        return await self._watched(self._requests.piece(key, index))

    async def checkpoints(self, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return stored checkpoints of graphs."""
        return await self._watched(self._requests.checkpoints(query))

    async def release(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Release the run."""
        return await self._watched(self._requests.release(body))

    async def _watched(self, request: Awaitable[T]) -> T:
        try:
            return await request
        except LeaseLost as error:
            self._on_lost(str(error))
            raise


class RunRequests:
    """The requests about one held run over HTTP, repeated after temporary errors while its lease is valid.

    They raise `LeaseLost` if the process no longer has the run, and `ApiError` for other refusals.
    """

    def __init__(self, site: WorkSite, run_id: str, epoch: int, lease: RunLease) -> None:
        self._site = site
        self._run_id = run_id
        self._path = f"/runs/{quote(run_id, safe='')}"
        self._epoch = epoch
        self._lease = lease

    async def send_ops(self, ops: Sequence[str]) -> Mapping[str, Any]:
        """Send operations in one transaction. Each is a JSON text."""
        body = f'{{"epoch":{self._epoch},"ops":[{",".join(ops)}]}}'
        alone = partial(self._request, "POST", "/steps", body)
        return await self._retried(lambda: self._site.batches.send(self._run_id, self._epoch, ops, alone))

    async def steps_after(self, after: int) -> Mapping[str, Any]:
        """Return the page of the journal after this number of steps."""
        return await self._retried(partial(self._request, "GET", "/steps", {"epoch": self._epoch, "after": after}))

    async def piece(self, key: str, index: int) -> str:
        """Return a piece of a large value."""
        params = {"epoch": self._epoch, "key": key, "piece": index}
        return str((await self._retried(partial(self._request, "GET", "/steps/value", params)))["data"])

    async def checkpoints(self, query: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return stored checkpoints of graphs."""
        return await self._retried(partial(self._site.get, "/checkpoints", query))

    async def release(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Release the run."""
        return await self._retried(partial(self._request, "POST", "/release", {"epoch": self._epoch, **body}))

    async def _request(self, method: str, path: str, content: Any) -> Mapping[str, Any]:
        if method == "GET":
            return await self._site.get(self._path + path, content)
        return await self._site.post(self._path + path, content) or {}

    async def _retried(self, request: Callable[[], Awaitable[Mapping[str, Any]]]) -> Mapping[str, Any]:
        attempt = 0
        while True:
            try:
                return await request()
            except AgentopsError as error:
                if isinstance(error, ApiError) and (error.code in _LOST_CODES or error.status in _LOST_STATUSES):
                    raise LeaseLost(str(error)) from error
                if not is_retryable(error):
                    raise
                requested = error.retry_after_s if isinstance(error, ApiError) else None
                pause = pause_s(attempt) if requested is None else requested
                if pause >= self._lease.seconds_left:
                    raise LeaseLost(f"the site could not be reached within the lease: {error}") from error
            await asyncio.sleep(pause)
            attempt += 1
