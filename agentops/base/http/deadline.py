"""A deadline for calls that cannot be interrupted, and a limit on calls that continue after it."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
#: Seconds between calls of `watch` while waiting.
WATCH_S = 0.25
#: Maximum number of overdue calls of one function. At the limit it is not called: each hanging call occupies a thread.
MAX_OVERDUE = 20

_lock = threading.Lock()
_overdue: Counter[Hashable] = Counter()


class DeadlineExceeded(Exception):
    """The deadline has passed. The call continues in its thread, and its result is discarded."""


class NotStarted(Exception):
    """No thread could be started, so the function was not called."""


@dataclass(frozen=True)
class _Result(Generic[T]):
    value: T


class TimedCall(Generic[T]):
    """A function that runs in a new daemon thread, with a time limit that starts now."""

    def __init__(self, seconds: float | None, function: Callable[[], T], *, name: str) -> None:
        self._answer: SimpleQueue[_Result[T] | BaseException] = SimpleQueue()
        self._abandoned = threading.Event()
        self._late: Callable[[T], None] | None = None
        self._began = time.monotonic()
        self._ended: float | None = None
        self._until = None if seconds is None else self._began + seconds
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._work, function), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the machine, or the container, has no room for another one
            self._ended = self._began
            self._answer.put(NotStarted(str(error)))

    def wait(self, watch: Callable[[], None] | None = None, late: Callable[[T], None] | None = None) -> T:
        """Return the result of the function or raise its exception, or raise `DeadlineExceeded` or `NotStarted`.

        `watch` is called every 0.25 s. If it raises, waiting ends. A result that arrives after that is passed to
        `late`.
        """
        try:
            result = _await_answer(self._answer, self._until, watch)
        except BaseException:
            self.abandon(late)
            raise
        if isinstance(result, _Result):
            return result.value
        raise result

    def abandon(self, late: Callable[[T], None] | None = None) -> None:
        """Pass the result to `late` when it arrives, on that thread or this one. Threads cannot be killed."""
        self._late = late
        self._abandoned.set()
        _pass_on_late_result(self._answer, late)

    def elapsed_s(self) -> float:
        """Return the seconds that the function has been running, or took."""
        return (self._ended or time.monotonic()) - self._began

    def _work(self, function: Callable[[], T]) -> None:
        try:
            result: _Result[T] | BaseException = _Result(function())
        except BaseException as error:
            result = error
        self._ended = time.monotonic()
        self._answer.put(result)
        if self._abandoned.is_set():
            _pass_on_late_result(self._answer, self._late)


def call_within(
    seconds: float | None,
    function: Callable[[], T],
    *,
    name: str,
    watch: Callable[[], None] | None = None,
    late: Callable[[T], None] | None = None,
) -> T:
    """Call a function in a new daemon thread. Return its result or raise its exception or `DeadlineExceeded`.

    Each call gets a new thread, because hanging calls would exhaust a pool. `NotStarted` is raised if no thread can be
    started. See `TimedCall.wait` for the rest.
    """
    return TimedCall(seconds, function, name=name).wait(watch, late)


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
    """Pass on a result after the wait has ended. Both threads check, because it may arrive at the deadline."""
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


class OverdueCall:
    """One call of the function named by `key`, which may exceed its time limit."""

    def __init__(self, key: Hashable) -> None:
        self._key = key
        self._has_ended = False
        self._is_overdue = False

    def give_up(self) -> None:
        """Count the call as overdue until it ends."""
        with _lock:
            self._is_overdue = not self._has_ended
            _overdue[self._key] += self._is_overdue

    def end(self) -> None:
        """Record that the call has ended. Called once, in its thread."""
        with _lock:
            self._has_ended = True
            _overdue[self._key] -= self._is_overdue


def too_many(key: Hashable) -> bool:
    """Return whether too many calls of a function are overdue, so that it must not be called."""
    with _lock:
        return _overdue[key] >= MAX_OVERDUE
