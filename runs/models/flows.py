"""The models of flows, their versions, their runs, and the visits of nodes. A flow run and its log have the same ID."""

from __future__ import annotations

from typing import cast

from django.db import models
from django.db.models import Case, Exists, F, OuterRef, Q, Subquery, When
from django.db.models.functions import Coalesce
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.accounts.names import SLUG
from agentops.base.database_clock import StampField
from runs.models.run import TERMINAL_VALUES, AgentRun
from runs.statuses import RunStatus
from timeline.models import Log


class Flow(models.Model):
    """The definition of a flow. A flow run copies it at its creation, so changes only affect later flow runs."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="flows", db_index=False)
    #: The `flow_id` of the API and of definitions.
    slug = models.CharField(max_length=63, validators=[SLUG])
    title = models.CharField(max_length=200, blank=True, default="")
    #: The validated definition (runs.flows.definition), without defaults.
    definition = models.JSONField(default=dict)
    version = models.PositiveIntegerField(default=1)
    created_at = StampField(auto_now_add=True)
    updated_at = StampField(auto_now=True)

    class Meta:
        db_table = "flows"
        # Also the index of a project's flows by name.
        constraints = [models.UniqueConstraint(fields=["project", "slug"], name="flow_slug_once")]

    def __str__(self) -> str:
        return self.slug


class FlowVersion(models.Model):
    """A version of a flow's definition, written in the transaction of the change and never changed again."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    flow = models.ForeignKey(Flow, models.CASCADE, related_name="versions", db_index=False)
    number = models.PositiveIntegerField()
    definition = models.JSONField()
    #: The parts that differ from the previous version, such as `nodes`.
    changed = models.JSONField(default=list)
    #: The actor, in the form of the audit log.
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "flow_versions"
        # Also the index of a flow's versions in order.
        constraints = [models.UniqueConstraint(fields=["flow", "number"], name="flow_version_once")]

    def __str__(self) -> str:
        return f"version {self.number} of {self.flow_id}"


# --- Flow runs ---

#: The statuses of a flow run. `resumed` is not among them, because a resumed flow run continues itself.
STATUSES = [status for status in RunStatus if status is not RunStatus.RESUMED]
#: The statuses in which a flow run can advance.
MOVING = [status.value for status in (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING)]
_ENDED = [value for value in TERMINAL_VALUES if value != RunStatus.RESUMED]


class FlowRunQuerySet(models.QuerySet["FlowRun"]):
    """Queries on flow runs."""

    def due(self) -> FlowRunQuerySet:
        """Return the flow runs that can advance: new and resumed ones, and those with a node whose run has ended."""
        ended = FlowVisit.objects.filter(flow_run=OuterRef("pk")).with_something_to_do()
        return self.filter(status__in=MOVING).filter(Q(is_due=True) | Exists(ended)).order_by("pk")

    def with_stuck_since(self) -> FlowRunQuerySet:
        """Return the flow runs in progress with `stuck_since`: since when they can advance (see `due`), or null."""
        runs_of_open_visits = AgentRun.objects.filter(
            root_run__flow_visit__flow_run=OuterRef("pk"), root_run__flow_visit__ended_at__isnull=True
        )
        ended = Q(completed_at__isnull=False) & ~Q(status=RunStatus.RESUMED)
        paused = Q(status=RunStatus.PAUSED, root_run__flow_visit__reentry__isnull=False)
        waiting = runs_of_open_visits.filter(ended | paused)
        since = waiting.annotate(since=Coalesce("completed_at", "log__last_event_at"))
        oldest = Subquery(since.order_by("since").values("since")[:1])
        moving = self.filter(status__in=MOVING)
        return moving.annotate(stuck_since=Case(When(is_due=True, then=F("log__last_event_at")), default=oldest))

    def newest_first(self) -> FlowRunQuerySet:
        """Order by ID, and so by creation, newest first. Within a project, uses the index `flow_run_list`."""
        return self.order_by("-pk")


_AllFlowRuns = models.Manager.from_queryset(FlowRunQuerySet)


class FlowRunManager(_AllFlowRuns["FlowRun"]):
    """The default manager of flow runs. It hides flow runs that are being removed."""

    def get_queryset(self) -> FlowRunQuerySet:
        return cast("FlowRunQuerySet", super().get_queryset().filter(removed_at=None))


class FlowRun(models.Model):
    """One execution of a flow."""

    log = models.OneToOneField(Log, models.PROTECT, primary_key=True, db_column="id", related_name="flow_run")
    project = models.ForeignKey(Project, models.PROTECT, related_name="flow_runs", db_index=False)
    flow = models.ForeignKey(Flow, models.SET_NULL, null=True, related_name="runs", db_index=False)
    #: The schedule that started it.
    schedule = models.ForeignKey("runs.Schedule", models.SET_NULL, null=True, related_name="flow_runs", db_index=False)
    #: The definition, and its version, at the creation of the run.
    definition = models.JSONField()
    flow_version = models.PositiveIntegerField()
    status = models.CharField(
        max_length=9, choices=[(s.value, s.value) for s in STATUSES], default=RunStatus.QUEUED.value
    )
    #: The machine-readable reason for waiting, pausing, failing or stopping.
    status_reason = models.CharField(max_length=64, blank=True, default="")
    #: The state of the flow run, a runs.flows.kernel.snapshot.Snapshot.
    snapshot = models.JSONField()
    #: The number of changes of the snapshot. A change is only stored if the snapshot was not changed since it was read.
    version = models.PositiveIntegerField(default=0)
    inputs = models.JSONField(default=dict)
    error_type = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    #: The agent run whose failure ended it. Null if no agent run failed: alerts and the inbox then name the flow run.
    failed_run_id = models.UUIDField(null=True)
    #: Whether it can advance for another reason than the end of an agent run.
    is_due = models.BooleanField(default=True)
    #: Number of attempts to advance it since its last change, see runs.flows.runner.
    advance_attempts = models.PositiveSmallIntegerField(default=0, db_default=0)
    created_by = models.CharField(max_length=200, blank=True, default="")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    #: When a person dismissed the failure, which is then not reported again.
    dismissed_at = models.DateTimeField(null=True)
    #: When its deletion began. The flow run is then hidden.
    removed_at = models.DateTimeField(null=True)

    objects = FlowRunManager()
    #: Includes flow runs that are being removed. For runs.upkeep only.
    with_removed = FlowRunQuerySet.as_manager()

    class Meta:
        db_table = "flow_runs"
        indexes = [
            # The list of a project, newest first.
            models.Index("project", F("log").desc(), name="flow_run_list"),
            # The newest runs of a flow.
            models.Index("flow", F("log").desc(), name="flow_run_of_flow"),
            # The runs of a schedule, newest first. Most flow runs have no schedule.
            models.Index("schedule", F("log").desc(), name="flow_run_of_schedule", condition=Q(schedule__isnull=False)),
            # FlowRunQuerySet.due, which every sweep queries.
            models.Index("log", name="flow_run_moving", condition=Q(status__in=MOVING)),
            # The flow runs that have not ended, by status: for metrics, the start page, and paused flow runs in
            # flow_needs.
            models.Index("project", "status", name="flow_run_unended", condition=Q(completed_at__isnull=True)),
            # runs.queries.flow_needs: flow runs that failed without a failed agent run, and are not dismissed.
            models.Index(
                fields=["project", "completed_at"],
                name="flow_run_failures",
                condition=Q(
                    status="failed", failed_run_id__isnull=True, dismissed_at__isnull=True, removed_at__isnull=True
                ),
            ),
            # runs.upkeep.retention: ended flow runs, oldest first.
            models.Index(
                fields=["project", "completed_at", "log"],
                name="flow_run_retention",
                condition=Q(completed_at__isnull=False, removed_at__isnull=True),
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=[s.value for s in STATUSES]), name="flow_run_status_known"),
            models.CheckConstraint(
                condition=Q(status__in=_ENDED, completed_at__isnull=False)
                | (~Q(status__in=_ENDED) & Q(completed_at__isnull=True)),
                name="flow_run_terminal_has_completed_at",
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)

    @property
    def state(self) -> RunStatus:
        """The status as a member of `RunStatus`."""
        return RunStatus(self.status)

    @property
    def name(self) -> str:
        """The title of its flow, or else the name of the flow; empty if the flow was deleted."""
        return "" if self.flow is None else self.flow.title or self.flow.slug

    @property
    def slug(self) -> str:
        """The name of its flow, from the definition."""
        return str(self.definition["flow_id"])


class FlowVisitQuerySet(models.QuerySet["FlowVisit"]):
    """Queries on visits."""

    def open(self) -> FlowVisitQuerySet:
        """Return the visits that have started and not ended. Uses the index `flow_visit_open`."""
        return self.filter(ended_at=None)

    def with_something_to_do(self) -> FlowVisitQuerySet:
        """Return the open visits whose last run has ended, or is paused and has to be resumed with the flow run."""
        runs = AgentRun.objects.filter(root_run=OuterRef("session"))
        ended = runs.filter(completed_at__isnull=False).exclude(status=RunStatus.RESUMED)
        paused = runs.filter(status=RunStatus.PAUSED)
        return self.open().filter(Exists(ended) | (Q(reentry__isnull=False) & Exists(paused)))


class FlowVisit(models.Model):
    """One execution of a node: one for each iteration of its loops, and for each item of a forEach."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    flow_run = models.ForeignKey(FlowRun, models.PROTECT, related_name="visits", db_index=False)
    #: Identifies the visit in its flow run (runs.flows.kernel.snapshot.Visit.key), so that it starts only once.
    key = models.CharField(max_length=100)
    node = models.CharField(max_length=64)
    kind = models.CharField(max_length=8)
    iteration = models.PositiveIntegerField(default=0)
    item = models.PositiveIntegerField(null=True)
    #: The value of the item.
    value = models.JSONField(null=True)
    output = models.JSONField(null=True)
    #: The values that the node has set in the state, by dotted path.
    state = models.JSONField(null=True)
    #: The first run of the visit, which others may continue. Null for constants, and for a forEach node as a whole.
    session = models.OneToOneField(AgentRun, models.PROTECT, null=True, related_name="flow_visit")
    #: The message with which its paused run has to be resumed, because the flow run was resumed; null otherwise.
    reentry = models.TextField(null=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    objects = FlowVisitQuerySet.as_manager()

    class Meta:
        db_table = "flow_visits"
        indexes = [
            # FlowVisitQuerySet.open, which every sweep queries.
            models.Index("flow_run", name="flow_visit_open", condition=Q(ended_at__isnull=True)),
        ]
        # Also the index of a flow run's visits.
        constraints = [models.UniqueConstraint(fields=["flow_run", "key"], name="flow_visit_once")]

    def __str__(self) -> str:
        return f"{self.flow_run_id} {self.key}"
