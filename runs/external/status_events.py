"""Applies status events to an external run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import transcript
from runs.conversation.writes import TOKENS
from runs.external import message_events
from runs.external.event_input import IncomingEvent, RejectedEvent
from runs.external.projection import Projection
from runs.external.reported_usage import read_cost, read_usage
from runs.lifecycle import reported_runs
from runs.lifecycle.moves import PHASES
from runs.models import AgentRun
from runs.providers.messages import canonical
from runs.statuses import STATUSES, RunStatus
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunPhase, RunStarted, RunStopped, RunWaiting
from timeline.reasons import REOPENED

#: Statuses that a runner may report with `run.phase`; the others have separate event types.
_PHASE_STATUSES = frozenset({RunStatus.QUEUED, RunStatus.RUNNING})


def started(projection: Projection, event: IncomingEvent, payload: RunStarted) -> int:
    run = projection.run
    changes: dict[str, Any] = {}
    if payload.session_id:
        changes["session_id"] = REDACTOR.clean_text(payload.session_id)[0][:128]
    if payload.title and not run.title:
        changes["title"] = REDACTOR.clean_text(payload.title)[0][:200]
    if payload.model and not run.agent_config.get("model"):
        changes["agent_config"] = {**run.agent_config, "model": REDACTOR.clean_text(payload.model)[0][:200]}
    seq = _report(projection, event, RunStatus.RUNNING, **changes)
    if payload.prompt and not projection.position:
        message_events.add_prompt(projection, payload.prompt, event)
    return seq


def reopened(projection: Projection, event: IncomingEvent) -> int:
    """Reopen an abandoned run, because of a further event."""
    payload = RunPhase(status=RunStatus.RUNNING, reason=REOPENED)
    reopening = IncomingEvent(event.run_ref, payload.event_type, payload, ts=event.ts)
    return _report(projection, reopening, RunStatus.RUNNING, completed_at=None)


def phase(projection: Projection, event: IncomingEvent, payload: RunPhase) -> int:
    status = payload.status or RunStatus.RUNNING.value
    if status in STATUSES and status not in _PHASE_STATUSES:
        allowed = ", ".join(sorted(_PHASE_STATUSES))
        text = f"run.phase reports {allowed}; send run.{status} for other statuses"
        raise RejectedEvent("invalid_value", text, "/payload/status")
    if status not in _PHASE_STATUSES:
        # An unknown status is a phase name of the runner: the run is running.
        payload = payload.model_copy(update={"phase": payload.phase or status})
        status = RunStatus.RUNNING.value
    event = replace(event, payload=payload.model_copy(update={"status": status}))
    reason = payload.reason or "" if status == RunStatus.QUEUED else ""
    return _report(projection, event, RunStatus(status), reason=reason)


def waiting(projection: Projection, event: IncomingEvent, payload: RunWaiting) -> int:
    cost, cost_columns = _reported_cost(payload.cost_usd)
    event = replace(event, payload=payload.model_copy(update={"cost_usd": cost}))
    changes = {**_results(payload), **cost_columns}
    return _report(projection, event, RunStatus.WAITING, reason=payload.reason, **changes)


def paused(projection: Projection, event: IncomingEvent, payload: RunPaused) -> int:
    return _report(projection, event, RunStatus.PAUSED, reason=payload.reason)


def completed(projection: Projection, event: IncomingEvent, payload: RunCompleted) -> int:
    changes = _results(payload)
    if payload.summary:
        changes["summary"] = REDACTOR.clean_text(payload.summary)[0]
    return _end(projection, event, payload, RunStatus.COMPLETED, **changes)


def failed(projection: Projection, event: IncomingEvent, payload: RunFailed) -> int:
    message = REDACTOR.clean_text(payload.error or "")[0]
    error_type = REDACTOR.clean_text(payload.error_type)[0][:64]
    changes = {"error_type": error_type, "error_message": message}
    return _end(projection, event, payload, RunStatus.FAILED, reason=error_type, **changes)


def stopped(projection: Projection, event: IncomingEvent, payload: RunStopped) -> int:
    return _end(projection, event, payload, RunStatus.STOPPED, reason=payload.reason or "")


def _results(payload: RunCompleted | RunWaiting) -> dict[str, Any]:
    """Return the columns of a run's result."""
    columns: dict[str, Any] = {}
    if payload.result is not None:
        result = payload.result if isinstance(payload.result, str) else canonical(payload.result)
        columns["result"] = REDACTOR.clean_text(result)[0]
    if payload.structured_output is not None:
        columns["structured_output"] = REDACTOR.clean(payload.structured_output)[0]
    return columns


def _end(
    projection: Projection,
    event: IncomingEvent,
    payload: RunCompleted | RunFailed | RunStopped,
    to: RunStatus,
    *,
    reason: str = "",
    **changes: Any,
) -> int:
    """Report a final status, with the totals of the run. Reported tokens are used if no answer has tokens."""
    run = projection.run
    has_tokens = any(getattr(run, name) for name in TOKENS)
    totals = {} if has_tokens else _total_usage(payload.usage or {})
    cost, cost_columns = _reported_cost(payload.cost_usd)
    usage = {name: count for name, count in totals.items() if count} or None
    event = replace(event, payload=payload.model_copy(update={"usage": usage, "cost_usd": cost}))
    return _report(projection, event, to, reason=reason, **totals, **cost_columns, **changes)


def _reported_cost(value: object) -> tuple[str | None, dict[str, Any]]:
    """Return the cost of a whole run in the form of its event, and as columns. It replaces the costs of the answers."""
    cost = read_cost(value)
    if cost is None:
        return None, {}
    columns = {"cost_usd": cost, "cost_source": AgentRun.CostSource.REPORTED.value, "unpriced_calls": 0}
    return f"{cost:f}", columns


def _report(projection: Projection, event: IncomingEvent, to: RunStatus, *, reason: str = "", **changes: Any) -> int:
    """Write the collected rows, then the status together with its event."""
    run = projection.run
    if run.state is to and run.status_reason == reason and run.started_at is not None and not changes:
        # The status does not change, so the event is written with the others.
        return projection.append(projection.entry_of(event))
    if to.terminal:
        projection.close_answer(event.ts)
    projection.flush()
    projection.run.status = projection.run.status or RunStatus.QUEUED.value
    entry = projection.entry_of(event, phase=PHASES[to])
    results = reported_runs.report(
        projection.run, to, entry, source=projection.source, reason=reason, at=event.ts, **changes
    )
    projection.last_seq = results[-1].seq
    projection.position = transcript.last_position(projection.run.pk) if to.terminal else projection.position
    return projection.last_seq


def _total_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    counts = read_usage(usage)
    return {
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cache_read_tokens": counts.cache_read_tokens,
        "cache_write_tokens": counts.cache_write_tokens,
        "cache_write_1h_tokens": counts.cache_write_1h_tokens,
        "reasoning_tokens": counts.output_reasoning_tokens,
    }
