"""A clock that a test moves, and external runs that end as a test requires. May import the product."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agentops.accounts.models import Project
from agentops.base import database_clock
from runs.alerts import evaluation
from runs.external.ingest import Sender, record
from runs.models import AgentRun, AlertRule

AddRule = Callable[..., AlertRule]


class Clock:
    """The product's clock with an offset that the test sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.offset = timedelta()
        self._real = database_clock.now
        patch.setattr(database_clock, "now", self.now)

    def now(self) -> Any:
        return self._real() + self.offset

    def evaluate(self, **later: float) -> int:
        """Move the clock forward, then evaluate all rules."""
        self.offset += timedelta(**later)
        return evaluation.evaluate()


def external(project: Project, name: str, *events: dict[str, Any], agent: str = "coder") -> AgentRun:
    """Record these events of an external run. Open the run if it does not exist."""
    sent = list(events)
    if not AgentRun.objects.filter(project=project, external_id=name).exists():
        sent.insert(0, {"type": "run.started", "payload": {"agent": agent}})
    results = record(Sender(project, "key:test"), [{"runId": name, **event} for event in sent])
    assert [result.error for result in results] == [None] * len(sent)
    return AgentRun.objects.get(project=project, external_id=name)


def failed(project: Project, name: str, *, agent: str = "coder") -> AgentRun:
    """Create a run that its runner reports as failed."""
    error = {"type": "error", "payload": {"error_type": "tool_error", "error": "The disk is full."}}
    end = {"type": "run.failed", "payload": {"error_type": "tool_error", "error": "The disk is full."}}
    return external(project, name, error, end, agent=agent)
