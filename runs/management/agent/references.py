"""Runs and flow runs that a command line names by an ID or a prefix of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from uuid import UUID

from django.db.models import Model, QuerySet

from agentops.accounts.access import SYSTEM, visible_rows
from agentops.base.redaction import project_scope
from agentops.base.refusals import Conflict, Refusal
from runs.access import RunT, expired_error
from runs.errors import FlowRunNotFound, RunNotFound
from runs.models import AgentRun, CliSession, FlowRun
from timeline.models import Tombstone

#: Minimum characters of a prefix.
MIN_PREFIX = 4
#: Maximum runs that an error lists.
MAX_CANDIDATES = 10
HEX = re.compile(r"[0-9a-f]{1,32}", re.ASCII)


def find_run(reference: str) -> AgentRun:
    """Return the run with this ID or unique prefix, or the run of the program session with this ID.

    Raises `ambiguous_run` or `RunNotFound`.
    """
    bounds = _bounds(reference)
    runs = AgentRun.objects.filter(pk__gte=bounds[0], pk__lte=bounds[1]) if bounds else AgentRun.objects.none()
    if bounds and bounds[0] == bounds[1] and (session := CliSession.objects.filter(pk=bounds[0]).first()):
        runs = AgentRun.objects.filter(pk=session.run_id)
    return _only(reference, visible_rows(runs, SYSTEM).select_related("project"), bounds)


def find_flow_run(reference: str) -> FlowRun:
    """Return the flow run with this ID or unique prefix. Raises `ambiguous_run` or `FlowRunNotFound`."""
    bounds = _bounds(reference)
    rows = FlowRun.objects.filter(pk__gte=bounds[0], pk__lte=bounds[1]) if bounds else FlowRun.objects.none()
    return _only(reference, rows.select_related("project", "log"), bounds)


def find_run_or_flow_run(reference: str) -> AgentRun | FlowRun:
    """Return the run, or else the flow run, with this ID or unique prefix."""
    try:
        return find_run(reference)
    except RunNotFound:
        return find_flow_run(reference)


def _only(reference: str, rows: QuerySet[RunT], bounds: tuple[UUID, UUID] | None) -> RunT:
    """Return the only row. Raises `ambiguous_run` for a prefix that is too short or matches several runs."""
    candidates = list(rows.order_by("-pk")[: MAX_CANDIDATES + 1])
    if not candidates:
        raise _missing(reference, rows.model, bounds)
    is_short = len(reference.replace("-", "")) < MIN_PREFIX
    if len(candidates) > 1 or is_short:
        problem = f"is too short: enter at least {MIN_PREFIX} characters" if is_short else "matches more than one run"
        raise Conflict(
            f"{reference!r} {problem}: {_list_of(candidates)}",
            code="ambiguous_run",
            candidates=[str(run.pk) for run in candidates],
        )
    project_scope.add(candidates[0].project_id)
    return candidates[0]


def _missing(reference: str, model: type[Model], bounds: tuple[UUID, UUID] | None) -> Refusal:
    """Return the error for a missing run; for a deleted run, with the facts of its tombstone."""
    stones = list(Tombstone.objects.filter(pk__gte=bounds[0], pk__lte=bounds[1])[:2]) if bounds else []
    if len(stones) == 1:
        return expired_error(stones[0])
    if model is FlowRun:
        return FlowRunNotFound(f"flow run not found: {reference[:64]!r}")
    return RunNotFound(f"run not found: {reference[:64]!r}")


def _bounds(reference: str) -> tuple[UUID, UUID] | None:
    """Return the first and the last ID with this prefix, which may have dashes. None if no ID can have it."""
    text = reference.lower()
    digits = text.replace("-", "")
    if not HEX.fullmatch(digits):
        return None
    low, high = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    if text != digits and not str(low).startswith(text):
        return None
    return low, high


def _list_of(runs: Sequence[AgentRun | FlowRun]) -> str:
    text = ", ".join(f"{run.pk} ({run.status})" for run in runs[:MAX_CANDIDATES])
    return text if len(runs) <= MAX_CANDIDATES else f"{text} and more"
