"""A deadline for calls that cannot be interrupted."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
#: Seconds between two checks whether to keep waiting.
WATCH_S = 0.25


class DeadlineExceeded(Exception):
    """The deadline has passed. The call continues in its thread, and its result is discarded."""


@dataclass(frozen=True)
class _Result(Generic[T]):
    value: T


def call_within(
    seconds: float | None,
    function: Callable[[], T],
    *,
    name: str,
    watch: Callable[[], None] | None = None,
    late: Callable[[T], None] | None = None,
) -> T:
    """Call a function in a new daemon thread, and return or raise what it does, or raise `DeadlineExceeded`.

    A new thread each time, because hanging calls would fill a pool.
    """
    answer: SimpleQueue[_Result[T] | BaseException] = SimpleQueue()
    abandoned = threading.Event()

    def work() -> None:
        try:
            answer.put(_Result(function()))
        except BaseException as error:
            answer.put(error)
        if abandoned.is_set():
            _pass_on_late_result(answer, late)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name=name, daemon=True).start()
    try:
        result = _await_answer(answer, None if seconds is None else time.monotonic() + seconds, watch)
    except BaseException:
        abandoned.set()
        _pass_on_late_result(answer, late)
        raise
    if isinstance(result, _Result):
        return result.value
    raise result


def _await_answer(
    answer: SimpleQueue[_Result[T] | BaseException], until: float | None, watch: Callable[[], None] | None
) -> _Result[T] | BaseException:
    while True:
        try:
            return answer.get(timeout=_wait_s(until, watch))
        except Empty:
            if until is not None and time.monotonic() >= until:
                raise DeadlineExceeded from None
        if watch is not None:
            watch()


def _pass_on_late_result(answer: SimpleQueue[_Result[T] | BaseException], late: Callable[[T], None] | None) -> None:
    """Pass on a result that nobody waits for any more. Both threads check, because it may arrive at the deadline."""
    try:
        result = answer.get_nowait()
    except Empty:
        return
    if late is not None and isinstance(result, _Result):
        late(result.value)


def _wait_s(until: float | None, watch: Callable[[], None] | None) -> float | None:
    left_s = None if until is None else max(until - time.monotonic(), 0.0)
    if watch is None:
        return left_s
    return WATCH_S if left_s is None else min(left_s, WATCH_S)
