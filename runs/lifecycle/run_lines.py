"""Log lines for operators about runs: created, resumed or ended, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from agentops.base.database.after_commit import after_commit
from runs.models import AgentRun
from runs.statuses import RunStatus

log = logging.getLogger("agentops.runs")
_LEVELS = {RunStatus.FAILED: logging.ERROR, RunStatus.PAUSED: logging.WARNING}
_TOTALS = ("step_count", "input_tokens", "output_tokens", "cost_usd", "unpriced_calls")
_TOLD = frozenset(
    {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.WAITING, RunStatus.RESUMED}
)


def opened(run: AgentRun) -> None:
    """Log, after the commit, that a run was created, and whether it resumes or forks another."""
    if not log.isEnabledFor(logging.INFO):
        return
    origin = {"resumed_from": run.resumed_from_id, "forked_from": run.forked_from_id, "parent_run": run.parent_run_id}
    also = {name: str(run_id) for name, run_id in origin.items() if run_id is not None}
    text = "run resumes another" if run.resumed_from_id else "run opened"
    after_commit(log.info, text, extra=_facts(run, also))


def moved(run: AgentRun, to: RunStatus, reason: str, changes: Mapping[str, Any]) -> None:
    """Log, after the commit, that a run has ended, paused or begun to wait. A failure is logged as an error."""
    level = _LEVELS.get(to, logging.INFO)
    if to not in _TOLD or not log.isEnabledFor(level):
        return
    facts = {"status": to.value, "reason": reason or None, "error_type": changes.get("error_type") or None}
    after_commit(_write, level, run, to, facts)


def _write(level: int, run: AgentRun, to: RunStatus, facts: Mapping[str, Any]) -> None:
    totals: Mapping[str, Any] = {}
    if to.terminal or to is RunStatus.PAUSED:
        # Turns update only the row, not this object.
        totals = AgentRun.objects.filter(pk=run.pk).values(*_TOTALS).first() or {}
    log.log(level, "run is %s", to.value, extra=_facts(run, {**facts, **totals}))


def _facts(run: AgentRun, also: Mapping[str, Any]) -> dict[str, Any]:
    config = run.agent_config
    own = {"run_id": str(run.pk), "agent": config.get("agent_id"), "model": config.get("model")}
    return {**own, "provider": config.get("provider"), **also}
