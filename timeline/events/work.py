"""Payloads of an agent's work: handoffs and child runs, changed files, commits, deployments."""

from __future__ import annotations

from timeline.events.base import (
    Count,
    EventKind,
    EventType,
    Family,
    Millis,
    Money,
    Name,
    Payload,
    because,
    seconds,
    sentence,
)

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

    `paused`: the child run has paused for the given `reason` and can be resumed. Its parent does not wait for it.
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


WORK = Family("work", "Files, commits and deployments", icon="file")


@EventKind(EventType.FILE_CHANGED, WORK)
class FileChanged(Payload):
    """The agent changed a file."""

    path: Name
    change: str | None = None
    old_path: str | None = None
    additions: Count | None = None
    deletions: Count | None = None
    diff: str | None = None

    def describe(self) -> str:
        lines = None
        if self.additions is not None or self.deletions is not None:
            lines = f"(+{self.additions or 0} -{self.deletions or 0})"
        return sentence(f"{self.path} {self.change or 'changed'}", lines)


@EventKind(EventType.GIT_COMMIT, WORK)
class GitCommit(Payload):
    """The agent made a commit. `subject` is the commit's message, because `message` is the event's."""

    sha: str | None = None
    branch: str | None = None
    subject: str | None = None
    author: str | None = None
    repository: str | None = None
    url: str | None = None
    files: Count | None = None

    def describe(self) -> str:
        commit = sentence("Committed", self.sha and self.sha[:10], self.branch and f"on {self.branch}")
        return f"{commit}: {self.subject}" if self.subject else commit


class _Deploy(Payload):
    deploy_id: str | None = None
    environment: str | None = None
    service: str | None = None
    ref: str | None = None
    url: str | None = None


@EventKind(EventType.DEPLOY_TRIGGERED, WORK)
class DeployTriggered(_Deploy):
    """The agent triggered a deployment."""

    by: str | None = None

    def describe(self) -> str:
        return sentence("Deployment", self.service and f"of {self.service}", "triggered", _to(self.environment))


@EventKind(EventType.DEPLOY_STATUS, WORK, is_outcome=True)
class DeployStatus(_Deploy):
    """The status of a deployment changed."""

    status: Name
    error: str | None = None

    def describe(self) -> str:
        return sentence("Deployment", self.service and f"of {self.service}", _to(self.environment), f"is {self.status}")


def _to(environment: str | None) -> str | None:
    return f"to {environment}" if environment else None
