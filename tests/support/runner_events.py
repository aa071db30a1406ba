"""Runs opened by a runner. May import the product."""

from __future__ import annotations

from agentops.accounts.models import Project
from runs.external.ingest import Sender, record
from runs.models import AgentRun


def started(project: Project, name: str) -> AgentRun:
    """Create a running external run with this ID of its runner."""
    [result] = record(
        Sender(project, "key:test"), [{"runId": name, "type": "run.started", "payload": {"agent": "coder"}}]
    )
    assert result.error is None
    return AgentRun.objects.select_related("log").get(pk=result.run_id)
