"""Counts the calls of hooks that were given up and still run: threads cannot be killed, and must not pile up."""

from __future__ import annotations

import threading
from collections import Counter

from runs.hooks.base import Hook

#: Calls of one hook that may be overdue. Beyond it, the hook is not called: each would cost a thread for ever.
MAX_OVERDUE = 20

_lock = threading.Lock()
_overdue: Counter[type[Hook]] = Counter()


class HookCall:
    """One call of a hook, which may outlast its time limit."""

    def __init__(self, hook: Hook) -> None:
        self._kind = type(hook)
        self._has_ended = False
        self._is_overdue = False

    def give_up(self) -> None:
        """Count the call as overdue until it ends."""
        with _lock:
            self._is_overdue = not self._has_ended
            _overdue[self._kind] += self._is_overdue

    def end(self) -> None:
        """Note that the call has ended. Called once, in its thread."""
        with _lock:
            self._has_ended = True
            _overdue[self._kind] -= self._is_overdue


def too_many(hook: Hook) -> bool:
    """Return whether so many calls of the hook are overdue that it must not be called."""
    with _lock:
        return _overdue[type(hook)] >= MAX_OVERDUE
