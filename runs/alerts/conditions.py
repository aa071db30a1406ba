"""Queries that detect the conditions of rules, and the costs of projects since midnight UTC.

The number of queries depends on the kinds of the rules, not on the number of rules and runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import F, Q, Sum, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce

from agentops.accounts.models import Project
from agentops.accounts.names import one_line
from runs.alerts.flow_conditions import Condition, Row, checked_from, covered_pairs, failed_flows, stuck_flows
from runs.alerts.rule_definition import MAX_AGENT, MAX_RUNS
from runs.models import Agent, AgentRun, AlertRule, Sink, TurnUsage
from runs.models.querysets import CLAIMED_FROM
from runs.queries.sink_health import has_backlog, lag_s, with_health, with_unread
from runs.queries.waiting_for_people import waits_for_people
from runs.statuses import PauseReason, RunStatus
from timeline.reasons import reason_label

Source = AgentRun.Source
#: Sources of runs that another program executes and reports.
_REPORTED = (Source.EXTERNAL, Source.OTLP)
_UNENDED = [status.value for status in RunStatus if not status.terminal]


def day_costs(project_ids: Collection[UUID], now: datetime) -> dict[UUID, Decimal]:
    """Return the cost since midnight UTC by project. Model calls without a known cost do not count. Two queries.

    For native runs, this is the cost of the model calls of the day (indexes `run_list_by_status`, `run_retention` and
    `turn_usage_list`). Many external runners report a cost only when a run ends, so the total cost of an external run
    counts on the day on which the run began (index `run_list_by_source`).
    """
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    runs = AgentRun.objects.filter(project__in=project_ids)
    native = runs.filter(
        Q(status__in=_UNENDED) | Q(completed_at__isnull=False, completed_at__gte=midnight), source=Source.NATIVE
    )
    turns = TurnUsage.objects.filter(run__in=native.values("pk"), created_at__gte=midnight)
    others = runs.exclude(source=Source.NATIVE).filter(source__in=_REPORTED, created_at__gte=midnight)
    costs: Counter[UUID] = Counter()
    for rows in (turns.order_by().values_list("run__project"), others.order_by().values_list("project")):
        for project_id, cost in rows.annotate(cost=Sum("cost_usd")):
            costs[project_id] += cost or 0
    return {project_id: Decimal(cost) for project_id, cost in costs.items()}


@dataclass(frozen=True)
class RecentOutcomes:
    """The outcomes of the newest ended runs of an agent."""

    agent_id: UUID
    project_id: UUID
    name: str
    #: Whether each run failed, newest run first.
    failed: list[bool]


#: The reasons of pauses after which a run counts as failed: with the default policies, few runs have that status.
_FAILED_PAUSES = (
    *(PauseReason.ERROR, PauseReason.POISON_STEP, PauseReason.ENGINE_ERROR),
    *(PauseReason.ANSWER_CUT, PauseReason.ANSWER_REFUSED),
)
# Selects the newest runs of each agent by the index `run_of_agent`.
_SQL = """
SELECT a.id, a.project_id, a.slug, (
    SELECT {join}(n.outcome, '') FROM (
        SELECT CASE r.status WHEN 'completed' THEN 'c' ELSE 'f' END AS outcome FROM agent_runs r
        WHERE r.agent_id = a.id AND r.removed_at IS NULL AND r.source <> 'import'
            AND (r.status IN ('completed', 'failed')
                OR (r.status = 'paused' AND r.status_reason IN ({pauses})))
        ORDER BY r.created_at DESC LIMIT {limit}
    ) n
) FROM {agents} a WHERE a.project_id IN ({marks}) ORDER BY a.id"""


def recent_outcomes(project_ids: Collection[UUID]) -> list[RecentOutcomes]:
    """Return the outcomes of the agents of these projects, at most `MAX_RUNS` of each. One query."""
    join = "string_agg" if connection.vendor == "postgresql" else "group_concat"
    marks = ", ".join(["%s"] * len(project_ids))
    pauses = ", ".join(f"'{reason}'" for reason in _FAILED_PAUSES)
    sql = _SQL.format(join=join, limit=MAX_RUNS, agents=Agent._meta.db_table, marks=marks, pauses=pauses)
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


def _sinks_behind(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield sinks whose oldest event has waited too long, also sinks that were disabled after an error.

    One query. Leaves out sinks that a person disabled, and sinks of the whole site.
    """
    monitored = Sink.objects.filter(Q(is_enabled=True) | ~Q(disabled_reason=""), project__exports_telemetry=True)
    sinks = with_unread(with_health(monitored.filter(project__in={rule.project_id for rule in rules})))
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

#: An external run that is reported later than this after its end is not announced.
LATE = timedelta(hours=1)
#: Kinds whose conditions are events: they happen once and have no duration.
HAPPENINGS = frozenset({Kind.RUN_FAILED, Kind.RUN_COST})
#: Kinds whose conditions are states of an agent, a sink or a whole project. Their queries cost more.
STATES = frozenset({Kind.DAY_COST, Kind.ERROR_RATE, Kind.SINK_BEHIND})

_COLUMNS = (
    *("pk", "project_id", "labels", "status", "status_reason", "error_type", "cost_usd", "lease_epoch"),
    *("agent_name", "last_event_at"),
)


def conditions_of(rules: Sequence[AlertRule], now: datetime) -> list[Condition]:
    """Return the conditions of the rules at `now`. At most two queries for each kind of rule."""
    conditions: list[Condition] = []
    for find, kinds in _FINDERS.items():
        if rules_of_kinds := [rule for rule in rules if rule.kind in kinds]:
            conditions += find(rules_of_kinds, now)
    return conditions


def _runs(rules: Sequence[AlertRule], *, with_imported: bool = False) -> Any:
    """Return the runs of the rules' projects. Imported runs are left out by default, because they are history."""
    name = Coalesce("agent__slug", KT("agent_config__agent_id"), Value(""), output_field=TextField())
    runs = AgentRun.objects.filter(project__in={rule.project_id for rule in rules})
    if not with_imported:
        runs = runs.exclude(source=Source.IMPORT)
    return runs.annotate(agent_name=name, last_event_at=F("log__last_event_at"))


def _condition(rule: AlertRule, row: Row, detail: str, episode: str = "") -> Condition:
    return Condition(rule.pk, one_line(row["agent_name"], MAX_AGENT), row["pk"], episode, detail)


def _ended(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield runs that failed, or ended above a cost limit, since the last check. Uses the index `run_retention`."""
    since = min(checked_from(rule) for rule in rules)
    wanted = Q(status=RunStatus.FAILED)
    if limits := [rule.limit_usd for rule in rules if rule.limit_usd is not None]:
        wanted |= Q(cost_usd__gte=min(limits))
    ended = _runs(rules).filter(wanted, completed_at__gte=since - LATE)
    for rule, row in covered_pairs(rules, ended.values(*_COLUMNS)):
        # This condition is not part of the query, because the planner would then read all logs.
        if row["last_event_at"] < checked_from(rule):
            continue
        if rule.kind == Kind.RUN_COST:
            yield from _above_cost(rule, row)
        elif row["status"] == RunStatus.FAILED:
            yield _condition(rule, row, reason_label(row["error_type"]))


def _costly(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield unfinished runs that cost too much. Uses the index `run_list_by_status`."""
    lowest = min(rule.limit_usd for rule in rules if rule.limit_usd is not None)
    runs = _runs(rules).filter(status__in=_UNENDED, cost_usd__gte=lowest)
    for rule, row in covered_pairs(rules, runs.values(*_COLUMNS)):
        yield from _above_cost(rule, row)


def _above_cost(rule: AlertRule, row: Row) -> Iterator[Condition]:
    """Yield the condition of a run if its cost reaches the rule's limit."""
    cost = row["cost_usd"]
    if rule.limit_usd is not None and cost is not None and cost >= rule.limit_usd:
        yield _condition(rule, row, f"{usd(cost)} spent, limit {usd(rule.limit_usd)}")


def _stalled(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield runs that should be working and have no new event. Uses the index `run_order`."""
    shortest = min(rule.minutes or 0 for rule in rules)
    # The event that reports a silent runner does not end the silence.
    runs = _runs(rules).annotate(silent_since=Coalesce("external__silent_since", "last_event_at"))
    stalled = runs.filter(
        status__in=CLAIMED_FROM,
        source__in=(Source.NATIVE, Source.EXTERNAL),
        silent_since__lte=now - timedelta(minutes=shortest),
    )
    for rule, row in covered_pairs(rules, stalled.values(*_COLUMNS, "silent_since")):
        silent = now - row["silent_since"]
        if silent >= timedelta(minutes=rule.minutes or 0):
            what = "in the queue" if row["status"] == RunStatus.QUEUED else "no event"
            detail = f"{what} for {int(silent.total_seconds() // 60)} min"
            yield _condition(rule, row, detail, row["silent_since"].isoformat())


def _waiting(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield runs that wait for a person. Uses the index `run_list_by_status`.

    Leaves out runs that an operator paused. Includes the external runs that the page "Needs you" lists, such as
    followed sessions, even if they were imported.
    """
    pauses = Q(status=RunStatus.PAUSED) & ~Q(status_reason=PauseReason.OPERATOR) & ~Q(source=Source.IMPORT)
    runs = _runs(rules, with_imported=True).filter(
        waits_for_people() | pauses, status__in=(RunStatus.WAITING, RunStatus.PAUSED)
    )
    for rule, row in covered_pairs(rules, runs.values(*_COLUMNS)):
        if now - row["last_event_at"] >= timedelta(minutes=rule.minutes or 0):
            reason = reason_label(row["status_reason"])
            detail = f"waits {reason}" if row["status"] == RunStatus.WAITING else f"paused, {reason}"
            # The epoch distinguishes two waits of a run: a worker claims the run between them, which raises its epoch.
            yield _condition(rule, row, detail[:200], f"{row['lease_epoch']} {row['status_reason']}"[:64])


def _expensive_day(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield projects whose cost since midnight UTC reaches the limit."""
    costs = day_costs({rule.project_id for rule in rules}, now)
    for rule in rules:
        cost = costs.get(rule.project_id, Decimal(0))
        if rule.limit_usd is not None and cost >= rule.limit_usd:
            detail = f"{usd(cost)} spent today, limit {usd(rule.limit_usd)}"
            yield Condition(rule.pk, "", None, f"day {now:%Y-%m-%d}", detail)


def _failing_agents(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Yield agents whose last runs failed too often."""
    outcomes = recent_outcomes({rule.project_id for rule in rules})
    for rule in rules:
        for agent in outcomes:
            last = agent.failed[: rule.last_runs or 0]
            is_covered = agent.project_id == rule.project_id and rule.agent in ("", agent.name)
            if not is_covered or len(last) < (rule.min_runs or 1):
                continue
            percent = 100 * sum(last) / len(last)
            if percent >= (rule.percent or 0):
                runs = f"{len(last)} run{'s' * (len(last) != 1)}"
                detail = f"{sum(last)} of the last {runs} failed ({percent:.0f} %), limit {rule.percent} %"
                yield Condition(rule.pk, agent.name, None, f"agent {agent.agent_id}", detail)


def usd(amount: Decimal) -> str:
    """Return an amount of US dollars with cents, or with all digits if it has more."""
    return f"${amount:,.2f}" if amount >= Decimal("0.01") else f"${amount.normalize():f}"


#: The functions that find conditions, and the kinds of rules that each is called with.
_FINDERS: dict[Callable[[Sequence[AlertRule], datetime], Iterator[Condition]], tuple[str, ...]] = {
    _ended: (Kind.RUN_FAILED, Kind.RUN_COST),
    _costly: (Kind.RUN_COST,),
    _stalled: (Kind.RUN_STALLED,),
    _waiting: (Kind.RUN_WAITING,),
    _expensive_day: (Kind.DAY_COST,),
    _failing_agents: (Kind.ERROR_RATE,),
    failed_flows: (Kind.RUN_FAILED,),
    stuck_flows: (Kind.RUN_STALLED,),
    _sinks_behind: (Kind.SINK_BEHIND,),
}
