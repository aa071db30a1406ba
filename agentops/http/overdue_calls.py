"""Counts the calls that were given up and still run: threads cannot be killed, and must not pile up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable

#: Calls of one function that may be overdue. Beyond it, it is not called: each would cost a thread for ever.
MAX_OVERDUE = 20

_lock = threading.Lock()
_overdue: Counter[Hashable] = Counter()


class OverdueCall:
    """One call of the function that `key` names, which may outlast its time limit."""

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
        """Note that the call has ended. Called once, in its thread."""
        with _lock:
            self._has_ended = True
            _overdue[self._key] -= self._is_overdue


def too_many(key: Hashable) -> bool:
    """Return whether so many calls of a function are overdue that it must not be called."""
    with _lock:
        return _overdue[key] >= MAX_OVERDUE
