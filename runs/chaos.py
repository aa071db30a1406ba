"""Named crash points at which tests kill or stop this process, or raise an error, to test recovery.

AGENTOPS_CHAOS arms a point. A point that is not armed costs one comparison.
"""

from __future__ import annotations

import signal
import threading

from django.conf import settings

#: The crash points of a worker with their descriptions, in the order of a step.
POINTS = {
    "hint.received": "hint received",
    "claim.before": "before the claim",
    "claim.committed": "claimed",
    "recovery.before": "before the recovery of an interrupted turn",
    "recovery.done": "recovery done",
    "model.before_start": "before llm.turn.start",
    "model.before_call": "before the model is called",
    "model.streaming": "in the middle of the stream",
    "model.answered": "stream done, before the turn's transaction",
    "turn.in_transaction": "in the turn's transaction",
    "turn.commit_sent": "the turn's commit sent, its reply not read",
    "turn.committed": "turn committed",
    "hooks.before": "before the hooks of a tool",
    "hooks.decided": "hooks decided",
    "tool.before_start": "before a tool is marked running",
    "tool.marked_running": "marked running, before the call",
    "tool.running": "tool running",
    "tool.returned": "tool done, before the result's transaction",
    "result.in_transaction": "in the result's transaction",
    "result.committed": "result committed",
    "tool.next": "between two tools",
    "checkpoint.before": "before the checkpoint",
    "checkpoint.in_transaction": "in the checkpoint's transaction",
    "checkpoint.committed": "checkpoint committed",
    "end.before": "before the terminal transaction",
    "end.in_transaction": "in the terminal transaction",
    "end.committed": "terminal status committed, before the hint",
    "end.hint_sent": "hint sent",
    "command.in_transaction": "in the transaction of a command",
    "command.committed": "command committed, before the hint",
    "command.hint_sent": "hint sent, not answered",
    "sweep.run_seen": "the sweep read a runnable run",
    "sweep.message_sent": "the sweep sent the message of the run",
    "lease.lapse_seen": "expired lease detected",
    "run.taken_over": "run taken over",
}
#: Crash points of a worker whose run waits for an approval.
APPROVAL_POINTS = {
    "approval.before": "before an approval is requested",
    "approval.in_transaction": "in the transaction that requests an approval",
    "approval.requested": "approval requested, the run waits",
}
#: Crash points of the process that decides an approval, and of a worker whose sweep expires it.
DECISION_POINTS = {
    "decision.in_transaction": "in the transaction of a decision about an approval",
    "expiry.in_transaction": "in the transaction in which an approval expires",
}
#: Crash points of a worker whose run has child runs.
TREE_POINTS = {
    "spawn.before": "before child runs are opened",
    "spawn.in_transaction": "in the transaction that opens child runs",
    "spawn.committed": "child runs opened, their parent waits",
    "child.ended": "child run ended or paused, before its parent is queued",
    "parent.in_transaction": "in the transaction that queues a parent",
}
#: Crash points of a worker that advances flows, and of the process that ends a run of a flow.
FLOW_POINTS = {
    "flow.before": "before a flow run is advanced",
    "flow.decided": "in the transaction of a flow run, before anything is written",
    "flow.node_opened": "in the transaction of a flow run, after a node's run was opened",
    "flow.in_transaction": "in the transaction of a flow run, before its commit",
    "flow.committed": "flow run advanced, before the hints",
    "flow.hint_due": "a flow run has something to do, before the hint",
}
#: Crash points of a web process that stores the events of a runner.
INGEST_POINTS = {
    "ingest.in_transaction": "in the transaction of a run's events",
    "ingest.committed": "events committed, before the answer",
}
#: Crash points of a worker whose run is a session of a program.
SESSION_POINTS = {
    "session.stored": "ID of a session stored, before its program is started",
    "session.started": "program of a session started, before a message is sent to it",
    "session.subagent_stored": "lines of a sub-agent stored",
    "session.approval_requested": "approval of a sub-agent's call requested, before the program is answered",
    "session.said": "a message sent to the program, before it answers",
}
#: Crash points of a worker, or a command, that writes the search index.
INDEX_POINTS = {
    "index.in_transaction": "in the transaction of a batch of entries",
    "index.deleted": "a batch of old entries deleted",
}
#: Crash points of a worker that evaluates alert rules and sends alerts.
ALERT_POINTS = {
    "alert.in_transaction": "in the transaction that stores what a rule has found",
    "alert.delivered": "alert accepted by a webhook, before that is stored",
}
#: Crash points of a worker that starts the runs of schedules.
SCHEDULE_POINTS = {
    "schedule.in_transaction": "in the transaction that decides due times of a schedule, after its run was created",
    "schedule.committed": "due times decided, before the next look",
}
#: Crash points of a worker that sends events to sinks.
EXPORT_POINTS = {
    "export.sent": "events accepted by a sink, before its cursor is moved",
    "export.delivered": "delivery accepted by a webhook, before that is stored",
}

#: In place of a signal: raise an error.
RAISE = "RAISE"


class InjectedError(RuntimeError):
    """An error raised at a crash point, to simulate a bug in the engine."""


class _ArmedPoint:
    """A crash point, the hit at which it acts, and its signal.

    "turn.committed:2:STOP" sends SIGSTOP at the second hit. The defaults are the first hit and KILL. With RAISE instead
    of a signal, the hit raises `InjectedError`.
    """

    def __init__(self, spec: str) -> None:
        name, _, rest = spec.partition(":")
        hit, _, action = rest.partition(":")
        groups = [POINTS, APPROVAL_POINTS, DECISION_POINTS, TREE_POINTS, FLOW_POINTS]
        groups += [INGEST_POINTS, SESSION_POINTS, INDEX_POINTS, ALERT_POINTS, SCHEDULE_POINTS, EXPORT_POINTS]
        if not any(name in group for group in groups):
            raise ValueError(f"unknown crash point {name!r} in AGENTOPS_CHAOS; see runs/chaos.py")
        self.name = name
        self._hits_left = int(hit or 1)
        self._signal = None if action == RAISE else signal.Signals[f"SIG{action or 'KILL'}"]
        self._lock = threading.Lock()

    def hit(self) -> None:
        """Count a hit. At the armed hit, send the signal or raise `InjectedError`."""
        with self._lock:
            self._hits_left -= 1
            if self._hits_left != 0:
                return
        if self._signal is None:
            raise InjectedError(self.name)
        # Sent to this thread: after a signal to the process, this thread might continue for a moment.
        signal.pthread_kill(threading.get_ident(), self._signal)


_armed = _ArmedPoint(settings.AGENTOPS_CHAOS) if settings.AGENTOPS_CHAOS else None


def point(name: str) -> None:
    """Mark a crash point. Does nothing unless AGENTOPS_CHAOS arms this point."""
    if _armed is not None and _armed.name == name:
        _armed.hit()
