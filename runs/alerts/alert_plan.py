"""Decides how the alerts of a rule change: a pure function of the stored state and the current findings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings

from runs.alerts.condition import Condition
from runs.alerts.conditions import HAPPENINGS, STATES
from runs.models import Alert, AlertFinding, AlertMessage, AlertMute, AlertRule

Event = AlertMessage.Event
#: How long the first message waits for more runs, in evaluations. Runs that fail together share one message.
WAITED_EVALUATIONS = 1.5


@dataclass(frozen=True)
class RuleState:
    """A rule with its open alerts, their pending findings, and stored findings of runs in the current conditions."""

    rule: AlertRule
    alerts: Sequence[Alert] = ()
    findings: Sequence[AlertFinding] = ()
    mutes: Sequence[AlertMute] = ()


@dataclass(frozen=True)
class Announcement:
    """A message that is due."""

    alert: Alert
    event: Event
    findings: Sequence[AlertFinding]


@dataclass
class Changes:
    """The changes to write. Falsy without changes."""

    new: list[Condition] = field(default_factory=list)
    ended: list[AlertFinding] = field(default_factory=list)
    messages: list[Announcement] = field(default_factory=list)
    closed: list[Alert] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.ended or self.messages or self.closed)


def decide(state: RuleState, conditions: Collection[Condition], now: datetime) -> Changes:
    """Return the changes, given all `conditions` of the rule at `now`."""
    rule = state.rule
    current = {condition.key: condition for condition in conditions}
    known = {(finding.subject_id, finding.episode) for finding in state.findings}
    changes = Changes(new=[condition for key, condition in current.items() if key not in known])
    if rule.kind not in HAPPENINGS:
        changes.ended = [
            finding
            for finding in state.findings
            if finding.ended_at is None and (finding.subject_id, finding.episode) not in current
        ]
    opening = {condition.agent for condition in changes.new}
    for alert in state.alerts:
        _decide_alert(state, alert, changes, now, has_new=alert.agent in opening)
    return changes


def _decide_alert(state: RuleState, alert: Alert, changes: Changes, now: datetime, *, has_new: bool) -> None:
    """Add the changes of an open alert: a message that is due, or its end."""
    rule, over = state.rule, {finding.pk for finding in changes.ended}
    left = [finding for finding in state.findings if finding.alert_id == alert.pk and finding.pk not in over]
    lasting = [finding for finding in left if finding.ended_at is None]
    unannounced = [finding for finding in left if finding.message_id is None and not finding.is_silent]
    audible = [finding for finding in unannounced if not is_muted(state.mutes, rule, alert.agent, finding.run_id, now)]
    is_over = not has_new and not lasting and not unannounced
    if audible:
        if now >= _due_at(rule, alert, audible):
            event = Event.OPENED if alert.announced_at is None else Event.CONTINUED
            changes.messages.append(Announcement(alert, event, audible))
    elif is_over and (rule.kind not in HAPPENINGS or now >= _quiet_since(alert) + _window(rule)):
        changes.closed.append(alert)
        is_audible = not is_muted(state.mutes, rule, alert.agent, None, now)
        if rule.announces_end and rule.kind not in HAPPENINGS and alert.announced_at is not None and is_audible:
            changes.messages.append(Announcement(alert, Event.CLOSED, []))
    elif lasting and rule.repeat_hours and alert.announced_at is not None:
        heard = [each for each in lasting if not is_muted(state.mutes, rule, alert.agent, each.run_id, now)]
        if heard and now >= alert.announced_at + timedelta(hours=rule.repeat_hours):
            changes.messages.append(Announcement(alert, Event.REPEATED, heard))


def is_muted(mutes: Collection[AlertMute], rule: AlertRule, agent: str, run_id: UUID | None, now: datetime) -> bool:
    """Return whether the rule, the agent or the run is muted."""
    return any(
        mute.until > now
        and mute.project_id == rule.project_id
        and (
            mute.rule_id == rule.pk
            or (run_id is not None and mute.run_id == run_id)
            or (mute.agent != "" and mute.agent == agent)
        )
        for mute in mutes
    )


def _due_at(rule: AlertRule, alert: Alert, findings: Sequence[AlertFinding]) -> datetime:
    first = min(finding.found_at for finding in findings)
    wait = timedelta(seconds=0 if rule.kind in STATES else settings.AGENTOPS_ALERTS_S * WAITED_EVALUATIONS)
    due = first + wait
    return due if alert.announced_at is None else max(due, alert.announced_at + _window(rule))


def _quiet_since(alert: Alert) -> datetime:
    return max(alert.last_seen_at, alert.announced_at or alert.last_seen_at)


def _window(rule: AlertRule) -> timedelta:
    return timedelta(minutes=rule.group_minutes)
