"""Reads of runs, named for their use."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, cast
from uuid import UUID

from django.db import models
from django.db.models import Q
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce, Left, Now

from runs.statuses import LIVE, RunStatus

if TYPE_CHECKING:
    from runs.models import AgentRun  # noqa: F401 - the name in the class's bases

CLAIMED_FROM = (RunStatus.QUEUED, RunStatus.RUNNING)
#: The columns of a row in a list, and no more: frozen agents and prompts may be as large as they like.
LISTED = (
    *("project_id", "status", "status_reason", "run_kind", "source", "title"),
    *("resumed_from_id", "parent_run_id"),
    *("step_base", "step_count", "max_steps", "input_tokens", "output_tokens", "cost_usd", "cost_source"),
    *("created_at", "started_at", "completed_at", "log__last_event_at"),
)


class RunQuerySet(models.QuerySet["AgentRun"]):
    def runnable(self) -> RunQuerySet:
        """Runs that a worker may claim now, by the database's clock, in the order in which they are to be claimed.

        The longest queued comes first. A run whose lease ran out was queued before its worker took it, so it comes
        before all that have waited since; one that used up its slice is queued anew, behind the others. Served by the
        index `run_order`.
        """
        return self.filter(
            Q(status=RunStatus.QUEUED) | Q(status=RunStatus.RUNNING, lease_expires_at__lt=Now()),
            # Said again for the planner, in the words of the index.
            status__in=CLAIMED_FROM,
            source="native",
        ).order_by("queued_at")

    def waited_enough(self) -> RunQuerySet:
        """Waiting runs whose time has come, by the database's clock; served by the index `run_wait_end`."""
        return self.filter(status=RunStatus.WAITING, not_before__lte=Now(), source="native").order_by("not_before")

    def unended(self) -> RunQuerySet:
        """What resuming everything looks at: runs of ours that are paused, or still live."""
        return self.filter(Q(status=RunStatus.PAUSED) | Q(status__in=LIVE), source="native")

    def for_list(self) -> RunQuerySet:
        """With what a row of a list shows; `agent_name` is the agent's, or what a run says that others executed."""
        # The agent's row first: it spares the database to unpack the frozen copy.
        name = Coalesce("agent__slug", KT("agent_config__agent_id"), output_field=models.TextField())
        # Ours has at most 500 characters; a runner elsewhere may send more.
        return self.select_related("log").only(*LISTED).annotate(agent_name=name, summary_start=Left("summary", 500))

    def newest_first(self) -> RunQuerySet:
        """The order of lists; the index `run_list` has it for each project."""
        return self.order_by("-created_at", "-pk")

    def older_than(self, created_at: datetime, run_id: UUID) -> RunQuerySet:
        """Those after this place of the list."""
        # Said as a bound and an exception, not as an OR: so the index finds the first one without a search.
        return self.filter(created_at__lte=created_at).exclude(created_at=created_at, pk__gte=run_id)

    def newer_than(self, created_at: datetime, run_id: UUID) -> RunQuerySet:
        """Those before this place of the list."""
        return self.filter(created_at__gte=created_at).exclude(created_at=created_at, pk__lte=run_id)


_AllRuns = models.Manager.from_queryset(RunQuerySet)


class RunManager(_AllRuns["AgentRun"]):
    """The runs that there are. One that is being removed is hidden here, and so from every door at once."""

    def get_queryset(self) -> RunQuerySet:
        return cast("RunQuerySet", super().get_queryset().filter(removed_at=None))
