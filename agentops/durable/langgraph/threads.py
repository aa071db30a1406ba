"""The site's store of threads, for graphs that are executed outside of runs: requests with a key of scope `work`."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, finalize

import httpx

from agentops.client.connection import document_of, is_temporary, pause_s, request_headers, site_url, unreachable
from agentops.client.errors import AgentopsError
from agentops.durable.codec import dump_json
from agentops.durable.wire import TIMEOUT_S

#: Attempts of a request that fails temporarily.
ATTEMPTS = 5
#: Maximum characters of the operations of one request. A site accepts 6 MiB.
REQUEST_SIZE = 3 * 1024 * 1024


class ThreadStore:
    """The connections of a process to the site's store of threads."""

    def __init__(self, url: str | None, key: str | None, http_options: Mapping[str, Any]) -> None:
        self._url = url
        self._key = key
        self._options = {"timeout": TIMEOUT_S, **http_options}
        self._client: httpx.Client | None = None
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = WeakKeyDictionary()

    # --- Requests ---

    def page(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of checkpoints. Raises `AgentopsError`."""
        return self._send("GET", "/checkpoints", params=query)

    async def apage(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of checkpoints. Raises `AgentopsError`."""
        return await self._asend("GET", "/checkpoints", params=query)

    def perform(self, operations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Carry out operations on threads, and return their results. Raises `AgentopsError`."""
        results: list[dict[str, Any]] = []
        for body in _bodies(operations):
            results += self._send("POST", "/threads", content=body, headers=_headers(operations))["results"]
        return results

    async def aperform(self, operations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Carry out operations on threads, and return their results. Raises `AgentopsError`."""
        results: list[dict[str, Any]] = []
        for body in _bodies(operations):
            answer = await self._asend("POST", "/threads", content=body, headers=_headers(operations))
            results += answer["results"]
        return results

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if (client := self._clients.pop(asyncio.get_running_loop(), None)) is not None:
            await client.aclose()

    def close(self) -> None:
        """Close the connections of synchronous requests."""
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- Helpers ---

    def _send(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        if self._client is None:
            self._client = httpx.Client(**self._client_options())
            finalize(self, self._client.close)
        for pause in _pauses():
            try:
                return document_of(self._client.request(method, path, **options))
            except (httpx.HTTPError, AgentopsError) as error:
                refused = error if isinstance(error, AgentopsError) else unreachable(error)
            if pause is None or not is_temporary(refused):
                raise refused
            time.sleep(pause)
        raise AssertionError("unreachable")

    async def _asend(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        if (client := self._clients.get(loop)) is None:
            client = self._clients[loop] = httpx.AsyncClient(**self._client_options())
        for pause in _pauses():
            try:
                return document_of(await client.request(method, path, **options))
            except (httpx.HTTPError, AgentopsError) as error:
                refused = error if isinstance(error, AgentopsError) else unreachable(error)
            if pause is None or not is_temporary(refused):
                raise refused
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    def _client_options(self) -> dict[str, Any]:
        url = self._url or os.environ.get("AGENTOPS_URL", "")
        key = self._key or os.environ.get("AGENTOPS_API_KEY", "")
        if not (url and key):
            raise ValueError("outside of a run, AgentopsSaver needs url and key, or AGENTOPS_URL and AGENTOPS_API_KEY")
        headers = {**request_headers(key), "Content-Type": "application/json"}
        return {"base_url": f"{site_url(url)}/api/work", "headers": headers, **self._options}


def _headers(operations: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the headers of a request. If it may fork a run, a repetition of it must not make a second fork."""
    return {"Idempotency-Key": uuid.uuid4().hex} if any("fork" in operation for operation in operations) else {}


def _pauses() -> Iterator[float | None]:
    """Yield the seconds to wait after each attempt; None after the last one."""
    yield from (pause_s(attempt) for attempt in range(ATTEMPTS - 1))
    yield None


def _bodies(operations: Sequence[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield the bodies of the requests that carry out operations in order."""
    texts: list[str] = []
    size = 0
    for text in map(dump_json, operations):
        if texts and (size + len(text) > REQUEST_SIZE or len(texts) == 100):
            yield f'{{"ops":[{",".join(texts)}]}}'.encode()
            texts, size = [], 0
        texts.append(text)
        size += len(text)
    if texts:
        yield f'{{"ops":[{",".join(texts)}]}}'.encode()


def pages(store: ThreadStore, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield all pages of checkpoints."""
    before: str | None = query.get("before")
    while True:
        page = store.page({**query, **({"before": before} if before else {})})
        yield page
        if (before := page["before"]) is None:
            return


async def apages(store: ThreadStore, query: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """Yield all pages of checkpoints."""
    before: str | None = query.get("before")
    while True:
        page = await store.apage({**query, **({"before": before} if before else {})})
        yield page
        if (before := page["before"]) is None:
            return
