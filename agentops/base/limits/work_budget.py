"""A work budget: computation defined by users is counted while it runs, and ends when it exceeds the budget.

A process serves many projects. The definitions of one project (a schema, an expression, a compressed file) must not
delay other projects, so the code that executes them calls `WorkBudget.spend` before each part of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from threading import Event

#: Number of times a budget checks the clock, and calls `watch`, before it is used up.
CHECKS = 256


#: Set when the work of this context must end because its process ends. None: nothing ends it.
process_ends: ContextVar[Event | None] = ContextVar("the end of the process", default=None)


class WorkExceeded(Exception):
    """The work exceeded its budget, or its process ends. The message says which, for use after "it"."""


class WorkBudget:
    """The budget of one computation: `limit` units, and seconds of CPU time.

    Normally the unit limit applies first, so the same input is refused on every machine. The time is a second limit,
    for work that the units underestimate. It is CPU time of the calling thread, so load on the machine does not cause
    refusals. `watch` is called with each check of the clock, and ends the work by raising. Use a budget in one thread
    only.
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
        """The units left."""
        return max(self.limit - self.spent, 0)

    def spend(self, units: int = 1) -> None:
        """Count work before doing it. Raises `WorkExceeded`; so does every later call."""
        self.spent += units
        if self.spent > self._next_check:
            self.check()

    def check(self) -> None:
        """Check the clock and call `watch` now, for work that is not counted in units. Raises `WorkExceeded`."""
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
