"""The model of runs. The ID of a run is the ID of its log.

Only runs.lifecycle.transitions writes the status.
"""

from __future__ import annotations

from enum import StrEnum

from django.db import models
from django.db.models import F, Q

from agentops.accounts.models import Project
from runs.agents.placement import DEFAULT_PRIORITY, DEFAULT_QUEUE
from runs.models.agent import Agent
from runs.models.querysets import RunManager, RunQuerySet
from runs.statuses import STATUSES, TERMINAL, OnChildPause, RunStatus
from timeline.models import Log, RunKind
from timeline.reasons import ABANDONED


def choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    """Return the members of an enum as choices of a model field."""
    return [(member.value, member.value) for member in enum]


TERMINAL_VALUES = sorted(status.value for status in TERMINAL)
#: The source of remote runs for people and programs. The table has them as native runs with a version of their code.
REMOTE = "remote"


def source_name(source: str, code_version: int | None, *, is_packaged: bool) -> str:
    """Return the source of a run as people and programs see it."""
    return source if code_version is None or is_packaged else REMOTE


class CostSource(models.TextChoices):
    """The source of a cost."""

    #: Reported by the runner or the provider.
    REPORTED = "reported"
    #: Computed from the published prices.
    COMPUTED = "computed"
    #: Computed from the project's own prices.
    PROJECT = "project"
    UNKNOWN = "unknown"


class AgentRun(models.Model):
    """One execution of an agent."""

    class Source(models.TextChoices):
        """Who executes the run: agentops (native), or an external runner whose events are recorded."""

        NATIVE = "native"
        EXTERNAL = "external"
        IMPORT = "import"
        OTLP = "otlp"

    CostSource = CostSource
    #: All sources as people and programs see them.
    SOURCES = (Source.NATIVE.value, REMOTE, Source.EXTERNAL.value, Source.IMPORT.value, Source.OTLP.value)

    log = models.OneToOneField(Log, models.PROTECT, primary_key=True, db_column="id", related_name="run")
    project = models.ForeignKey(Project, models.PROTECT, related_name="runs", db_index=False)
    agent = models.ForeignKey(Agent, models.SET_NULL, null=True, related_name="runs")
    #: The definition of the agent at the creation of the run (Agent.frozen).
    agent_config = models.JSONField(default=dict)
    #: The first run of the lineage: the run itself unless it resumes another one. A fork begins a lineage.
    root_run = models.ForeignKey("self", models.PROTECT, related_name="lineage")
    parent_run = models.ForeignKey("self", models.PROTECT, null=True, related_name="children")
    #: What a pause means for the call of the parent that waits for this run. Empty: no call waits for this run.
    on_pause = models.CharField(max_length=6, choices=choices(OnChildPause), blank=True, default="", db_default="")
    resumed_from = models.OneToOneField("self", models.PROTECT, null=True, related_name="resumed_as")
    forked_from = models.ForeignKey("self", models.PROTECT, null=True, related_name="forks")
    #: The flow run whose node this run executes.
    flow_run = models.ForeignKey("runs.FlowRun", models.PROTECT, null=True, related_name="agent_runs", db_index=False)
    #: The schedule that started this run or the run that it continues. Null for the runs of a flow's nodes.
    schedule = models.ForeignKey("runs.Schedule", models.SET_NULL, null=True, related_name="runs", db_index=False)
    #: Whether the run resumes another one, but with a new conversation, without the messages of the earlier runs.
    starts_fresh = models.BooleanField(default=False)
    forked_at_step = models.PositiveIntegerField(null=True)
    status = models.CharField(max_length=9, choices=choices(RunStatus), default=RunStatus.QUEUED.value)
    #: The machine-readable reason for waiting, pausing, failing or stopping.
    status_reason = models.CharField(max_length=64, blank=True, default="")
    run_kind = models.CharField(max_length=8, choices=RunKind.choices, default=RunKind.SESSION)
    source = models.CharField(max_length=8, choices=Source.choices, default=Source.NATIVE)
    #: The version of the code that executes the run, if it is a durable function (runs.remote): in a process elsewhere,
    #: which uses HTTP, under a lease of this site, or in a worker. Null: the step loop of the workers executes the run.
    code_version = models.PositiveIntegerField(null=True)
    #: Whether workers of this site execute the durable function, which an installed package contains.
    is_packaged = models.BooleanField(default=False, db_default=False)
    #: The ID that an external runner gave the run; null for native runs.
    external_id = models.TextField(null=True)
    title = models.CharField(max_length=200, blank=True, default="")
    summary = models.TextField(blank=True, default="")
    #: The first user turn: a text, or a list of texts and media.
    prompt = models.JSONField(null=True)
    result = models.TextField(blank=True, default="")
    structured_output = models.JSONField(null=True)
    session_id = models.CharField(max_length=128, blank=True, default="")
    #: `step_base`: the number of steps in the lineage before this run. `step_count`: the number up to its last step.
    step_base = models.PositiveIntegerField(default=0)
    step_count = models.PositiveIntegerField(default=0)
    max_steps = models.PositiveIntegerField(default=50)
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    #: The part of `cache_write_tokens` that was written for one hour.
    cache_write_1h_tokens = models.BigIntegerField(default=0, db_default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    cost_usd = models.DecimalField(max_digits=16, decimal_places=8, null=True)
    cost_source = models.CharField(max_length=8, choices=CostSource.choices, default=CostSource.UNKNOWN)
    #: Number of model calls whose unknown cost is not included in `cost_usd`, which is then a lower bound.
    unpriced_calls = models.PositiveIntegerField(default=0, db_default=0)
    error_type = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    #: The lease: its worker, its fencing token (the number of claims) and its expiry by the database's clock.
    lease_owner = models.CharField(max_length=128, null=True)
    lease_epoch = models.IntegerField(default=0)
    lease_expires_at = models.DateTimeField(null=True)
    #: The agent's queue, to which messages about the run are sent.
    queue = models.CharField(max_length=63, default=DEFAULT_QUEUE, db_default=DEFAULT_QUEUE)
    #: The priority of these messages: 0 comes first.
    priority = models.PositiveSmallIntegerField(default=DEFAULT_PRIORITY, db_default=DEFAULT_PRIORITY)
    #: When the sweep last sent a message for the queued run again, because the first message was lost.
    message_sent_at = models.DateTimeField(null=True)
    #: When a waiting run continues automatically.
    not_before = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    queued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    labels = models.JSONField(default=list, blank=True)
    #: When the run was put on hold, which exempts it from retention.
    held_at = models.DateTimeField(null=True)
    #: When its deletion began. The run is then hidden; its tombstone contains the reason.
    removed_at = models.DateTimeField(null=True)
    #: When a person dismissed the failure, or the silence of the runner, which is then not reported again.
    dismissed_at = models.DateTimeField(null=True)

    objects = RunManager()
    #: Includes runs that are being removed: for retention, and for imports, which must not create a run twice.
    with_removed = RunQuerySet.as_manager()

    class Meta:
        db_table = "agent_runs"
        indexes = [
            # The runs list of a project, newest first, also with a status filter.
            models.Index("project", F("created_at").desc(), F("log").desc(), name="run_list"),
            models.Index("project", "status", F("created_at").desc(), name="run_list_by_status"),
            # The list of remote runs.
            models.Index(
                F("project"),
                F("created_at").desc(),
                F("log").desc(),
                name="run_list_remote",
                condition=Q(code_version__isnull=False),
            ),
            # The newest runs of an agent.
            models.Index("agent", F("created_at").desc(), name="run_of_agent"),
            # The list of external runs. Nearly all runs are native; their list uses run_list.
            models.Index(
                F("project"),
                F("source"),
                F("created_at").desc(),
                F("log").desc(),
                name="run_list_by_source",
                condition=~Q(source="native"),
            ),
            # runs.queries.needs: failures that are not dismissed, without failures of children.
            models.Index(
                fields=["project", "completed_at"],
                name="run_failures",
                condition=Q(
                    status="failed", parent_run__isnull=True, dismissed_at__isnull=True, removed_at__isnull=True
                ),
            ),
            # The runs of a flow run's nodes. Most runs belong to no flow.
            models.Index("flow_run", name="run_of_flow_run", condition=Q(flow_run__isnull=False)),
            # The runs of a schedule, newest first. Most runs have no schedule.
            models.Index(
                "schedule", F("created_at").desc(), name="run_of_schedule", condition=Q(schedule__isnull=False)
            ),
            # runs.upkeep.retention: ended runs, oldest first.
            models.Index(
                fields=["project", "completed_at", "log"],
                name="run_retention",
                condition=Q(completed_at__isnull=False, removed_at__isnull=True),
            ),
            # RunQuerySet.runnable, which each free worker slot queries. Without a column that steps change, so that
            # steps remain HOT updates.
            models.Index("queued_at", name="run_order", condition=Q(status__in=["queued", "running"])),
            # RunQuerySet.running, by project and agent: for claims of runs with a limit, and for the sweep.
            models.Index("project", "agent", name="run_places", condition=Q(status="running", source="native")),
            # runs.lifecycle.places: the next run of a project that is below its limit again.
            models.Index(
                fields=["project", "priority", "queued_at"],
                name="run_for_place",
                condition=Q(status="queued", source="native"),
            ),
            # The number of unended runs by status, for the metrics.
            models.Index("status", name="run_unended", condition=Q(completed_at__isnull=True)),
            # RunQuerySet.due_waits, which the sweep queries.
            models.Index("not_before", name="run_wait_end", condition=Q(status="waiting", not_before__isnull=False)),
            # runs.lifecycle.children.continue_parents, which the sweep queries.
            models.Index("log", name="run_wait_for_children", condition=Q(status="waiting", status_reason="children")),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=[s.value for s in RunStatus]), name="run_status_known"),
            # Invariant R4a: a run has a completion time if and only if its status is terminal.
            models.CheckConstraint(
                condition=Q(status__in=TERMINAL_VALUES, completed_at__isnull=False)
                | (~Q(status__in=TERMINAL_VALUES) & Q(completed_at__isnull=True)),
                name="run_terminal_has_completed_at",
            ),
            # Invariant L1: a run has a lease if and only if it is running.
            models.CheckConstraint(
                condition=Q(source="native", status="running", lease_owner__isnull=False)
                | (Q(lease_owner__isnull=True) & ~Q(source="native", status="running")),
                name="run_lease_while_running",
            ),
            models.CheckConstraint(condition=Q(step_count__gte=F("step_base")), name="run_steps_grow"),
            # Also used to look up a run by its external ID.
            models.UniqueConstraint(
                fields=["project", "external_id"],
                condition=Q(external_id__isnull=False),
                name="run_external_id_once",
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)

    @property
    def state(self) -> RunStatus:
        """The status as a member of `RunStatus`."""
        return STATUSES[self.status]

    @property
    def is_recorded(self) -> bool:
        """Whether another program executes the run: only its events are recorded here."""
        return self.source != AgentRun.Source.NATIVE

    @property
    def is_remote(self) -> bool:
        """Whether a process elsewhere executes the run, under a lease of this site."""
        return self.is_durable and not self.is_packaged

    @property
    def is_durable(self) -> bool:
        """Whether a durable function executes the run, in a process elsewhere or in a worker."""
        return self.code_version is not None

    @property
    def source_name(self) -> str:
        """The source as people and programs see it: `remote` for remote runs."""
        return source_name(self.source, self.code_version, is_packaged=self.is_packaged)

    @property
    def is_abandoned(self) -> bool:
        """Whether a recorded run was ended because its program sent nothing for days. The next event reopens it."""
        return self.is_recorded and self.state is RunStatus.STOPPED and self.status_reason == ABANDONED

    @property
    def is_final(self) -> bool:
        """Whether the run has ended, and later events are only added to its log."""
        return self.state.terminal and not self.is_abandoned

    def step_limit(self, cap: int) -> int:
        """Return the number of the last allowed step, counted over the lineage. `cap`: the limit of the lineage."""
        return min(self.step_base + self.max_steps, cap)
