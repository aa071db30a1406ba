"""Sends the operations of several runs in one request, as long as an earlier request is in progress."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentops.client.connection import is_temporary
from agentops.client.errors import AgentopsError, ApiError

#: Maximum runs and characters of a request. A site accepts 100 runs and 5 MiB.
BATCH_RUNS, BATCH_SIZE = 64, 1024 * 1024
#: Characters of operations that are sent in a separate request, so that others do not wait for them.
LARGE = 128 * 1024
#: Seconds after which operations do not wait longer for the answer to an earlier request.
PATIENCE_S = 0.1

#: The answer about operations that the site has not carried out.
_ALONE: Mapping[str, Any] = {"alone": True}
#: Sends the operations of one run in a separate request. Raises `AgentopsError`.
SendAlone = Callable[[], Awaitable[Mapping[str, Any]]]
#: Sends the operations of several runs. Raises `AgentopsError`.
SendTogether = Callable[[str], Awaitable[Mapping[str, Any] | None]]


@dataclass(eq=False)
class _Member:
    """The operations of one run, and the answer to them."""

    #: The entry of the request: JSON.
    entry: str
    alone: SendAlone
    answer: asyncio.Future[Mapping[str, Any]]

    async def send_alone(self) -> None:
        try:
            answer = await self.alone()
        except BaseException as error:
            if not self.answer.done():
                self.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.settle(answer)

    def settle(self, answer: Mapping[str, Any]) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class RunBatches:
    """The operations of the runs of one process.

    The first ones are sent at once. Later ones wait for the answer, and are then sent together. So a process
    with one run at a time does not wait, and one with many saves most requests.
    """

    def __init__(self, send: SendTogether) -> None:
        self._send = send
        self._waiting: deque[_Member] = deque()
        #: The requests in progress, and those of operations that the site did not carry out together.
        self._senders: set[asyncio.Task[None]] = set()
        self._others: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        #: Whether the site accepts operations of several runs. Sites of earlier versions do not.
        self._is_supported = True

    async def send(self, run_id: str, epoch: int, ops: Sequence[str], alone: SendAlone) -> Mapping[str, Any]:
        """Send the operations of a run, each a JSON text, and return the answer. `alone` sends them separately.

        Raises `AgentopsError`.
        """
        entry = f'{{"id":"{run_id}","epoch":{epoch},"ops":[{",".join(ops)}]}}'
        if len(entry) > LARGE or not self._is_supported:
            return await alone()
        member = _Member(entry, alone, asyncio.get_running_loop().create_future())
        self._waiting.append(member)
        self._wake()
        return await member.answer

    def _wake(self) -> None:
        """Begin a request if none is in progress, or after some time."""
        if not self._senders:
            self._begin()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # The task begins after what else is ready, so that runs that continue together share a request.
        sender = asyncio.get_running_loop().create_task(self._send_waiting())
        self._senders.add(sender)
        sender.add_done_callback(self._ended)

    def _ended(self, sender: asyncio.Task[None]) -> None:
        self._senders.discard(sender)
        if self._waiting and not self._senders:
            self._begin()

    async def _send_waiting(self) -> None:
        while batch := self.next_batch():
            if len(batch) == 1:
                await batch[0].send_alone()
            else:
                await self._send_batch(batch)

    def next_batch(self) -> list[_Member]:
        """Return the waiting operations that the next request sends."""
        batch: list[_Member] = []
        size = 0
        while self._waiting and len(batch) < BATCH_RUNS and size <= BATCH_SIZE:
            batch.append(self._waiting.popleft())
            size += len(batch[-1].entry)
        return batch

    async def _send_batch(self, batch: Sequence[_Member]) -> None:
        """Send operations together. Operations that the site does not carry out together are sent run by run."""
        answers: Sequence[Mapping[str, Any]] = ()
        try:
            answer = await self._send(f'{{"runs":[{",".join(member.entry for member in batch)}]}}')
            answers = (answer or {}).get("runs") or ()
        except AgentopsError as error:
            if is_temporary(error) or (isinstance(error, ApiError) and error.status >= 500):
                for member in batch:
                    member.fail(error)
                return
            self._is_supported = not (isinstance(error, ApiError) and error.status in (404, 405))
        for index, member in enumerate(batch):
            answer = answers[index] if index < len(answers) else _ALONE
            if answer.get("alone"):
                other = asyncio.get_running_loop().create_task(member.send_alone())
                self._others.add(other)
                other.add_done_callback(self._others.discard)
            else:
                member.settle(answer)
