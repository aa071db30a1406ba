"""Rows of alerts. May import the product's models."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from agentops.accounts.models import Project
from runs.models import AgentRun, Alert, AlertDelivery, AlertFinding, AlertMessage, AlertMute, AlertRule


def fill_alerts(project: Project, run: AgentRun, number: int, text: str) -> None:
    """Create a rule with an alert, a finding, a message, a delivery and a mute. It is disabled, so it sends nothing."""
    now = timezone.now()
    rule = AlertRule.objects.create(
        project=project, name=f"{text[:40]} {number}", kind="run_failed", agent=text[:128], label=text[:200],
        is_enabled=False, checked_at=now, created_by=text[:200],
    )  # fmt: skip
    alert = Alert.objects.create(
        project=project, rule=rule, agent=text[:128], opened_at=now, last_seen_at=now, closed_at=now, count=1
    )
    message = AlertMessage.objects.create(
        project=project, rule=rule, alert=alert, event="opened", count=1, created_at=now
    )
    AlertFinding.objects.create(
        project=project, rule=rule, alert=alert, run=run, detail=text[:200], found_at=now, ended_at=now, message=message
    )
    AlertDelivery.objects.create(
        project=project, message=message, channel="slack", state="dead", attempts=9, error=text[:500], created_at=now
    )
    AlertMute.objects.create(project=project, rule=rule, until=now + timedelta(hours=1), created_by=text[:200])
