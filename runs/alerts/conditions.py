"""Queries that detect the conditions of rules.

There is one query for each kind of rule, independent of the number of rules and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import F, Q, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from agentops.accounts.models import Project
from agentops.accounts.names import one_line
from runs.alerts.condition import Condition, checked_from, of_kind
from runs.alerts.flow_conditions import failed_flows, stuck_flows
from runs.alerts.project_costs import day_costs
from runs.alerts.rule_definition import MAX_AGENT, MAX_RUNS
from runs.models import Agent, AgentRun, AlertRule, Sink
from runs.models.querysets import CLAIMED_FROM
from runs.queries.sink_health import has_backlog, lag_s, with_health, with_unread
from runs.queries.waiting_for_people import waits_for_people
from runs.statuses import PauseReason, RunStatus
from timeline.reasons import reason_label


@dataclass(frozen=True)
class RecentOutcomes:
    """The newest runs of an agent that have a result, newest first: whether each failed."""

    agent_id: UUID
    project_id: UUID
    name: str
    failed: list[bool]


# Selects the newest runs of each agent by the index `run_of_agent`. A run that paused after an error counts as failed:
# with the default policies few runs have the status `failed`.
_SQL = """
SELECT a.id, a.project_id, a.slug, (
    SELECT {join}(n.outcome, '') FROM (
        SELECT CASE r.status WHEN 'completed' THEN 'c' ELSE 'f' END AS outcome FROM agent_runs r
        WHERE r.agent_id = a.id AND r.removed_at IS NULL AND r.source <> 'import'
            AND (r.status IN ('completed', 'failed')
                OR (r.status = 'paused' AND r.status_reason IN ('error', 'poison_step', 'engine_error')))
        ORDER BY r.created_at DESC LIMIT {limit}
    ) n
) FROM {agents} a WHERE a.project_id IN ({marks}) ORDER BY a.id"""


def recent_outcomes(project_ids: Collection[UUID]) -> list[RecentOutcomes]:
    """Return the outcomes of the agents of these projects, at most `MAX_RUNS` of each. One query."""
    join = "string_agg" if connection.vendor == "postgresql" else "group_concat"
    marks = ", ".join(["%s"] * len(project_ids))
    sql = _SQL.format(join=join, limit=MAX_RUNS, agents=Agent._meta.db_table, marks=marks)
    key = Project._meta.pk
    with connection.cursor() as cursor:
        cursor.execute(sql, [key.get_db_prep_value(each, connection) for each in project_ids])
        return [
            RecentOutcomes(
                key.to_python(agent_id), key.to_python(project_id), name, [each == "f" for each in text or ""]
            )
            for agent_id, project_id, name, text in cursor
        ]


# --- Sinks ---


def sinks_behind(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield sinks whose oldest event has waited too long, and sinks that were disabled after an error.

    One query. Leaves out sinks that a person disabled, and sinks of the whole site.
    """
    rules = of_kind(rules, AlertRule.Kind.SINK_BEHIND)
    if not rules:
        return
    meant = Sink.objects.filter(Q(is_enabled=True) | ~Q(disabled_reason=""), project__exports_telemetry=True)
    sinks = with_unread(with_health(meant.filter(project__in={rule.project_id for rule in rules})))
    # Events of other projects, which a disabled sink has not passed either, are not a backlog.
    behind = [sink for sink in sinks if has_backlog(sink)]
    for rule in rules:
        for sink in behind:
            minutes = lag_s(sink, now) // 60
            if sink.project_id == rule.project_id and minutes >= (rule.minutes or 0):
                why = f": {sink.disabled_reason}" if sink.disabled_reason else ""
                detail = one_line(f"{sink.name}: the oldest event has waited {minutes} min{why}", 200)
                yield Condition(rule.pk, "", None, f"sink {sink.pk}", detail)


# --- All kinds ---

Kind = AlertRule.Kind
Source = AgentRun.Source
#: An external run reported later than this after its end is not announced.
LATE = timedelta(hours=1)
#: Kinds of events that happen once and have no duration.
HAPPENINGS = frozenset({Kind.RUN_FAILED, Kind.RUN_COST})
#: Kinds about an agent, a sink or a whole project. Their queries cost more.
STATES = frozenset({Kind.DAY_COST, Kind.ERROR_RATE, Kind.SINK_BEHIND})
_UNENDED = [status.value for status in RunStatus if not status.terminal]
_COLUMNS = (
    *("pk", "project_id", "labels", "status", "status_reason", "error_type", "cost_usd", "lease_epoch"),
    *("agent_name", "last_event_at"),
)
Row = dict[str, Any]


def conditions_of(rules: Sequence[AlertRule], now: datetime) -> list[Condition]:
    """Return the conditions of the rules at `now`. At most two queries for each kind of rule."""
    return [condition for find in _FINDERS for condition in find(rules, now)]


def _runs(rules: Sequence[AlertRule], *, with_imported: bool = False) -> Any:
    """Return the runs of the rules' projects. Imported runs are history and left out, unless they continue."""
    name = Coalesce("agent__slug", KT("agent_config__agent_id"), Value(""), output_field=TextField())
    runs = AgentRun.objects.filter(project__in={rule.project_id for rule in rules})
    if not with_imported:
        runs = runs.exclude(source=Source.IMPORT)
    return runs.annotate(agent_name=name, last_event_at=F("log__last_event_at"))


def _pairs(rules: Sequence[AlertRule], rows: Sequence[Row]) -> Iterator[tuple[AlertRule, Row]]:
    """Yield each rule with each run that it covers."""
    for rule in rules:
        for row in rows:
            is_meant = rule.project_id == row["project_id"] and rule.agent in ("", row["agent_name"])
            if is_meant and (not rule.label or rule.label in row["labels"]):
                yield rule, row


def _condition(rule: AlertRule, row: Row, detail: str, episode: str = "") -> Condition:
    return Condition(rule.pk, one_line(row["agent_name"], MAX_AGENT), row["pk"], episode, detail)


def _ended(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield runs that failed or ended above a cost since the last check. Uses the index `run_retention`."""
    rules = of_kind(rules, Kind.RUN_FAILED, Kind.RUN_COST)
    if not rules:
        return
    since = min(checked_from(rule) for rule in rules)
    wanted = Q(status=RunStatus.FAILED)
    if limits := [rule.limit_usd for rule in rules if rule.limit_usd is not None]:
        wanted |= Q(cost_usd__gte=min(limits))
    ended = _runs(rules).filter(wanted, completed_at__gte=since - LATE)
    for rule, row in _pairs(rules, list(ended.values(*_COLUMNS))):
        # Not in the query: with this condition the planner would read all logs.
        if row["last_event_at"] < checked_from(rule):
            continue
        if rule.kind == Kind.RUN_COST:
            yield from _above_cost(rule, row)
        elif row["status"] == RunStatus.FAILED:
            yield _condition(rule, row, reason_label(row["error_type"]))


def _costly(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield unfinished runs that cost too much. Uses the index `run_list_by_status`."""
    rules = of_kind(rules, Kind.RUN_COST)
    if not rules:
        return
    lowest = min(rule.limit_usd for rule in rules if rule.limit_usd is not None)
    runs = _runs(rules).filter(status__in=_UNENDED, cost_usd__gte=lowest)
    for rule, row in _pairs(rules, list(runs.values(*_COLUMNS))):
        yield from _above_cost(rule, row)


def _above_cost(rule: AlertRule, row: Row) -> Iterator[Condition]:
    cost = row["cost_usd"]
    if rule.limit_usd is not None and cost is not None and cost >= rule.limit_usd:
        yield _condition(rule, row, f"{usd(cost)} spent, limit {usd(rule.limit_usd)}")


def _stalled(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield runs that should be working and have no new event. Uses the index `run_order`."""
    rules = of_kind(rules, Kind.RUN_STALLED)
    if not rules:
        return
    shortest = min(rule.minutes or 0 for rule in rules)
    # The report that a runner is silent is an event too, but does not end the silence.
    runs = _runs(rules).annotate(silent_since=Coalesce("external__silent_since", "last_event_at"))
    stalled = runs.filter(
        status__in=CLAIMED_FROM,
        source__in=(Source.NATIVE, Source.EXTERNAL),
        silent_since__lte=now - timedelta(minutes=shortest),
    )
    for rule, row in _pairs(rules, list(stalled.values(*_COLUMNS, "silent_since"))):
        silent = now - row["silent_since"]
        if silent >= timedelta(minutes=rule.minutes or 0):
            what = "in the queue" if row["status"] == RunStatus.QUEUED else "no event"
            detail = f"{what} for {int(silent.total_seconds() // 60)} min"
            yield _condition(rule, row, detail, row["silent_since"].isoformat())


def _waiting(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield runs that wait for a person. Uses the index `run_list_by_status`.

    Leaves out runs that an operator paused. Includes external runs that "Needs you" lists, such as followed sessions.
    """
    rules = of_kind(rules, Kind.RUN_WAITING)
    if not rules:
        return
    pauses = Q(status=RunStatus.PAUSED) & ~Q(status_reason=PauseReason.OPERATOR) & ~Q(source=Source.IMPORT)
    runs = _runs(rules, with_imported=True).filter(
        waits_for_people() | pauses, status__in=(RunStatus.WAITING, RunStatus.PAUSED)
    )
    for rule, row in _pairs(rules, list(runs.values(*_COLUMNS))):
        if now - row["last_event_at"] >= timedelta(minutes=rule.minutes or 0):
            reason = reason_label(row["status_reason"])
            detail = f"waits {reason}" if row["status"] == RunStatus.WAITING else f"paused, {reason}"
            # A run is claimed between two waits, which raises its epoch.
            yield _condition(rule, row, detail[:200], f"{row['lease_epoch']} {row['status_reason']}"[:64])


def _expensive_day(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    rules = of_kind(rules, Kind.DAY_COST)
    costs = day_costs({rule.project_id for rule in rules}, now) if rules else {}
    for rule in rules:
        cost = costs.get(rule.project_id, Decimal(0))
        if rule.limit_usd is not None and cost >= rule.limit_usd:
            detail = f"{usd(cost)} spent today, limit {usd(rule.limit_usd)}"
            yield Condition(rule.pk, "", None, f"day {now:%Y-%m-%d}", detail)


def _failing_agents(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    rules = of_kind(rules, Kind.ERROR_RATE)
    outcomes = recent_outcomes({rule.project_id for rule in rules}) if rules else []
    for rule in rules:
        for agent in outcomes:
            last = agent.failed[: rule.last_runs or 0]
            is_meant = agent.project_id == rule.project_id and rule.agent in ("", agent.name)
            if not is_meant or len(last) < (rule.min_runs or 1):
                continue
            percent = 100 * sum(last) / len(last)
            if percent >= (rule.percent or 0):
                runs = f"{len(last)} run{'s' * (len(last) != 1)}"
                detail = f"{sum(last)} of the last {runs} failed ({percent:.0f} %), limit {rule.percent} %"
                yield Condition(rule.pk, agent.name, None, f"agent {agent.agent_id}", detail)


def usd(amount: Decimal) -> str:
    """Return an amount of US dollars with cents, or with all digits if it has more."""
    return f"${amount:,.2f}" if amount >= Decimal("0.01") else f"${amount.normalize():f}"


_FINDERS: tuple[Callable[[Sequence[AlertRule], datetime], Iterator[Condition]], ...] = (
    *(_ended, _costly, _stalled, _waiting, _expensive_day, _failing_agents, failed_flows, stuck_flows, sinks_behind),
)
