"""The state of a run after a command has waited for it or acted on it."""

from __future__ import annotations

from django.core.management.base import CommandError

from agentops.accounts.management.base import EXIT_NOT_COMPLETED, printable
from runs.management.agent.run_table import redacted, row_of, shorten, with_reason
from runs.models import AgentRun
from runs.statuses import RunStatus


def refresh(run: AgentRun) -> AgentRun:
    run.refresh_from_db(fields=["status", "status_reason", "step_count", "started_at", "completed_at", "error_message"])
    return run


def require_completed(run: AgentRun) -> None:
    """Raise CommandError with exit code 1 unless the run has completed."""
    if run.state is RunStatus.COMPLETED:
        return
    why = f": {shorten(redacted(run.error_message))}" if run.error_message else ""
    if run.state is RunStatus.RESUMED:
        why = f"; continued by {AgentRun.objects.get(resumed_from=run).pk}"
    raise CommandError(printable(f"the run is {with_reason(row_of(run))}{why}"), returncode=EXIT_NOT_COMPLETED)
