"""A budget of work: computation that people define is counted while it runs, and ends when its budget is spent.

A process serves many projects. What one of them defines (a schema, an expression, a compressed file) must not decide
how long the others wait, so the code that executes it calls `WorkBudget.spend` before each part of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from threading import Event

#: How often a budget looks at the clock, and calls `watch`, before it is spent.
CHECKS = 256


#: Set when the work of this context has to end, because its process does. None: nothing ends it.
process_ends: ContextVar[Event | None] = ContextVar("the end of the process", default=None)


class WorkExceeded(Exception):
    """The work is over its budget, or its process ends. The message says which, for use after "it"."""


class WorkBudget:
    """How much work one computation may do: `limit` units, and seconds of CPU time.

    The limit comes first: the same input is refused on every machine. The time is a second limit for what the units
    count too low. It is CPU time of the calling thread, so a busy machine refuses nothing. `watch` is called at each
    look at the clock, and ends the work by raising. Use a budget in one thread only.
    """

    def __init__(
        self, limit: int, unit: str, *, cpu_s: float | None = None, watch: Callable[[], None] | None = None
    ) -> None:
        self.limit, self.unit = limit, unit
        #: The units spent so far; more than `limit` once the budget is exceeded.
        self.spent = 0
        self._cpu_s, self._watch, self._process_ends = cpu_s, watch, process_ends.get()
        self._cpu_end = None if cpu_s is None else time.thread_time() + cpu_s
        self._every = max(1, limit // CHECKS)
        self._next_check = min(self._every, limit)

    @property
    def left(self) -> int:
        """The units that can still be spent."""
        return max(self.limit - self.spent, 0)

    def spend(self, units: int = 1) -> None:
        """Count work that is about to be done. Raises `WorkExceeded`; so does every later call."""
        self.spent += units
        if self.spent > self._next_check:
            self.check()

    def check(self) -> None:
        """Look at the clock and call `watch` now, for work that is not counted in units. Raises `WorkExceeded`."""
        if self.spent > self.limit:
            raise WorkExceeded(f"takes more than {self.limit} {self.unit}")
        if self._cpu_end is not None and time.thread_time() > self._cpu_end:
            self._next_check = -1
            raise WorkExceeded(f"takes more than {self._cpu_s:g} s of CPU time")
        if self._process_ends is not None and self._process_ends.is_set():
            self._next_check = -1
            raise WorkExceeded("was ended, because the server stops")
        self._next_check = min(self.spent + self._every, self.limit)
        if self._watch is not None:
            self._watch()
