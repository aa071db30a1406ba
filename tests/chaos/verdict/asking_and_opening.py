"""Checks of approvals and run trees after a schedule. May import the product."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.statuses import ToolStatus
from tests.chaos.environment.deterministic_model import SPAWN
from tests.chaos.verdict.result import Result
from timeline.models import Event

State = Approval.State


def check_approvals(arrivals: list[dict[str, Any]], result: Result) -> None:
    """Check that no call ran without or before its approval, and that each approval is requested and resolved once."""
    approvals = {str(approval.call_id): approval for approval in Approval.objects.all()}
    for call in AgentRunToolCall.objects.filter(starts__gt=0).select_related("run"):
        approval = approvals.get(str(call.pk))
        if _needs_approval(call) and (approval is None or approval.state != State.APPROVED):
            result.wrong("approvals", f"{call.tool_name} {call.call_id} of run {call.run_id} ran without an approval")
    for each in arrivals:
        approval = approvals.get(each["call"])
        decided_at = approval.decided_at if approval is not None else None
        if approval is not None and (decided_at is None or each["at"] < decided_at.timestamp()):
            result.wrong(
                "approvals", f"{approval.tool_name} of run {approval.run_id} had its effect before it was approved"
            )
    for approval in approvals.values():
        events = Event.objects.filter(log=approval.run_id, ref_id=approval.call_id)
        asked = events.filter(type="approval.requested").count()
        settled = events.filter(type="approval.resolved").values_list("payload__decision", flat=True)
        expected = [] if approval.state == State.PENDING else [approval.state]
        if asked != 1 or list(settled) != expected:
            result.wrong("approvals", f"{approval} was asked for {asked}× and settled as {list(settled)}")


def _needs_approval(call: AgentRunToolCall) -> bool:
    rules = call.run.agent_config.get("policies", {}).get("approvals", [])
    return any(re.fullmatch(rule["tools"], call.tool_name) for rule in rules)


def check_trees(result: Result) -> None:
    """Check that each task has one child run, and that an ended call has one result for each task, in order."""
    for call in AgentRunToolCall.objects.filter(tool_name=SPAWN):
        tasks = len(call.input["tasks"]) if isinstance(call.input, dict) else 0
        events = Event.objects.filter(log=call.run_id, payload__call_id=call.call_id)
        opened, ended = (
            [*events.filter(type=f"child_run.{kind}").order_by("seq").values_list("payload__index", flat=True)]
            for kind in ("started", "completed")
        )
        if opened != (list(range(tasks)) if call.starts else []):
            result.wrong("trees", f"call {call.call_id} of run {call.run_id} opened {opened} of {tasks} child runs")
        if call.status == ToolStatus.COMPLETED and ended != list(range(tasks)):
            result.wrong("trees", f"call {call.call_id} of run {call.run_id} has the results of {ended}")
    announced = Counter(Event.objects.filter(type="child_run.started").values_list("ref_id", flat=True))
    for child in AgentRun.objects.filter(parent_run__isnull=False, resumed_from=None).values_list("pk", flat=True):
        if announced[child] != 1:
            result.wrong("trees", f"child run {child} was announced {announced[child]}×")
