"""Payloads of an agent's changes: files, commits, deployments."""

from __future__ import annotations

from timeline.events.base import Count, EventKind, Family, Name, Payload, sentence
from timeline.events.vocabulary import EventType

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
