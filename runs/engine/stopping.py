"""What interrupts a model call or a tool: the end of the process, or a stop of the run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


class LetGo(Exception):
    """The worker is ending and its grace period is over: hand the run back."""


class StopAsked(Exception):
    """A stop command is pending: abandon the current call, and let the next decision stop the run."""


@dataclass
class Stopping:
    """The end of this process, once requested. Running calls may continue until `deadline` (monotonic seconds)."""

    asked: threading.Event = field(default_factory=threading.Event)
    deadline: float = float("inf")

    def ask(self, grace_s: float) -> None:
        """Request the end. A second request only counts if its grace period ends earlier."""
        self.deadline = min(self.deadline, time.monotonic() + grace_s)
        self.asked.set()

    @property
    def over(self) -> bool:
        return self.asked.is_set() and time.monotonic() >= self.deadline
