"""Time limits for calls that cannot be interrupted, and a limit of calls that continue after their time limit."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")
#: Seconds between calls of `watch` while waiting.
WATCH_S = 0.25
#: Number of overdue calls of a function from which it is not called any more: each hanging call occupies a thread.
MAX_OVERDUE = 20

_lock = threading.Lock()
_overdue: Counter[Hashable] = Counter()


class DeadlineExceeded(Exception):
    """The deadline has passed. The call continues in its thread."""


class NotStarted(Exception):
    """No thread could be started, so the function was not called."""


class TimedCall(Generic[T]):
    """A call of a function in a new daemon thread, which the constructor starts, with a time limit.

    Each call gets a new thread, because hanging calls would exhaust a pool.
    """

    def __init__(self, seconds: float | None, function: Callable[[], T], *, name: str) -> None:
        self._result: Future[T] = Future()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._until = None if seconds is None else self._began + seconds
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._work, function), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine, or the container, allows no more threads
            self._ended = self._began
            self._result.set_exception(NotStarted(str(error)))

    def wait(self, watch: Callable[[], None] | None = None, late: Callable[[T], None] | None = None) -> T:
        """Return the result of the function, or raise its exception, `DeadlineExceeded` or `NotStarted`.

        `watch` is called every 0.25 s; if it raises, waiting ends. A result that arrives after the wait goes to `late`.
        """
        try:
            while not futures.wait([self._result], self._next_wait_s(watch)).done:
                if self._until is not None and time.monotonic() >= self._until:
                    raise DeadlineExceeded
                if watch is not None:
                    watch()
        except BaseException:
            self.abandon(late)
            raise
        return self._result.result()

    def abandon(self, late: Callable[[T], None] | None = None) -> None:
        """Stop waiting. The call continues, because threads cannot be killed. Its result is passed to `late`.

        `late` is called in the thread of the function, or in this one if the result is already there.
        """
        if late is not None:
            self._result.add_done_callback(partial(_pass_on, late))

    def elapsed_s(self) -> float:
        """Return the seconds for which the function has run so far, or that it took."""
        return (self._ended or time.monotonic()) - self._began

    def _work(self, function: Callable[[], T]) -> None:
        try:
            value = function()
        except BaseException as error:
            self._ended = time.monotonic()
            self._result.set_exception(error)
        else:
            self._ended = time.monotonic()
            self._result.set_result(value)

    def _next_wait_s(self, watch: Callable[[], None] | None) -> float | None:
        left_s = None if self._until is None else max(self._until - time.monotonic(), 0.0)
        if watch is None:
            return left_s
        return WATCH_S if left_s is None else min(left_s, WATCH_S)


def _pass_on(late: Callable[[T], None], result: Future[T]) -> None:
    if result.exception() is None:
        late(result.result())


def call_within(seconds: float | None, function: Callable[[], T], *, name: str) -> T:
    """Call a function in a new daemon thread, and wait for it as in `TimedCall.wait`."""
    return TimedCall(seconds, function, name=name).wait()


class TrackedCall:
    """A call of the function `key`, which is counted as overdue from `give_up` to `end`."""

    def __init__(self, key: Hashable) -> None:
        self._key = key
        self._has_ended = False
        self._is_overdue = False

    def give_up(self) -> None:
        """Count the call as overdue, unless it has ended."""
        with _lock:
            self._is_overdue = not self._has_ended
            _overdue[self._key] += self._is_overdue

    def end(self) -> None:
        """Record that the call has ended. Must be called once."""
        with _lock:
            self._has_ended = True
            _overdue[self._key] -= self._is_overdue


def too_many(key: Hashable) -> bool:
    """Return whether too many calls of a function are overdue, so that it must not be called."""
    with _lock:
        return _overdue[key] >= MAX_OVERDUE
