"""Detects external runs whose runner is silent. The silence is recorded and displayed; it does not end the run."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction

from agentops.base import database_clock
from runs.agents.policies import Trigger
from runs.models import AgentRun, ExternalRun
from runs.models.querysets import CLAIMED_FROM
from runs.statuses import RunStatus
from timeline import log
from timeline.events.command import PolicyApplied
from timeline.log import Entry
from timeline.models import RunKind, Source

#: Runs that are recorded in one call.
BATCH = 100


def notice_silence() -> int:
    """Record each running external run whose runner has sent nothing for AGENTOPS_SILENCE_S; return their number.

    A run is recorded once, until its runner sends events again.
    """
    before = database_clock.now() - timedelta(seconds=settings.AGENTOPS_SILENCE_S)
    silent = AgentRun.objects.filter(
        source=AgentRun.Source.EXTERNAL,
        status=RunStatus.RUNNING,
        # Redundant, but needed for the planner to use the partial index `run_order`.
        status__in=CLAIMED_FROM,
        external__silent_since=None,
        log__last_event_at__lt=before,
    )
    return sum(_record(run_id, before) for run_id in silent.values_list("pk", flat=True)[:BATCH])


@transaction.atomic
def _record(run_id: UUID, before: datetime) -> bool:
    """Record the silence of a run. Return False if it has ended, or if a concurrent event or worker changed it."""
    rows = AgentRun.objects.select_for_update(no_key=True, of=("self",), skip_locked=True)
    run = rows.filter(pk=run_id, status=RunStatus.RUNNING).first()
    if run is None:
        return False
    since = log.last_event_at(run_id)
    is_new = since is not None and since < before
    if not is_new or not ExternalRun.objects.filter(run=run, silent_since=None).update(silent_since=since):
        return False
    event = PolicyApplied(trigger=Trigger.ON_IDLE, silent_since=since)
    log.append(run_id, [Entry(event)], source=Source.POLICY, run_kind=RunKind(run.run_kind))
    return True
