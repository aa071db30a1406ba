"""Detects flow runs that failed on their own, and flow runs that no worker advances.

A flow that failed because of a node's run is left out, because the alert is about that run. So is a flow that waits for
a person: the alert is about the run that asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Concat

from agentops.accounts.names import one_line
from runs.alerts.condition import Condition, checked_from, of_kind
from runs.alerts.rule_definition import MAX_AGENT
from runs.models import AlertRule, FlowRun
from runs.statuses import RunStatus
from timeline.reasons import reason_label

Kind = AlertRule.Kind
#: Flow runs are grouped under this prefix and the flow's name. No agent of this site can have such a name.
GROUP = "flow "
Row = dict[str, Any]


def failed_flows(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield flow runs that failed on their own since the last check. Uses the index `flow_run_retention`."""
    rules = of_kind(rules, Kind.RUN_FAILED)
    if not rules:
        return
    since = min(checked_from(rule) for rule in rules)
    failed = _flow_runs(rules).filter(status=RunStatus.FAILED, failed_run_id=None, completed_at__gte=since)
    for rule, row in _pairs(rules, list(failed.values("pk", "project_id", "group", "error_type", "completed_at"))):
        if row["completed_at"] >= checked_from(rule):
            yield _condition(rule, row, reason_label(row["error_type"]))


def stuck_flows(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield flow runs that are ready but that no worker advances. Uses the index `flow_run_moving`."""
    rules = of_kind(rules, Kind.RUN_STALLED)
    if not rules:
        return
    shortest = min(rule.minutes or 0 for rule in rules)
    stuck = _flow_runs(rules).with_stuck_since().filter(stuck_since__lte=now - timedelta(minutes=shortest))
    for rule, row in _pairs(rules, list(stuck.values("pk", "project_id", "group", "status", "stuck_since"))):
        silent = now - row["stuck_since"]
        if silent >= timedelta(minutes=rule.minutes or 0):
            what = "in the queue" if row["status"] == RunStatus.QUEUED else "not advanced"
            detail = f"{what} for {int(silent.total_seconds() // 60)} min"
            yield _condition(rule, row, detail, row["stuck_since"].isoformat())


def _flow_runs(rules: Sequence[AlertRule]) -> Any:
    """Return the flow runs of the rules' projects, with their group names."""
    flow_runs = FlowRun.objects.filter(project__in={rule.project_id for rule in rules})
    name = Concat(Value(GROUP), KT("definition__flow_id"), output_field=TextField())
    return flow_runs.annotate(group=name)


def _pairs(rules: Sequence[AlertRule], rows: Sequence[Row]) -> Iterator[tuple[AlertRule, Row]]:
    """Yield each rule with each flow run that it covers. Flow runs have no labels."""
    for rule in rules:
        for row in rows:
            is_meant = rule.project_id == row["project_id"] and rule.agent in ("", row["group"])
            if is_meant and not rule.label:
                yield rule, row


def _condition(rule: AlertRule, row: Row, detail: str, episode: str = "") -> Condition:
    return Condition(rule.pk, one_line(row["group"], MAX_AGENT), None, episode, detail, row["pk"])
