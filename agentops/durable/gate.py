"""Admits the methods of a run: finds out when none of them works, and interrupts the function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakSet

from agentops.durable.errors import RunInterrupted

#: Turns of the event loop after which a task that can continue has called its next method.
_TURNS = 10


class RunGate:
    """The methods of one run that are in progress, and the tasks that called them."""

    def __init__(self) -> None:
        #: Why the function must end; None while it may continue.
        self.interruption: RunInterrupted | None = None
        #: Whether results of functions in threads are not waited for any more.
        self.abandons_threads = False
        #: The number of functions of steps that work in threads.
        self.threads = 0
        self._closing: RunInterrupted | None = None
        self._tasks: WeakSet[asyncio.Task[object]] = WeakSet()
        self._working = 0
        #: The number of changes of `_working`.
        self._changes = 0
        self._quiet: list[asyncio.Future[None]] = []

    def watch(self, task: asyncio.Task[object]) -> None:
        """Cancel this task too when the run is interrupted."""
        if task not in self._tasks:
            self._tasks.add(task)
            task.add_done_callback(self._retrieve)

    def _retrieve(self, task: asyncio.Task[object]) -> None:
        """Keep asyncio from reporting the exceptions of tasks that an interruption has ended."""
        if self.interruption is not None and not task.cancelled():
            task.exception()

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Count a method as working. Raises `RunInterrupted` if the function must end."""
        task = asyncio.current_task()
        assert task is not None
        self.watch(task)
        self._count(1)
        try:
            # A method that is read from the journal allows other branches to begin, like one with a request.
            await asyncio.sleep(0)
            self.check()
            if self._closing is not None:
                await self.step_aside()
            yield
        finally:
            self._count(-1)

    async def step_aside(self) -> None:
        """Wait until all working methods have also stepped aside. For steps that may release the run.

        Raises `RunInterrupted` if the function must end.
        """
        self._count(-1)
        try:
            await self._until_quiet()
        finally:
            self._count(1)
        self.check()
        if self._closing is not None:
            self.interrupt(self._closing)
            self.check()

    @asynccontextmanager
    async def resting(self) -> AsyncIterator[None]:
        """Not count a working method while its function calls other methods. Raises `RunInterrupted`."""
        self._count(-1)
        try:
            yield
        finally:
            self._count(1)
        self.check()

    @property
    def is_alone(self) -> bool:
        """Whether at most one method works."""
        return self._working <= 1

    async def close(self, reason: RunInterrupted) -> None:
        """Allow no further method to begin. Return when none works; raise `reason` in the waiting ones."""
        self._closing = reason
        await self._until_quiet()
        self.interrupt(reason)

    def interrupt(self, reason: RunInterrupted) -> None:
        """End the function: cancel its tasks, and raise `reason` in all later methods. The first reason counts."""
        if self.interruption is None:
            self.interruption = reason
            self.cancel_tasks()

    def cancel_tasks(self) -> None:
        """Cancel the tasks of the function, but not the current one, which may end by an exception."""
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current and not task.done():
                task.cancel()

    def check(self) -> None:
        """Raise `RunInterrupted` if the function must end."""
        if self.interruption is not None:
            raise self.interruption.with_traceback(None)

    def _count(self, change: int) -> None:
        self._working += change
        self._changes += 1
        self._look_for_quiet()

    async def _until_quiet(self) -> None:
        quiet = asyncio.get_running_loop().create_future()
        self._quiet.append(quiet)
        self._look_for_quiet()
        await quiet

    def _look_for_quiet(self, turns: int = _TURNS, changes: int | None = None) -> None:
        """Resume who waits, unless a method begins to work within some turns of the event loop."""
        if self._working or not self._quiet or (changes is not None and changes != self._changes):
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._look_for_quiet, turns - 1, self._changes)
            return
        waiting, self._quiet = self._quiet, []
        for quiet in waiting:
            if not quiet.done():
                quiet.set_result(None)
