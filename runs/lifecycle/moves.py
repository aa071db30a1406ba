"""What every change of a run's status means to others: the phase of its log, and the listeners that react to it."""

from __future__ import annotations

from collections.abc import Callable

from runs.models import AgentRun
from runs.statuses import RunStatus
from timeline.models import Phase

#: Called with the run, its new status and the reason, in the transaction of the move and after its event.
Listener = Callable[[AgentRun, RunStatus, str], None]

PHASES = {
    RunStatus.QUEUED: Phase.QUEUED,
    RunStatus.RUNNING: Phase.RUNNING,
    RunStatus.WAITING: Phase.RUNNING,
    RunStatus.PAUSED: Phase.RUNNING,
    RunStatus.RESUMED: Phase.STOPPED,
    RunStatus.COMPLETED: Phase.COMPLETED,
    RunStatus.FAILED: Phase.FAILED,
    RunStatus.STOPPED: Phase.STOPPED,
}
_listeners: list[Listener] = []


def subscribe(listener: Listener) -> None:
    """Call `listener` in each move. Listeners move other runs, so `move` does not import them."""
    _listeners.append(listener)


def notify(run: AgentRun, to: RunStatus, reason: str) -> None:
    """Call the listeners. An error of one rolls the move back."""
    for listener in _listeners:
        listener(run, to, reason)
