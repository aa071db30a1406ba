"""Decides how the alerts of a rule change: a pure function of the stored state and the current conditions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings

from runs.alerts.conditions import HAPPENINGS, STATES
from runs.alerts.flow_conditions import Condition
from runs.models import Alert, AlertFinding, AlertMessage, AlertMute, AlertRule

Event = AlertMessage.Event
#: How long the first message of an alert is delayed, in periods of the evaluation (`AGENTOPS_ALERTS_S`). Runs that fail
#: at about the same time then share one message.
FIRST_MESSAGE_DELAY = 1.5


@dataclass(frozen=True)
class RuleState:
    """A rule with its open alerts, its mutes, and its findings: all pending ones, and all that are found again."""

    rule: AlertRule
    alerts: Sequence[Alert] = ()
    findings: Sequence[AlertFinding] = ()
    mutes: Sequence[AlertMute] = ()


@dataclass(frozen=True)
class Announcement:
    """A message about an alert that is due."""

    alert: Alert
    event: Event
    findings: Sequence[AlertFinding]


@dataclass
class Changes:
    """The changes to store. False if there are none."""

    #: Conditions without a finding.
    new: list[Condition] = field(default_factory=list)
    #: Findings whose condition has ended.
    ended: list[AlertFinding] = field(default_factory=list)
    messages: list[Announcement] = field(default_factory=list)
    closed: list[Alert] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.ended or self.messages or self.closed)


def decide(state: RuleState, conditions: Collection[Condition], now: datetime) -> Changes:
    """Return the changes that follow from `conditions`, all conditions of the rule at `now`."""
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
    agents = {condition.agent for condition in changes.new}
    for alert in state.alerts:
        _decide_alert(state, alert, changes, now, has_new=alert.agent in agents)
    return changes


def _decide_alert(state: RuleState, alert: Alert, changes: Changes, now: datetime, *, has_new: bool) -> None:
    """Add the changes of an open alert to `changes`: a message that is due, and its end.

    `has_new`: whether `changes.new` contains conditions of its agent.
    """
    rule, ended_ids = state.rule, {finding.pk for finding in changes.ended}
    findings = [each for each in state.findings if each.alert_id == alert.pk and each.pk not in ended_ids]
    lasting = [finding for finding in findings if finding.ended_at is None]
    unannounced = [finding for finding in findings if finding.message_id is None and not finding.is_silent]
    to_announce = [each for each in unannounced if not is_muted(state.mutes, rule, alert.agent, each.run_id, now)]
    is_over = not has_new and not lasting and not unannounced
    if to_announce:
        if now >= _due_at(rule, alert, to_announce):
            event = Event.OPENED if alert.announced_at is None else Event.CONTINUED
            changes.messages.append(Announcement(alert, event, to_announce))
    elif is_over and (rule.kind not in HAPPENINGS or now >= _quiet_since(alert) + _window(rule)):
        changes.closed.append(alert)
        is_alert_muted = is_muted(state.mutes, rule, alert.agent, None, now)
        if rule.announces_end and rule.kind not in HAPPENINGS and alert.announced_at is not None and not is_alert_muted:
            changes.messages.append(Announcement(alert, Event.CLOSED, []))
    elif lasting and rule.repeat_hours and alert.announced_at is not None:
        to_repeat = [each for each in lasting if not is_muted(state.mutes, rule, alert.agent, each.run_id, now)]
        if to_repeat and now >= alert.announced_at + timedelta(hours=rule.repeat_hours):
            changes.messages.append(Announcement(alert, Event.REPEATED, to_repeat))


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
    """Return when a message about these findings may be sent: after a delay, and not too soon after the last one."""
    delay_s = 0 if rule.kind in STATES else settings.AGENTOPS_ALERTS_S * FIRST_MESSAGE_DELAY
    due = min(finding.found_at for finding in findings) + timedelta(seconds=delay_s)
    return due if alert.announced_at is None else max(due, alert.announced_at + _window(rule))


def _quiet_since(alert: Alert) -> datetime:
    """Return the time of the last finding or message of an alert."""
    return max(alert.last_seen_at, alert.announced_at or alert.last_seen_at)


def _window(rule: AlertRule) -> timedelta:
    """Return the minimum time between two messages about an alert."""
    return timedelta(minutes=rule.group_minutes)
