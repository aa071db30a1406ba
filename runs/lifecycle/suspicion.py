"""Isolate runs that may crash their workers. The stored attempts of a run decide, at the claim, how it is tried.

They record how many workers have died in the run's current step:

- No death: the run is claimed normally. A committed step clears a run, because the next step has no attempts yet.
- One death: the run may share a worker with other runs, but each worker tries only one such run at a time, so that a
  second death identifies the run.
- Further deaths: the run is tried alone in a separate process, after a growing pause. Only deaths there count against
  the run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Count, F, OuterRef, Subquery
from django.db.models.functions import Coalesce

from agentops.base.database_clock import Now
from runs.models import AgentRun, Attempt
from runs.statuses import DEATHS, RunStatus

#: Number of deaths in one step from which a run is tried in a separate process.
ALONE_FROM = 2
#: Separates the name of a worker from the number of a process that it starts for a single run.
CHILD_SEPARATOR = "."
#: How long a suspected run that has not finished a step keeps its worker from trying another suspected run, as a
#: fraction of a lease. A run that crashes workers does so early, because the tool that a dead worker had started is
#: started again first.
TRIAL = 0.5


class Suspected(Exception):
    """Workers have died in the run's current step, so this owner may not claim it now.

    `lapsed`: the run is still `running`, but its lease has expired.
    """

    def __init__(self, run_id: UUID, deaths: int, *, lapsed: bool) -> None:
        super().__init__(f"{deaths} workers have died in the current step of run {run_id}")
        self.run_id, self.deaths, self.lapsed = run_id, deaths, lapsed

    @property
    def is_alone(self) -> bool:
        """Whether the run must be tried in a separate process."""
        return self.deaths >= ALONE_FROM


def deaths_in_step() -> Any:
    """Return the SQL expression for the number of workers that have died in the current step of a run.

    The holder of a lease that has expired, but was not taken over, is not included. A run that continues another run
    inherits the deaths in its step.
    """
    died = (
        Attempt.objects.filter(
            run__root_run=OuterRef("root_run"),
            step_number=OuterRef("step_count") + 1,
            end_reason__in=DEATHS,
            ended_at__isnull=False,
        )
        .order_by()
        .values("run__root_run")
        .annotate(number=Count("pk"))
        .values("number")
    )
    return Coalesce(Subquery(died), 0)


def check(run_id: UUID, owner: str, deaths: int, *, lapsed: bool) -> None:
    """Raise `Suspected` if `owner` may not claim a run, given the number of workers that have died in its step."""
    if deaths >= ALONE_FROM:
        is_refused = CHILD_SEPARATOR not in owner.rpartition(":")[2]
    else:
        is_refused = deaths > 0 and has_trial(owner)
    if is_refused:
        raise Suspected(run_id, deaths, lapsed=lapsed)


def has_trial(owner: str) -> bool:
    """Whether a worker holds a suspected run that has not finished a step yet."""
    since = Now() - timedelta(seconds=settings.AGENTOPS_LEASE_S * TRIAL)
    held = AgentRun.objects.filter(status=RunStatus.RUNNING, lease_owner=owner)
    suspects = held.annotate(died=deaths_in_step()).filter(died__gt=0)
    return suspects.filter(
        attempts__epoch=F("lease_epoch"), attempts__step_number=F("step_count") + 1, attempts__claimed_at__gt=since
    ).exists()
