"""Sinks and webhooks whose receivers do not take what waits for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from django.db.models import Q

from agentops.projects.names import one_line
from runs.alerts.condition import Condition, of_kind
from runs.models import AlertRule, Sink
from runs.queries.sink_health import has_backlog, lag_s, with_health, with_unread


def sinks_behind(rules: Sequence[AlertRule], now: datetime) -> Iterator[Condition]:
    """Find sinks whose oldest event has waited for too long, and those that were disabled after an error.

    One query. A sink that a person has disabled, and those of the whole site, are not found.
    """
    rules = of_kind(rules, AlertRule.Kind.SINK_BEHIND)
    if not rules:
        return
    meant = Sink.objects.filter(Q(is_enabled=True) | ~Q(disabled_reason=""), project__exports_telemetry=True)
    sinks = with_unread(with_health(meant.filter(project__in={rule.project_id for rule in rules})))
    # Events of other projects, which a disabled sink has not passed either, are no backlog.
    behind = [sink for sink in sinks if has_backlog(sink)]
    for rule in rules:
        for sink in behind:
            minutes = lag_s(sink, now) // 60
            if sink.project_id == rule.project_id and minutes >= (rule.minutes or 0):
                why = f": {sink.disabled_reason}" if sink.disabled_reason else ""
                detail = one_line(f"{sink.name}: the oldest event has waited {minutes} min{why}", 200)
                yield Condition(rule.pk, "", None, f"sink {sink.pk}", detail)
