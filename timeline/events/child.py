"""Payloads of handoffs and child runs."""

from __future__ import annotations

from timeline.events.base import Count, EventKind, Family, Millis, Money, Name, Payload, because, seconds, sentence
from timeline.events.vocabulary import EventType

CHILD = Family("child", "Child runs", icon="child")

PAUSED = "paused"


@EventKind(EventType.HANDOFF, CHILD)
class Handoff(Payload):
    """An agent handed its work to another agent."""

    from_agent: str | None = None
    to_agent: str | None = None
    run_id: str | None = None
    call_id: str | None = None
    reason: str | None = None
    prompt: str | None = None

    def describe(self) -> str:
        return sentence(
            "Handed off",
            self.from_agent and f"from {self.from_agent}",
            self.to_agent and f"to {self.to_agent}",
            because(self.reason),
        )


class _ChildRun(Payload):
    """`index` is the position among child runs that were requested together; results are returned in this order."""

    run_id: str | None = None
    agent: str | None = None
    call_id: str | None = None
    index: Count | None = None


@EventKind(EventType.CHILD_RUN_STARTED, CHILD)
class ChildRunStarted(_ChildRun):
    """The run spawned a child run."""

    prompt: str | None = None

    def describe(self) -> str:
        return sentence("Child run", self.run_id, "started", self.agent and f"for agent {self.agent}")


@EventKind(EventType.CHILD_RUN_PHASE, CHILD)
class ChildRunPhase(_ChildRun):
    """The phase of a child run: a word from the runner as `phase`, such as "progress".

    `paused`: the child run has paused for the given `reason`, and can be resumed. Its parent continues without it.
    """

    phase: Name
    reason: str | None = None

    def describe(self) -> str:
        if self.phase == PAUSED:
            return sentence("Child run", self.run_id, "paused", because(self.reason))
        return sentence("Child run", self.run_id, f"reports {self.phase}")


@EventKind(EventType.CHILD_RUN_COMPLETED, CHILD, is_outcome=True)
class ChildRunCompleted(_ChildRun):
    """A child run ended."""

    status: str | None = None
    summary: str | None = None
    error: str | None = None
    steps: Count | None = None
    cost_usd: Money | None = None
    duration_ms: Millis | None = None

    def describe(self) -> str:
        return sentence("Child run", self.run_id, self.status or "completed", seconds(self.duration_ms))
