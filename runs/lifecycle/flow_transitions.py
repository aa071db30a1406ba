"""Creates and changes flow runs: the only place that changes the snapshot and the status of a flow run.

`create` writes the log, the row and the first event in one transaction. `keep` sends one guarded UPDATE, and writes
the rows of visits and the events, in one transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db import transaction
from pydantic import JsonValue

from agentops.base import database_clock, schema_checks
from agentops.base.http import strict_json
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict
from agentops.base.schema_checks import SchemaTooExpensive, SchemaUnusable, fault_of
from runs.agents.definition import json_fault
from runs.errors import InvalidFlowInputs, MoveRefused
from runs.flows.kernel import snapshot as snapshots
from runs.flows.kernel.flow_decisions import Decisions, NewEvent, VisitRecord
from runs.flows.kernel.graph import Graph, graph_of
from runs.flows.kernel.json_values import is_larger
from runs.flows.kernel.snapshot import Snapshot, SnapshotInvalid
from runs.flows.kernel.work import MAX_OUTPUT
from runs.lifecycle.moves import PHASES
from runs.lifecycle.wake import wake_flows
from runs.models import Flow, FlowRun, FlowVisit
from runs.statuses import PauseReason, RunStatus, WaitReason
from timeline import log
from timeline.display import PREVIEW_BYTES
from timeline.events import Payload
from timeline.events.flow import FlowCompleted, FlowStarted, NodeCompleted, NodeSkipped, NodeStarted
from timeline.events.run import (
    RunCompleted,
    RunCreated,
    RunFailed,
    RunPaused,
    RunPhase,
    RunStarted,
    RunStopped,
    RunWaiting,
)
from timeline.log import Entry
from timeline.models import Log, Phase, RunKind, Source


@dataclass(frozen=True)
class CheckedInputs:
    """Inputs that match the schema of a flow."""

    flow: Flow
    inputs: Mapping[str, Any]


def check_inputs(flow: Flow, inputs: Mapping[str, Any]) -> CheckedInputs:
    """Check the inputs of a new run against the flow's schema. Raises `InvalidFlowInputs`.

    Call this outside of a transaction: the check may take seconds, during which other transactions would wait for the
    locks of this one.
    """
    invalid = json_fault(dict(inputs))
    if invalid is not None:
        raise InvalidFlowInputs(invalid[0], pointer=f"/inputs{invalid[1]}")
    if is_larger(dict(inputs), MAX_OUTPUT):
        raise InvalidFlowInputs(f"the inputs are larger than {MAX_OUTPUT} bytes", pointer="/inputs")
    try:
        error = fault_of(flow.definition.get("inputs") or {}, inputs)
    except SchemaTooExpensive as expensive:
        raise InvalidFlowInputs(str(expensive), code=schema_checks.TOO_EXPENSIVE, pointer="/inputs") from None
    except SchemaUnusable as unusable:
        raise InvalidFlowInputs(str(unusable), pointer="/inputs") from unusable
    if error is not None:
        pointer = strict_json.pointer(["inputs", *error.absolute_path])[:200]
        raise InvalidFlowInputs(error.message[:300], pointer=pointer)
    return CheckedInputs(flow, inputs)


def create(checked: CheckedInputs, *, by: str, schedule_id: UUID | None = None) -> FlowRun:
    """Create a queued run of a flow, and wake a worker after the commit."""
    flow, inputs = checked.flow, checked.inputs
    graph = graph_of(flow.definition)
    with transaction.atomic():
        ledger = Log.objects.create(project=flow.project, node_id=flow.slug, run_kind=RunKind.JOB)
        flow_run = FlowRun.objects.create(
            log=ledger,
            project=flow.project,
            flow=flow,
            schedule_id=schedule_id,
            definition=flow.definition,
            flow_version=flow.version,
            snapshot=snapshots.initial(graph, str(ledger.pk)),
            inputs=REDACTOR.clean(dict(inputs))[0],
            created_by=by[:200],
            created_at=database_clock.now(),
        )
        message = f"Run of version {flow.version} of flow {flow.slug} created" + (f" by {by}" if by else "")
        created = RunCreated(message=message, by=by or None)
        log.append(ledger.pk, [Entry(created, phase=Phase.QUEUED)], source=Source.WEB, run_kind=RunKind.JOB)
        log.announce_run(flow.project_id, flow_run.pk)
        wake_flows()
    return flow_run


#: Maximum size of the values in an event, in bytes of JSON. Larger values are only stored in the visit, and larger
#: inputs only in the flow run.
MAX_IN_EVENT = PREVIEW_BYTES


def graph_of_run(flow_run: FlowRun) -> Graph:
    """Return the graph that a flow run executes."""
    return graph_of(flow_run.definition)


def snapshot_of(flow_run: FlowRun, graph: Graph) -> Snapshot:
    """Return the stored snapshot. Raises `Conflict` with the code `snapshot_unusable`."""
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
    """Store decisions about a flow run, in one transaction. `flow_run` is the row as the caller has read it.

    `by` is the author of a pause or a stop. `before` are events to append first. `is_due`: a worker has to process the
    flow run again. Raises `MoveRefused`, and writes nothing, if the flow run has changed.
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
    """Return the status reason of a flow run; empty if its status needs none."""
    match status:
        case RunStatus.WAITING:
            return WaitReason.INPUT.value
        case RunStatus.PAUSED | RunStatus.STOPPED:
            return PauseReason.OPERATOR.value
        case RunStatus.FAILED:
            return decisions.failure.error_type if decisions.failure else ""
    return ""


def _times(flow_run: FlowRun, status: RunStatus) -> dict[str, Any]:
    """Return the columns of the times that the status sets."""
    now = database_clock.now()
    times: dict[str, Any] = {}
    if flow_run.started_at is None and status is not RunStatus.QUEUED:
        times["started_at"] = now
    if status.terminal:
        times["completed_at"] = now
    return times


def _store_visits(flow_run: FlowRun, records: Sequence[VisitRecord]) -> Mapping[str, FlowVisit]:
    """Create or update the visits of these records, and return the visits by key."""
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
                flow_run=flow_run,
                key=visit.key,
                node=visit.node,
                kind=record.kind,
                iteration=visit.iteration,
                item=visit.item,
                value=record.value,
                started_at=now,
            )
        if record.has_ended:
            row.output, row.state, row.ended_at = record.output, record.state, now
    FlowVisit.objects.bulk_create([row for key, row in rows.items() if key in new])
    changed = [row for key, row in rows.items() if key not in new]
    FlowVisit.objects.bulk_update(changed, ["output", "state", "ended_at"], batch_size=100)
    return rows


def _entry(event: NewEvent, visits: Mapping[str, FlowVisit]) -> Entry:
    """Return an event as an entry of the log. It refers to its visit, which has the values that an event omits."""
    if event.visit is None:
        return Entry(event.payload)
    row = visits.get(event.visit.key)
    return Entry(_shortened(event.payload), node_id=event.visit.node, ref_id=None if row is None else row.pk)


def _shortened(payload: Payload) -> Payload:
    """Return the payload without its value if that is larger than `MAX_IN_EVENT`."""
    value: JsonValue = None
    match payload:
        case NodeCompleted():
            value = [payload.output, payload.state]
            without_value: dict[str, Any] = {"output": None, "state": None, "truncated": True}
        case NodeStarted() | NodeSkipped():
            value, without_value = payload.value, {"value": None, "truncated": True}
        case _:
            return payload
    return payload.model_copy(update=without_value) if is_larger(value, MAX_IN_EVENT) else payload


def started_event(flow_run: FlowRun) -> FlowStarted:
    """Return the event of the start of a flow."""
    inputs = None if is_larger(flow_run.inputs, MAX_IN_EVENT) else flow_run.inputs
    return FlowStarted(
        flow=flow_run.slug,
        flow_version=flow_run.flow_version,
        nodes=len(flow_run.definition["nodes"]),
        inputs=inputs,
        by=flow_run.created_by or None,
    )


def _status_events(flow_run: FlowRun, status: RunStatus, decisions: Decisions, by: str) -> list[Entry]:
    """Return the event of a changed status; empty if it has not changed, or if an event of the kernel reports it."""
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
    """Whether the decisions start the flow."""
    return any(isinstance(event.payload, FlowStarted) for event in decisions.events)


def has_ended(decisions: Decisions) -> bool:
    """Whether the decisions complete the flow."""
    return any(isinstance(event.payload, FlowCompleted) for event in decisions.events)
