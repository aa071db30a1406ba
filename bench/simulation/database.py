"""The database server of the simulation: processors that statements wait for, and counters."""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import Any

import simpy

Wait = Generator[simpy.Event, Any, Any]


class DatabaseServer:
    """Works on as many statements at a time as it has processors."""

    def __init__(self, env: simpy.Environment, cores: int) -> None:
        self._env = env
        #: When each processor will be free. Statements are worked on in the order of their arrival.
        self._free_at = [0.0] * cores
        self.statements = 0
        self.busy_s = 0.0
        self._since = 0.0

    def ask(self, statements: int, milliseconds: float) -> Wait:
        """Send statements one after another, and wait until they are answered; `milliseconds` is for all of them."""
        began = max(heapq.heappop(self._free_at), self._env.now)
        ends = began + milliseconds / 1000
        heapq.heappush(self._free_at, ends)
        yield self._env.timeout(ends - self._env.now)
        self.statements += statements
        self.busy_s += milliseconds / 1000

    def reset(self) -> None:
        """Count from now on."""
        self.statements, self.busy_s, self._since = 0, 0.0, self._env.now

    @property
    def rate(self) -> float:
        """Statements per second."""
        return self.statements / (self._env.now - self._since)

    @property
    def used_cores(self) -> float:
        return self.busy_s / (self._env.now - self._since)
