"""What ends an await early: the process that is about to end, or somebody who wants the run stopped."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


class LetGo(Exception):
    """The worker is ending and the current await has used up its grace: hand the run back."""


class StopAsked(Exception):
    """Somebody wants the run stopped: the current await is abandoned, and the decision that follows stops it."""


@dataclass
class Stopping:
    """The process's wish to end. Awaits may go on until `deadline` (monotonic seconds)."""

    asked: threading.Event = field(default_factory=threading.Event)
    deadline: float = float("inf")

    def ask(self, grace_s: float) -> None:
        """A second time changes nothing, unless its grace ends earlier."""
        self.deadline = min(self.deadline, time.monotonic() + grace_s)
        self.asked.set()

    @property
    def over(self) -> bool:
        return self.asked.is_set() and time.monotonic() >= self.deadline
