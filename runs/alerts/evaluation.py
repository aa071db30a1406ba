"""Evaluates the alert rules.

A periodic task runs a few queries to find the rules whose alerts change, and stores each rule's changes in one
transaction. The transaction locks the rule and evaluates it again, so that of several workers only one stores and
announces a change. If a worker dies, either all changes of a rule are stored or none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from agentops.base import database_clock
from runs import chaos
from runs.alerts.alert_plan import Changes, RuleState, decide, is_muted
from runs.alerts.conditions import HAPPENINGS, conditions_of
from runs.alerts.flow_conditions import Condition
from runs.alerts.sending import announce
from runs.database_errors import done_alone
from runs.models import Alert, AlertFinding, AlertMute, AlertRule
from runs.models.alerts import PENDING

#: How often `checked_at` of a rule advances.
CHECKED_AT_STEP = timedelta(minutes=1)


def evaluate(kinds: Collection[str] = tuple(AlertRule.Kind.values)) -> int:
    """Evaluate the enabled rules of these kinds, and return for how many there were changes to store.

    About a dozen queries, independent of the number of rules and runs, and a few more for each rule with changes.
    """
    now = database_clock.now()
    rules = list(AlertRule.objects.enabled().filter(kind__in=kinds))
    if not rules:
        return 0
    conditions = conditions_of(rules, now)
    states = _load(rules, conditions)
    due = {each.rule.pk for each in states if decide(each, _of_rule(conditions, each.rule), now)}
    checked = [rule for rule in rules if rule.pk not in due or _try_update(rule.pk, now)]
    if outdated := [rule.pk for rule in checked if rule.checked_at < now - CHECKED_AT_STEP]:
        AlertRule.objects.filter(pk__in=outdated, checked_at__lt=now).update(checked_at=now)
    return len(due)


def _try_update(rule_id: UUID, now: datetime) -> bool:
    """Store the changes of one rule. Log an error and return False, so that the other rules are still evaluated."""

    def act() -> bool:
        _update(rule_id, now)
        return True

    return done_alone(act, "an alert rule could not be evaluated", rule_id=str(rule_id))


def _update(rule_id: UUID, now: datetime) -> None:
    """Evaluate one rule again, with a lock, and store its changes."""
    with transaction.atomic():
        rule = AlertRule.objects.enabled().select_for_update(no_key=True).filter(pk=rule_id).first()
        if rule is None:
            return  # removed or disabled by another process
        # Read after the lock, so that the commits of other workers are visible.
        conditions = conditions_of([rule], now)
        [state] = _load([rule], conditions)
        _store(state, decide(state, conditions, now), now)
        # The second pass stores messages about the findings of the first pass, if they are due immediately.
        [state] = _load([rule], conditions)
        _store(state, decide(state, conditions, now), now)
        chaos.point("alert.in_transaction")


def _load(rules: Sequence[AlertRule], conditions: Iterable[Condition]) -> list[RuleState]:
    """Return the rules with their stored alerts, findings and mutes. Three queries."""
    ids = [rule.pk for rule in rules]
    # A finding of an event is not pending once it is announced, but the event must not be found again.
    happening_ids = {rule.pk for rule in rules if rule.kind in HAPPENINGS}
    subjects = {each.subject_id for each in conditions if each.rule_id in happening_ids}
    alerts, findings = defaultdict(list), defaultdict(list)
    for alert in Alert.objects.filter(rule__in=ids, closed_at=None):
        alerts[alert.rule_id].append(alert)
    known = (Q(run__in=subjects) | Q(flow_run__in=subjects)) & Q(episode="")
    for finding in AlertFinding.objects.filter(PENDING | known, rule__in=ids):
        findings[finding.rule_id].append(finding)
    projects = {rule.project_id for rule in rules}
    mutes = list(AlertMute.objects.filter(project__in=projects, until__gt=database_clock.now()))
    return [RuleState(rule, alerts[rule.pk], findings[rule.pk], mutes) for rule in rules]


def _of_rule(conditions: Iterable[Condition], rule: AlertRule) -> list[Condition]:
    return [condition for condition in conditions if condition.rule_id == rule.pk]


# --- Writes, in the transaction that has locked the rule ------------------------------------------------------------


def _store(state: RuleState, changes: Changes, now: datetime) -> None:
    """Store the changes of a rule: messages, ended findings, closed alerts, then new findings."""
    for message in changes.messages:
        announce(state.rule, message, now)
    ended = AlertFinding.objects.filter(pk__in=[finding.pk for finding in changes.ended])
    ended.filter(message=None).update(is_silent=True)
    ended.update(ended_at=now)
    Alert.objects.filter(pk__in=[alert.pk for alert in changes.closed]).update(closed_at=now)
    by_agent: dict[str, list[Condition]] = defaultdict(list)
    for condition in changes.new:
        by_agent[condition.agent].append(condition)
    for agent, conditions in by_agent.items():
        _add_findings(state, agent, conditions, now)


def _add_findings(state: RuleState, agent: str, conditions: Sequence[Condition], now: datetime) -> None:
    """Store the findings of an agent in its open alert or in a new one."""
    rule = state.rule
    alert = _open_alert(rule, agent, now)
    announced = _announced_before(rule, alert, conditions, now)
    findings = [
        AlertFinding(
            project_id=rule.project_id,
            rule=rule,
            alert=alert,
            run_id=each.run_id,
            flow_run_id=each.flow_run_id,
            episode=each.episode,
            detail=each.detail[:200],
            found_at=now,
            ended_at=now if rule.kind in HAPPENINGS else None,
            message_id=announced.get(each.key),
            # A lasting condition is announced when a mute ends; an event that happened during the mute is not.
            is_silent=rule.kind in HAPPENINGS and is_muted(state.mutes, rule, agent, each.run_id, now),
        )
        for each in conditions
    ]
    AlertFinding.objects.bulk_create(findings)
    Alert.objects.filter(pk=alert.pk).update(count=F("count") + len(findings), last_seen_at=now)


def _open_alert(rule: AlertRule, agent: str, now: datetime) -> Alert:
    """Return the open alert of an agent: reopen one that closed within `group_minutes`, or create a new one."""
    newest = Alert.objects.filter(rule=rule, agent=agent).order_by("-pk").first()
    since = now - timedelta(minutes=rule.group_minutes)
    if newest is not None and (newest.closed_at is None or newest.closed_at >= since):
        Alert.objects.filter(pk=newest.pk).update(closed_at=None)
        return newest
    return Alert.objects.create(
        project_id=rule.project_id, rule=rule, agent=agent, opened_at=now, last_seen_at=now, count=0
    )


def _announced_before(
    rule: AlertRule, alert: Alert, conditions: Sequence[Condition], now: datetime
) -> dict[tuple[UUID | None, str], UUID]:
    """Return the IDs of messages that announced the same states within `repeat_hours`, by the key of the condition.

    Such a state is not announced again. Only conditions without a run are considered.
    """
    episodes = [each.episode for each in conditions if each.subject_id is None]
    if not episodes:
        return {}
    since = now - timedelta(hours=rule.repeat_hours) if rule.repeat_hours else rule.created_at
    same = AlertFinding.objects.filter(
        rule=rule, run=None, flow_run=None, episode__in=episodes, message__created_at__gte=since
    )
    return {(None, episode): message_id for episode, message_id in same.values_list("episode", "message_id")}
