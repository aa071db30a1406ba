"""Mutes: suppress messages about a rule, a run or an agent for a time. Alerts continue and are marked as muted.

The caller checks the permission (Action.OPERATE).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from agentops.accounts.audit import Actor, record
from agentops.accounts.models import Project
from agentops.accounts.names import one_line
from agentops.base import database_clock
from agentops.base.refusals import Invalid
from runs.alerts.alert_rule_changes import AlertAuditAction
from runs.alerts.rule_definition import MAX_AGENT
from runs.models import AgentRun, AlertMute, AlertRule

#: The longest mute in minutes: 90 days.
MAX_MINUTES = 90 * 24 * 60


def mute(
    project: Project,
    minutes: int,
    *,
    by: Actor,
    rule: AlertRule | None = None,
    run: AgentRun | None = None,
    agent: str = "",
) -> AlertMute | None:
    """Mute exactly one of a rule, a run or an agent from now on. With 0 minutes, end the mute. Returns the mute.

    Replaces an earlier mute of the same target. Raises `invalid_mute`.
    """
    what = _what(rule, run, agent)
    if not 0 <= minutes <= MAX_MINUTES:
        raise Invalid(f"minutes must be 0 to {MAX_MINUTES}", code="invalid_mute", pointer="/minutes")
    name = {"rule": str(rule) if rule else None, "run_id": str(run.pk) if run else None, "agent_id": agent or None}
    with transaction.atomic():
        Project.objects.locked(project)
        if not minutes:
            if AlertMute.objects.filter(project=project, **what).delete()[0]:
                record(by, AlertAuditAction.UNMUTED, project=project, after=name)
            return None
        until = database_clock.now() + timedelta(minutes=minutes)
        values = {"until": until, "created_by": by if isinstance(by, str) else by.actor}
        muted, _ = AlertMute.objects.update_or_create(project=project, **what, defaults=values)
        record(by, AlertAuditAction.MUTED, project=project, after={**name, "until": until})
    return muted


def active_mutes(project: Project, now: datetime) -> list[AlertMute]:
    """Return the active mutes, ordered by end time."""
    rows = AlertMute.objects.filter(project=project, until__gt=now).select_related("rule", "run")
    return list(rows.order_by("until"))


def _what(rule: AlertRule | None, run: AgentRun | None, agent: str) -> dict[str, Any]:
    if sum((rule is not None, run is not None, bool(agent))) != 1:
        raise Invalid("name exactly one of a rule, a run and an agent", code="invalid_mute", pointer="")
    if agent != one_line(agent, MAX_AGENT):
        raise Invalid(f"{agent[:64]!r} is not the name of an agent", code="invalid_mute", pointer="/agent_id")
    return {"rule": rule} if rule else {"run": run} if run else {"agent": agent}
