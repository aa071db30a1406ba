"""Acting on many runs at once: each by the function that every door calls, each with its own answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.contrib import messages
from django.http import HttpRequest

from agentops.admin_base import cells
from agentops.projects.access import Action, Principal
from agentops.projects.errors import AccessError
from runs.access import run_for
from runs.actions import run_actions
from runs.errors import RunRefusal
from runs.models import AgentRun
from runs.statuses import RunStatus
from runs.upkeep import invariants

#: Of those that were skipped, as many are told one by one.
MAX_TOLD = 20


class Skipped(Exception):
    """It is so already."""


Act = Callable[[Principal, AgentRun], None]


def each(request: HttpRequest, principal: Principal, runs: Iterable[AgentRun], act: Act, *, done: str) -> None:
    """Do it to every run, and say what came of it; one that refuses keeps no other from it."""
    count, skipped = 0, []
    for run in runs:
        try:
            act(principal, run_for(principal, run.pk, Action.OPERATE))
        except (RunRefusal, AccessError, Skipped) as refusal:
            skipped.append(f"{run.pk}: {cells.line(refusal, 300)}")
        else:
            count += 1
    if count:
        messages.success(request, f"{done}: {count}.")
    for text in skipped[:MAX_TOLD]:
        messages.warning(request, f"Skipped {text}.")
    if len(skipped) > MAX_TOLD:
        messages.warning(request, f"Skipped {len(skipped) - MAX_TOLD} more.")


def check(request: HttpRequest, runs: Iterable[AgentRun]) -> None:
    """Whether what is stored of each contradicts itself; reads only."""
    for run in runs:
        violations = invariants.check(run.pk)
        if not violations:
            messages.success(request, f"{run.pk}: all {len(invariants.INVARIANTS)} invariants hold.")
        for found in violations:
            level = messages.WARNING if found.warning_only else messages.ERROR
            told = f"{run.pk}: {found.invariant} violated: {found.says} ({', '.join(found.ids[:5])})"
            messages.add_message(request, level, cells.line(told, 600))


def resume(principal: Principal, run: AgentRun) -> None:
    done = run_actions.resume(principal, run)
    if done.already:
        raise Skipped(f"it went on already, as {done.run.pk}")


def pause(principal: Principal, run: AgentRun) -> None:
    if run_actions.pause(principal, run).was is RunStatus.PAUSED:
        raise Skipped("it is paused already")


def stop(principal: Principal, run: AgentRun) -> None:
    if run_actions.stop(principal, run).was is RunStatus.STOPPED:
        raise Skipped("it is stopped already")
