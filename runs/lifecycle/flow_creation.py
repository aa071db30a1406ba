"""Create flow runs: the log, the row and the first event, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction

from agentops.base import database_clock
from agentops.base.http import strict_json
from agentops.base.limits import schema_checks
from agentops.base.limits.schema_checks import SchemaTooExpensive, SchemaUnusable, fault_of
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.agents.definition import json_fault
from runs.errors import InvalidFlowInputs
from runs.flows.kernel import snapshot as snapshots
from runs.flows.kernel.graph import graph_of
from runs.flows.kernel.sizes import is_larger
from runs.flows.kernel.work import MAX_OUTPUT
from runs.lifecycle.wake import wake_flows
from runs.models import Flow, FlowRun
from timeline import log
from timeline.events.run import RunCreated
from timeline.log import Entry
from timeline.models import Log, Phase, RunKind, Source


@dataclass(frozen=True)
class CheckedInputs:
    """Inputs that match the schema of a flow."""

    flow: Flow
    inputs: Mapping[str, Any]


def check_inputs(flow: Flow, inputs: Mapping[str, Any]) -> CheckedInputs:
    """Check the inputs of a new run. Raises `InvalidFlowInputs`.

    Called outside of a transaction: the check may take seconds, during which other transactions would wait for its
    locks.
    """
    _check_inputs(flow.definition.get("inputs") or {}, inputs)
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


def _check_inputs(schema: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    fault = json_fault(dict(inputs))
    if fault is not None:
        raise InvalidFlowInputs(fault[0], pointer=f"/inputs{fault[1]}")
    if is_larger(dict(inputs), MAX_OUTPUT):
        raise InvalidFlowInputs(f"the inputs are larger than {MAX_OUTPUT} bytes", pointer="/inputs")
    try:
        error = fault_of(schema, inputs)
    except SchemaTooExpensive as expensive:
        raise InvalidFlowInputs(str(expensive), code=schema_checks.TOO_EXPENSIVE, pointer="/inputs") from None
    except SchemaUnusable as unusable:
        raise InvalidFlowInputs(str(unusable), pointer="/inputs") from unusable
    if error is not None:
        pointer = strict_json.pointer(["inputs", *error.absolute_path])[:200]
        raise InvalidFlowInputs(error.message[:300], pointer=pointer)
