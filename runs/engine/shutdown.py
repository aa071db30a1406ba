"""Interruptions of a model call or a tool: the shutdown of the worker, or a stop of the run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


class ShutdownDue(Exception):
    """The grace period of a shutdown is over: hand the run back."""


class StopPending(Exception):
    """A stop command is pending: abandon the current call. The next decision then stops the run."""


@dataclass
class Shutdown:
    """The shutdown of this process. Running calls may continue until `deadline` (monotonic seconds)."""

    requested: threading.Event = field(default_factory=threading.Event)
    deadline: float = float("inf")

    def request(self, grace_s: float) -> None:
        """Request the shutdown. A second request only counts if its grace period ends earlier."""
        self.deadline = min(self.deadline, time.monotonic() + grace_s)
        self.requested.set()

    @property
    def is_due(self) -> bool:
        return self.requested.is_set() and time.monotonic() >= self.deadline
