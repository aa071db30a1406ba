"""Admin actions on selected runs. Each run is handled separately, and refusals are reported per run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.contrib import messages
from django.http import HttpRequest

from agentops.accounts.access import Action, Principal
from agentops.admin_base import cells
from agentops.base.refusals import Refusal
from runs.access import run_for
from runs.actions import run_actions
from runs.external import recorded_ends
from runs.models import AgentRun
from runs.statuses import RunStatus
from runs.upkeep import invariants

#: Maximum skipped runs that are listed individually.
MAX_LISTED = 20


class Skipped(Exception):
    """The run already has the requested status."""


Act = Callable[[Principal, AgentRun], None]


def each(request: HttpRequest, principal: Principal, runs: Iterable[AgentRun], act: Act, *, done: str) -> None:
    """Call `act` for each run and report the results. A refusal does not affect the other runs."""
    count, skipped = 0, []
    for run in runs:
        try:
            act(principal, run_for(principal, run.pk, Action.OPERATE))
        except (Refusal, Skipped) as refusal:
            skipped.append(f"{run.pk}: {cells.line(refusal, 300)}")
        else:
            count += 1
    if count:
        messages.success(request, f"{done}: {count} {'run' if count == 1 else 'runs'}.")
    for text in skipped[:MAX_LISTED]:
        messages.warning(request, f"Skipped {text}.")
    if len(skipped) > MAX_LISTED:
        messages.warning(request, f"Skipped {len(skipped) - MAX_LISTED} more.")


def check(request: HttpRequest, runs: Iterable[AgentRun]) -> None:
    """Check the invariants of each run and report violations. Read-only."""
    for run in runs:
        violations = invariants.check(run.pk)
        if not violations:
            messages.success(request, f"{run.pk}: all {len(invariants.INVARIANTS)} invariants hold.")
        for violation in violations:
            level = messages.WARNING if violation.warning_only else messages.ERROR
            text = f"{run.pk}: {violation.invariant} violated: {violation.says} ({', '.join(violation.ids[:5])})"
            messages.add_message(request, level, cells.line(text, 600))


def resume(principal: Principal, run: AgentRun) -> None:
    """Resume a run. Raise Skipped if it was resumed before."""
    result = run_actions.resume(principal, run)
    if result.is_existing:
        raise Skipped(f"already resumed, continued by {result.run.pk}")


def pause(principal: Principal, run: AgentRun) -> None:
    """Pause a run. Raise Skipped if it is paused."""
    if run_actions.pause(principal, run).status_before is RunStatus.PAUSED:
        raise Skipped("already paused")


def stop(principal: Principal, run: AgentRun) -> None:
    """Stop a run. Raise Skipped if it is stopped."""
    if recorded_ends.stop(principal, run).status_before is RunStatus.STOPPED:
        raise Skipped("already stopped")
