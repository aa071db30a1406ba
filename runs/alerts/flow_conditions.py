"""The class of all conditions that rules detect, and the conditions of flow runs: failed, or not advanced by a worker.

A flow run that failed because of a node's run has no condition: the alert is about the node's run. For the same reason,
a flow run that waits for a person has none: the alert is about the run that asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Concat

from agentops.accounts.names import one_line
from runs.alerts.rule_definition import MAX_AGENT
from runs.models import AlertRule, FlowRun
from runs.statuses import RunStatus
from timeline.reasons import reason_label

#: Each check also reads runs that ended in this period before the last check: a transaction may become visible after a
#: later one, and clocks may differ.
OVERLAP = timedelta(minutes=5)

Kind = AlertRule.Kind
Row = dict[str, Any]


@dataclass(frozen=True)
class Condition:
    """A condition that a rule detects. Conditions of a rule with the same `key` are the same finding."""

    rule_id: UUID
    #: The name of the agent, or `flow NAME` for runs of a flow. Empty for conditions of a project or a sink.
    agent: str
    run_id: UUID | None
    #: Distinguishes conditions of the same run at different times, or names the sink, agent or day if there is no run.
    episode: str
    #: A description for people.
    detail: str
    flow_run_id: UUID | None = None

    @property
    def subject_id(self) -> UUID | None:
        """The ID of the run or of the flow run; None for conditions of an agent, a sink or a project."""
        return self.run_id or self.flow_run_id

    @property
    def key(self) -> tuple[UUID | None, str]:
        return self.subject_id, self.episode


def checked_from(rule: AlertRule) -> datetime:
    """Return the time from which a check of the rule considers events."""
    return max(rule.checked_at - OVERLAP, rule.created_at)


def covered_pairs(rules: Sequence[AlertRule], rows: Iterable[Row]) -> Iterator[tuple[AlertRule, Row]]:
    """Yield each rule with each run or flow run that it covers: of its project, its agent and its label."""
    rows = list(rows)
    for rule in rules:
        for row in rows:
            is_covered = rule.project_id == row["project_id"] and rule.agent in ("", row["agent_name"])
            if is_covered and (not rule.label or rule.label in row.get("labels", ())):
                yield rule, row


#: Flow runs are grouped under this prefix and the flow's name. No agent of this site can have such a name.
GROUP = "flow "
_COLUMNS = ("pk", "project_id", "agent_name", "status", "error_type", "completed_at")


def failed_flows(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield flow runs that failed since the last check, but not because of a run. Index: `flow_run_retention`."""
    since = min(checked_from(rule) for rule in rules)
    failed = _flow_runs(rules).filter(status=RunStatus.FAILED, failed_run_id=None, completed_at__gte=since)
    for rule, row in covered_pairs(rules, failed.values(*_COLUMNS)):
        if row["completed_at"] >= checked_from(rule):
            yield _condition(rule, row, reason_label(row["error_type"]))


def stuck_flows(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield flow runs that are ready but that no worker advances. Index: `flow_run_moving`."""
    shortest = min(rule.minutes or 0 for rule in rules)
    stuck = _flow_runs(rules).with_stuck_since().filter(stuck_since__lte=now - timedelta(minutes=shortest))
    for rule, row in covered_pairs(rules, stuck.values(*_COLUMNS, "stuck_since")):
        silent = now - row["stuck_since"]
        if silent >= timedelta(minutes=rule.minutes or 0):
            what = "in the queue" if row["status"] == RunStatus.QUEUED else "not advanced"
            detail = f"{what} for {int(silent.total_seconds() // 60)} min"
            yield _condition(rule, row, detail, row["stuck_since"].isoformat())


def _flow_runs(rules: Sequence[AlertRule]) -> Any:
    """Return the flow runs of the rules' projects, with `agent_name`: "flow " and the name of the flow."""
    flow_runs = FlowRun.objects.filter(project__in={rule.project_id for rule in rules})
    name = Concat(Value(GROUP), KT("definition__flow_id"), output_field=TextField())
    return flow_runs.annotate(agent_name=name)


def _condition(rule: AlertRule, row: Row, detail: str, episode: str = "") -> Condition:
    return Condition(rule.pk, one_line(row["agent_name"], MAX_AGENT), None, episode, detail, row["pk"])
