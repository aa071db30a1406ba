"""What came of a visit: the report for the kernel, read from the run that has ended."""

from __future__ import annotations

from pydantic import JsonValue

from agentops.http import strict_json
from runs.flows.kernel.flow_decisions import NodeFailure, VisitReport
from runs.flows.kernel.snapshot import visit_of
from runs.models import AgentRun, AgentRunToolCall, FlowVisit
from runs.statuses import RunStatus, ToolStatus


def report_of(row: FlowVisit, run: AgentRun) -> VisitReport:
    """Return the report of a visit whose conversation has ended with `run`."""
    visit = visit_of(row.key)
    if run.state is not RunStatus.COMPLETED:
        text = run.error_message or f"run {run.pk} was {run.status}"
        failed_run = str(run.pk) if run.state is RunStatus.FAILED else None
        reason = run.error_type or run.status_reason or run.status
        return VisitReport(visit, failure=NodeFailure(reason, text, failed_run))
    if row.kind == "agent":
        return VisitReport(visit, run.result if run.structured_output is None else run.structured_output)
    call = AgentRunToolCall.objects.filter(run__root_run=run.root_run_id).order_by("step_number", "id").last()
    if call is None:
        return VisitReport(visit, failure=NodeFailure("no_call", f"run {run.pk} has made no call"))
    if call.status != ToolStatus.COMPLETED:
        return VisitReport(visit, failure=NodeFailure(f"tool_{call.status}", _text(call.output) or call.status))
    return VisitReport(visit, _value(call.output) if row.kind == "tool" else call.output)


def _text(output: JsonValue) -> str:
    return output if isinstance(output, str) else ""


def _value(output: JsonValue) -> JsonValue:
    """Return the output of a tool: as a value if it is a JSON object or list, otherwise unchanged."""
    if not isinstance(output, str) or output.lstrip()[:1] not in ("{", "["):
        return output
    try:
        parsed: JsonValue = strict_json.parse(output)
    except (ValueError, RecursionError):
        return output
    return parsed
