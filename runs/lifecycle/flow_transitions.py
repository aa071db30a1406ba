"""The only place that changes the snapshot and the status of a flow run.

A change is one guarded UPDATE, the rows of visits, and the events, in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import transaction
from pydantic import JsonValue

from agentops.base import database_clock
from agentops.base.refusals import Conflict
from runs.errors import MoveRefused
from runs.flows.kernel import snapshot as snapshots
from runs.flows.kernel.flow_decisions import Decisions, Happened, Recorded
from runs.flows.kernel.graph import Graph, graph_of
from runs.flows.kernel.sizes import is_larger
from runs.flows.kernel.snapshot import Snapshot, SnapshotInvalid
from runs.lifecycle.moves import PHASES
from runs.models import FlowRun, FlowVisit
from runs.statuses import PauseReason, RunStatus, WaitReason
from timeline import log
from timeline.events import Payload
from timeline.events.flow import FlowCompleted, FlowStarted, NodeCompleted, NodeSkipped, NodeStarted
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunPhase, RunStarted, RunStopped, RunWaiting
from timeline.log import Entry
from timeline.models import RunKind, Source
from timeline.preview import PREVIEW_BYTES

#: The largest value that an event repeats, in bytes of JSON. Larger values are only stored in the visit.
MAX_IN_EVENT = PREVIEW_BYTES


def graph_of_run(flow_run: FlowRun) -> Graph:
    """Return the graph that a flow run executes."""
    return graph_of(flow_run.definition)


def snapshot_of(flow_run: FlowRun, graph: Graph) -> Snapshot:
    """Return the stored snapshot. Raises `snapshot_unusable`."""
    try:
        return snapshots.load(graph, flow_run.snapshot)
    except SnapshotInvalid as error:
        raise Conflict(str(error), code="snapshot_unusable") from error


def clean_with(flow_run: FlowRun) -> Any:
    """Return the function that masks secrets in a value, by the rules of the project."""
    redactor = log.redactor_of(flow_run.pk)
    return lambda value: redactor.clean(value)[0]


def keep(
    flow_run: FlowRun,
    decisions: Decisions,
    *,
    source: Source,
    by: str = "",
    before: Sequence[Entry] = (),
    is_due: bool = False,
) -> None:
    """Store decisions, in one transaction. `flow_run` is the row that the caller has read and locked.

    `before` are events to append first. Raises `MoveRefused`, and writes nothing, if the flow run has changed.
    """
    snapshot = decisions.snapshot
    status = RunStatus(snapshot["status"])
    with transaction.atomic():
        columns = {
            "snapshot": snapshot,
            "status": status.value,
            "status_reason": _reason(status, decisions),
            "version": flow_run.version + 1,
            "advance_attempts": 0,
            "is_due": is_due or decisions.has_more,
            **_times(flow_run, status),
        }
        if decisions.failure is not None:
            failure = decisions.failure
            columns |= {"error_type": failure.error_type, "error_message": failure.message}
            columns |= {"failed_run_id": failure.run_id and UUID(failure.run_id)}
        rows = FlowRun.objects.filter(pk=flow_run.pk, version=flow_run.version, status=flow_run.status)
        if not rows.update(**columns):
            raise MoveRefused(f"flow run {flow_run.pk} has changed", run_status=flow_run.status)
        visits = _store_visits(flow_run, decisions.records)
        if status.terminal:
            FlowVisit.objects.open().filter(flow_run=flow_run).update(ended_at=database_clock.now())
        entries = [_entry(event, visits) for event in decisions.events]
        entries += _status_events(flow_run, status, decisions, by)
        if _begins(decisions):
            entries.insert(0, Entry(RunStarted(message="Flow run started")))
        entries = [replace(entry, phase=PHASES[status]) for entry in (*before, *entries)]
        log.append(flow_run.pk, entries, source=source, run_kind=RunKind.JOB)
        if status is not flow_run.state:
            log.announce_run(flow_run.project_id, flow_run.pk)
    for name, value in columns.items():
        setattr(flow_run, name, value)


def _reason(status: RunStatus, decisions: Decisions) -> str:
    match status:
        case RunStatus.WAITING:
            return WaitReason.INPUT.value
        case RunStatus.PAUSED | RunStatus.STOPPED:
            return PauseReason.OPERATOR.value
        case RunStatus.FAILED:
            return decisions.failure.error_type if decisions.failure else ""
    return ""


def _times(flow_run: FlowRun, status: RunStatus) -> dict[str, Any]:
    now = database_clock.now()
    times: dict[str, Any] = {}
    if flow_run.started_at is None and status is not RunStatus.QUEUED:
        times["started_at"] = now
    if status.terminal:
        times["completed_at"] = now
    return times


def _store_visits(flow_run: FlowRun, records: Sequence[Recorded]) -> Mapping[str, FlowVisit]:
    """Store the records, and return their visits by key."""
    keys = {record.visit.key for record in records}
    rows = {visit.key: visit for visit in FlowVisit.objects.filter(flow_run=flow_run, key__in=keys)}
    new = set()
    now = database_clock.now()
    for record in records:
        visit = record.visit
        row = rows.get(visit.key)
        if row is None:
            new.add(visit.key)
            row = rows[visit.key] = FlowVisit(
                flow_run=flow_run, key=visit.key, node=visit.node, kind=record.kind, iteration=visit.iteration,
                item=visit.item, value=record.value, started_at=now,
            )  # fmt: skip
        if record.has_ended:
            row.output, row.state, row.ended_at = record.output, record.state, now
    FlowVisit.objects.bulk_create([row for key, row in rows.items() if key in new])
    changed = [row for key, row in rows.items() if key not in new]
    FlowVisit.objects.bulk_update(changed, ["output", "state", "ended_at"], batch_size=100)
    return rows


def _entry(event: Happened, visits: Mapping[str, FlowVisit]) -> Entry:
    """Return an event as an entry of the log. It refers to its visit, which has the values that are too large."""
    if event.visit is None:
        return Entry(event.payload)
    row = visits.get(event.visit.key)
    return Entry(_shortened(event.payload), node_id=event.visit.node, ref_id=None if row is None else row.pk)


def _shortened(payload: Payload) -> Payload:
    value: JsonValue = None
    match payload:
        case NodeCompleted():
            value = [payload.output, payload.state]
            left_out: dict[str, Any] = {"output": None, "state": None, "truncated": True}
        case NodeStarted() | NodeSkipped():
            value, left_out = payload.value, {"value": None, "truncated": True}
        case _:
            return payload
    return payload.model_copy(update=left_out) if is_larger(value, MAX_IN_EVENT) else payload


def started_event(flow_run: FlowRun) -> FlowStarted:
    """Return the event of the start of a flow."""
    inputs = None if is_larger(flow_run.inputs, MAX_IN_EVENT) else flow_run.inputs
    return FlowStarted(
        flow=flow_run.slug, flow_version=flow_run.flow_version, nodes=len(flow_run.definition["nodes"]),
        inputs=inputs, by=flow_run.created_by or None,
    )  # fmt: skip


def _status_events(flow_run: FlowRun, status: RunStatus, decisions: Decisions, by: str) -> list[Entry]:
    """Return the events of a changed status, except for statuses that the kernel reports. Final ones end the log."""
    if status is flow_run.state:
        return []
    payload: Payload | None = None
    match status:
        case RunStatus.WAITING:
            payload = RunWaiting(reason=WaitReason.INPUT)
        case RunStatus.PAUSED:
            payload = RunPaused(reason=PauseReason.OPERATOR, by=by or None)
        case RunStatus.RUNNING | RunStatus.QUEUED if not _begins(decisions):
            payload = RunPhase(status=status, reason="resumed" if flow_run.state is RunStatus.PAUSED else None)
        case RunStatus.COMPLETED:
            payload = RunCompleted(message="Flow run completed")
        case RunStatus.FAILED:
            failure = decisions.failure
            error = failure.message[:500] if failure else None
            payload = RunFailed(error_type=failure.error_type if failure else "node_failed", error=error)
        case RunStatus.STOPPED:
            payload = RunStopped(reason=PauseReason.OPERATOR, by=by or None)
    return [Entry(payload)] if payload is not None else []


def _begins(decisions: Decisions) -> bool:
    return any(isinstance(event.payload, FlowStarted) for event in decisions.events)


def has_ended(decisions: Decisions) -> bool:
    """Return whether the decisions end the flow."""
    return any(isinstance(event.payload, FlowCompleted) for event in decisions.events)
