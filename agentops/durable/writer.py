"""Sends the operations of one run in order. Operations that wait at the same time are sent in one request."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from agentops.client.errors import AgentopsError
from agentops.durable.codec import dump_json
from agentops.durable.errors import RunInterrupted

log = logging.getLogger("agentops.durable")

#: Maximum operations and characters of a request. A site accepts 100 operations and 6 MiB.
BATCH_OPS, BATCH_SIZE = 100, 2 * 1024 * 1024
#: Maximum characters of a streamed piece of text, and seconds until it is sent.
TEXT_SIZE, TEXT_PAUSE_S = 60_000, 0.25

#: The operations that append to the log of the run. Others change a step, which has a key.
APPENDING = frozenset({"fail", "log", "text"})
#: Sends operations as JSON texts, and returns the response. Raises `AgentopsError` or `RunInterrupted`.
Send = Callable[[Sequence[str]], Awaitable[Mapping[str, Any]]]


@dataclass(eq=False)
class _Entry:
    op: str
    #: None: no caller waits for the result.
    result: asyncio.Future[Mapping[str, Any]] | None = None

    def settle(self, result: Mapping[str, Any] | BaseException) -> None:
        if self.result is None:
            if isinstance(result, AgentopsError):
                log.warning("agentops: the site refuses %s: %s", self.op[:200], result)
        elif not self.result.done():
            if isinstance(result, BaseException):
                self.result.set_exception(result)
                # The exception was seen, even if the method that waits was cancelled.
                self.result.exception()
            else:
                self.result.set_result(result)


class StepWriter:
    """The queue of operations of a run, in the event loop of its creation."""

    def __init__(self, send: Send, on_commands: Callable[[Sequence[str]], None]) -> None:
        """Prepare an empty queue. `on_commands` gets the pending commands of each response."""
        self._send = send
        self._on_commands = on_commands
        self._queue: deque[_Entry] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        #: The streamed text that is not in the queue yet: the key of its step, and its pieces.
        self._text: tuple[str, list[str]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Why nothing is sent any more.
        self._end: RunInterrupted | None = None

    async def submit(self, *ops: Mapping[str, Any] | str) -> Mapping[str, Any]:
        """Send operations, each an object or its JSON, and return the result of the last one.

        Raises `ApiError` if the site refuses it. All are sent even if the caller is cancelled.
        """
        return await self.enqueue(*ops)

    def enqueue(self, *ops: Mapping[str, Any] | str) -> asyncio.Future[Mapping[str, Any]]:
        """Send operations as `submit` does, but without waiting: return the future of the last one's result."""
        for op in ops[:-1]:
            self.add(op)
        result = self._loop.create_future()
        self._append(_Entry(_json(ops[-1]), result))
        self._wake()
        return result

    def add(self, op: Mapping[str, Any] | str) -> None:
        """Send an operation with the next request, or soon. Its result is not needed. May be called in any thread."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.add, op)
            return
        self._append(_Entry(_json(op)))
        self._wake_later()

    def add_text(self, key: str, text: str) -> None:
        """Send streamed text of a step soon. Pieces are joined. May be called in any thread."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.add_text, key, text)
            return
        if self._text is None or self._text[0] != key:
            self._queue_text()
            self._text = (key, [])
        self._text[1].append(text)
        self._wake_later()

    async def flush(self) -> None:
        """Send everything that was added, and wait until it is sent or refused."""
        self._queue_text()
        self._wake()
        while self._sender is not None:
            await asyncio.wait([self._sender])

    def _append(self, entry: _Entry) -> None:
        self._queue_text()
        self._queue.append(entry)

    def _queue_text(self) -> None:
        """Move the streamed text to the queue, behind the operations that were added before it."""
        if self._text is not None:
            key, pieces = self._text
            self._text = None
            text = "".join(pieces)
            for start in range(0, len(text), TEXT_SIZE):
                self._queue.append(_Entry(_json({"op": "text", "key": key, "text": text[start : start + TEXT_SIZE]})))

    def _wake_later(self) -> None:
        if self._timer is None and self._sender is None:
            self._timer = self._loop.call_later(TEXT_PAUSE_S, self._wake)

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue_text()
        if self._sender is None and self._queue:
            # The task begins after what else is ready, so that branches that begin together share a request.
            self._sender = self._loop.create_task(self._send_all(), context=Context())

    async def _send_all(self) -> None:
        try:
            while self._queue:
                await self._send_batch(self._next_batch())
                self._queue_text()
        finally:
            self._sender = None

    def _next_batch(self) -> list[_Entry]:
        batch, size = [self._queue.popleft()], 0
        size = len(batch[0].op)
        while self._queue and len(batch) < BATCH_OPS and size + len(self._queue[0].op) <= BATCH_SIZE:
            batch.append(self._queue.popleft())
            size += len(batch[-1].op)
        return batch

    async def _send_batch(self, batch: list[_Entry]) -> None:
        """Send a batch, and settle its entries. A refused batch changes nothing, so its entries are sent one by one."""
        try:
            if self._end is not None:
                raise self._end
            answer = await self._send([entry.op for entry in batch])
        except AgentopsError as error:
            if len(batch) == 1:
                batch[0].settle(error)
                return
            for entry in batch:
                await self._send_batch([entry])
        except RunInterrupted as error:
            self._end = error
            for entry in batch:
                entry.settle(error)
        else:
            self._settle(batch, answer["results"])
            self._on_commands(answer.get("commands") or ())

    def _settle(self, batch: list[_Entry], results: Sequence[Mapping[str, Any]]) -> None:
        for entry, result in zip(batch, results, strict=False):
            entry.settle(result)
        # An operation that releases the run ends the batch.
        for entry in batch[len(results) :]:
            entry.settle(RunInterrupted("the run was released"))


def _json(op: Mapping[str, Any] | str) -> str:
    if isinstance(op, str):
        return op
    # If the answer is lost, the request is repeated. By the ID, the site knows the operation again.
    return dump_json({**op, "id": secrets.token_hex(8)} if op["op"] in APPENDING else op)
