"""The queryset and manager of runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.db import models
from django.db.models import Count, OuterRef, Q, Subquery
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce, Left

from agentops.accounts.models import Project
from agentops.base.database_clock import Now
from runs.models.agent import Agent
from runs.statuses import LIVE, OnChildPause, RunStatus

if TYPE_CHECKING:
    from runs.models import AgentRun

#: The statuses of runs that a worker may claim. A running one must have an expired lease.
CLAIMED_FROM = (RunStatus.QUEUED, RunStatus.RUNNING)
#: The columns of a run in lists. Definitions and prompts are omitted, because they may be large.
LISTED = (
    *("project_id", "status", "status_reason", "run_kind", "source", "code_version", "is_packaged", "title", "labels"),
    *("resumed_from_id", "parent_run_id"),
    *("step_base", "step_count", "max_steps", "input_tokens", "output_tokens", "cost_usd", "cost_source"),
    "unpriced_calls",
    *("created_at", "started_at", "completed_at", "log__last_event_at"),
)


class RunQuerySet(models.QuerySet["AgentRun"]):
    """Queries on runs."""

    def native(self) -> RunQuerySet:
        """Return the runs that this site executes."""
        return self.filter(source="native")

    def recorded(self) -> RunQuerySet:
        """Return the runs that other programs execute: only their events are recorded here."""
        return self.exclude(source="native")

    def in_progress(self) -> RunQuerySet:
        """Return the native runs that are queued, running or waiting.

        Recorded runs are left out, because the site can neither stop them nor know whether they will ever end.
        """
        return self.native().filter(status__in=LIVE)

    def running(self) -> RunQuerySet:
        """Return the running runs, also those with an expired lease. Uses the index `run_places`."""
        return self.native().filter(status=RunStatus.RUNNING)

    def runnable(self) -> RunQuerySet:
        """Return the runs that a worker of this site may claim now, in the order of claiming.

        Runs whose agent or project has reached its limit of running runs are left out.
        """
        return self.claimable().of_workers().exclude(_is_without_place(self.model))

    def of_workers(self) -> RunQuerySet:
        """Return the runs that workers of this site execute."""
        return self.filter(Q(code_version=None) | Q(is_packaged=True))

    def with_code(self, agents: Mapping[str, Collection[int]]) -> RunQuerySet:
        """Leave out the runs of packages that workers cannot execute. `agents`: those that they have, with versions."""
        named = [Q(agent_config__agent_id=name, code_version__in=versions) for name, versions in agents.items()]
        return self.filter(reduce(or_, named, Q(is_packaged=False)))

    def remote(self) -> RunQuerySet:
        """Return the runs that processes elsewhere execute, under leases of this site."""
        return self.filter(code_version__isnull=False, is_packaged=False)

    def remotely_runnable(self) -> RunQuerySet:
        """Return the runs that a process elsewhere may claim now, in the order of claiming."""
        return self.claimable().remote().exclude(_is_without_place(self.model))

    def without_place(self) -> RunQuerySet:
        """Return the queued runs whose agent or project has reached its limit of running runs."""
        return self.native().filter(_is_without_place(self.model))

    def claimable(self) -> RunQuerySet:
        """Return the runs that may be claimed now, regardless of limits of running runs, ordered by `queued_at`.

        A run with an expired lease keeps its `queued_at`, and so comes before runs that were queued later. A run that
        has used up its time slice is queued again, behind the others. Uses the index `run_order`.
        """
        return self.filter(
            Q(status=RunStatus.QUEUED) | Q(status=RunStatus.RUNNING, lease_expires_at__lt=Now()),
            # Redundant, but without it the planner would not use the partial index.
            status__in=CLAIMED_FROM,
            source="native",
        ).order_by("queued_at")

    def due_waits(self) -> RunQuerySet:
        """Return the waiting runs whose `not_before` has passed, by the database's clock. Uses `run_wait_end`."""
        return self.filter(status=RunStatus.WAITING, not_before__lte=Now(), source="native").order_by("not_before")

    def unended(self) -> RunQuerySet:
        """Return the native runs that are paused or live."""
        return self.native().filter(Q(status=RunStatus.PAUSED) | Q(status__in=LIVE))

    def holding_parents(self) -> RunQuerySet:
        """Return the unended runs that their parents wait for. A paused run whose pause is a result is left out."""
        is_settled = Q(on_pause="") | Q(on_pause=OnChildPause.RETURN, status=RunStatus.PAUSED)
        return self.unended().exclude(is_settled)

    def being_recorded(self) -> RunQuerySet:
        """Return the recorded runs that have not ended. Uses the index `run_unended`."""
        return self.recorded().filter(completed_at=None)

    def silent_since(self, moment: datetime) -> RunQuerySet:
        """Return the recorded runs whose last event and last import arrived before `moment`.

        The time of arrival counts, because a file or a runner may report an end years ago.
        """
        return self.recorded().filter(_nothing_since(moment))

    def ended_before(self, moment: datetime) -> RunQuerySet:
        """Return the ended runs whose time of retention began before `moment`. Uses the index `run_retention`."""
        return self.filter(Q(source="native") | _nothing_since(moment), completed_at__lt=moment)

    def left_before(self, moment: datetime) -> RunQuerySet:
        """Return the recorded runs whose time of retention began before `moment` although they have not ended.

        The end of a run that its program reports may be in the future.
        """
        return self.silent_since(moment).filter(Q(completed_at=None) | Q(completed_at__gt=Now()))

    def for_list(self) -> RunQuerySet:
        """Load the columns `LISTED`, annotated with `agent_name` and `summary_start`."""
        # Reading the agent's row is cheaper than extracting the name from `agent_config`.
        name = Coalesce("agent__slug", KT("agent_config__agent_id"), output_field=models.TextField())
        # Summaries of external runs may be longer than 500 characters.
        return self.select_related("log").only(*LISTED).annotate(agent_name=name, summary_start=Left("summary", 500))

    def newest_first(self) -> RunQuerySet:
        """Order by creation, newest first. Within a project, uses the index `run_list`."""
        return self.order_by("-created_at", "-pk")

    def older_than(self, created_at: datetime, run_id: UUID) -> RunQuerySet:
        """Return the runs after this position in a list of the newest runs first."""
        # A range and an exclusion instead of an OR, so that the index is used.
        return self.filter(created_at__lte=created_at).exclude(created_at=created_at, pk__gte=run_id)

    def newer_than(self, created_at: datetime, run_id: UUID) -> RunQuerySet:
        """Return the runs before this position in a list of the newest runs first."""
        return self.filter(created_at__gte=created_at).exclude(created_at=created_at, pk__lte=run_id)


def _is_without_place(runs: type[AgentRun]) -> Q:
    """Return the condition for queued runs whose agent or project has reached its limit of running runs.

    The database determines these agents and projects once for the whole query.
    """
    running = RunQuerySet(runs).running().order_by()
    of_agent = running.filter(project=OuterRef("project"), agent=OuterRef("pk")).values("agent")
    of_project = running.filter(project=OuterRef("pk")).values("project")
    agents = Agent.objects.filter(max_running__isnull=False, max_running__lte=_number(of_agent))
    projects = Project.objects.filter(max_running__isnull=False, max_running__lte=_number(of_project))
    return Q(Q(agent__in=agents) | Q(project__in=projects), status=RunStatus.QUEUED)


def _number(grouped: Any) -> Subquery:
    """Return the number of rows in each group."""
    return Subquery(grouped.annotate(number=Count("pk")).values("number"))


def _nothing_since(moment: datetime) -> Q:
    """Return the condition for runs without an event or import since `moment`."""
    not_imported = Q(external__imported_at=None) | Q(external__imported_at__lt=moment)
    return Q(log__last_event_at__lt=moment) & not_imported


_AllRuns = models.Manager.from_queryset(RunQuerySet)


class RunManager(_AllRuns["AgentRun"]):
    """The default manager of runs. It hides runs that are being removed."""

    def get_queryset(self) -> RunQuerySet:
        return cast("RunQuerySet", super().get_queryset().filter(removed_at=None))
