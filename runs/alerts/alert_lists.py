"""Lists of alerts for pages, the API and the command line."""

from __future__ import annotations

from django.db.models import Prefetch, QuerySet

from agentops.accounts.models import Project
from runs.alerts.flow_conditions import GROUP
from runs.models import Alert, AlertFinding, AlertRule

#: The newest findings of an alert that a list includes.
LISTED = 10


def alerts_of(project: Project, *, open_only: bool = False) -> QuerySet[Alert]:
    """Return the alerts of a project, newest first, with their rules and newest findings. Two queries for a page."""
    columns = (
        *("alert_id", "run_id", "flow_run_id", "detail", "found_at", "ended_at", "run__title", "run__status"),
        *("flow_run__status", "flow_run__flow__slug", "flow_run__flow__title"),
    )
    newest = AlertFinding.objects.select_related("run", "flow_run__flow").only(*columns).order_by("-pk")[:LISTED]
    alerts = Alert.objects.filter(project=project).select_related("rule").order_by("-pk")
    if open_only:
        alerts = alerts.filter(closed_at=None)
    return alerts.prefetch_related(Prefetch("findings", newest, to_attr="newest_findings"))


def open_counts(project: Project) -> dict[object, int]:
    """Return the number of open alerts by rule. One query."""
    counts: dict[object, int] = {}
    for rule_id in Alert.objects.filter(rule__project=project, closed_at=None).values_list("rule_id", flat=True):
        counts[rule_id] = counts.get(rule_id, 0) + 1
    return counts


def group_name(agent: str) -> str:
    """Return the display name of a group of runs: an agent or a flow."""
    return agent if agent.startswith(GROUP) else f"agent {agent}"


def says(rule: AlertRule) -> str:
    """Return a sentence that describes the condition of a rule."""
    limit = "" if rule.limit_usd is None else f"${rule.limit_usd.normalize():f}"
    sentences = {
        AlertRule.Kind.RUN_FAILED: "A run fails",
        AlertRule.Kind.RUN_STALLED: f"A run has no event for {rule.minutes} min while it should be working",
        AlertRule.Kind.RUN_WAITING: "A run waits for a person" + (f" for {rule.minutes} min" if rule.minutes else ""),
        AlertRule.Kind.RUN_COST: f"A run costs {limit} or more",
        AlertRule.Kind.DAY_COST: f"The project's day (UTC) costs {limit} or more",
        AlertRule.Kind.ERROR_RATE: f"{rule.percent} % or more of an agent's last {rule.last_runs} "
        f"run{'s' * (rule.last_runs != 1)} failed, "
        f"of at least {rule.min_runs}",
        AlertRule.Kind.SINK_BEHIND: f"The oldest event for a sink has waited {rule.minutes} min",
    }
    filters = [group_name(rule.agent)] if rule.agent else []
    filters += [f"label {rule.label}"] if rule.label else []
    return sentences[AlertRule.Kind(rule.kind)] + (f"; {', '.join(filters)} only" if filters else "")
