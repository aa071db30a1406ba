"""Calls the functions of steps: coroutine functions in the event loop, others in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from agentops.durable.gate import RunGate

T = TypeVar("T")
#: Starts a function in a thread, and returns the future of its result.
StartInThread = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]


class ThreadCancelled(Exception):
    """A call was cancelled while its function ran in a thread, which cannot be interrupted.

    The function has ended since; `result` is its finished future.
    """

    def __init__(self, result: asyncio.Future[Any]) -> None:
        super().__init__()
        self.result = result


def settle(future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    """Call a function in this thread, and set the future of another thread to its result or exception."""
    try:
        result = call()
    except BaseException as error:
        # A future cannot hold a StopIteration.
        wrapped = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
        _post(future, partial(_set, future.set_exception, wrapped, future))
    else:
        _post(future, partial(_set, future.set_result, result, future))


def _set(method: Callable[[Any], None], value: Any, future: asyncio.Future[Any]) -> None:
    if not future.done():
        method(value)


def _post(future: asyncio.Future[Any], call: Callable[[], None]) -> None:
    try:
        future.get_loop().call_soon_threadsafe(call)
    except RuntimeError:
        return  # the event loop has ended without waiting for this thread


def start_thread(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """Call a function in a new thread with the context of the caller.

    The thread is a daemon: the end of the process does not wait for a function that was abandoned.
    """
    future = asyncio.get_running_loop().create_future()
    run = contextvars.copy_context().run
    threading.Thread(target=run, args=(settle, future, call), name="agentops-step", daemon=True).start()
    return future


#: How this context starts functions that are not coroutine functions.
start_in_thread: ContextVar[StartInThread] = ContextVar("agentops_start_in_thread", default=start_thread)


async def call_function(call: Callable[[], Any], gate: RunGate, *, is_async: bool) -> Any:
    """Return the result of a step's function. Raises its exceptions, and `ThreadCancelled`.

    A function that is not a coroutine function may return an awaitable, as a lambda does.
    """
    result = call() if is_async else await _of_thread(call, gate)
    return await result if inspect.isawaitable(result) else result


async def _of_thread(call: Callable[[], Any], gate: RunGate) -> Any:
    future = start_in_thread.get()(call)
    is_cancelled = False
    gate.threads += 1
    try:
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if gate.abandons_threads:
                    raise
                is_cancelled = True
    finally:
        gate.threads -= 1
    if is_cancelled:
        raise ThreadCancelled(future)
    return future.result()
