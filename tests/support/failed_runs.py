"""Runs that have failed."""

from __future__ import annotations

from django.db import transaction

from agentops.accounts.models import Project
from runs.lifecycle import transitions
from runs.models import AgentRun
from runs.statuses import RunStatus
from tests.support.factories import make_agent, make_run
from timeline.events.run import RunFailed
from timeline.models import Source


def make_failed(project: Project, prompt: str = "Look into it.") -> AgentRun:
    """Create a run that failed before its first step, like a run whose provider does not exist."""
    run = make_run(make_agent(project), prompt)
    failure = RunFailed(error_type="provider_error", error="The server is overloaded.")
    with transaction.atomic():
        transitions.move(run, RunStatus.FAILED, failure, source=Source.WORKER, reason="provider_error")
    return AgentRun.objects.get(pk=run.pk)
