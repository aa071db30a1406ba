"""The models of schedules, and of the outcomes of their due times."""

from __future__ import annotations

from uuid import UUID

from django.db import models
from django.db.models import Q
from django_celery_beat.models import PeriodicTask
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database_clock import StampField


class Schedule(models.Model):
    """An agent or a flow that is started at due times. Only runs.actions.schedules writes it.

    The periodic task stores the due times, the time zone and whether the schedule is enabled. An admin may also edit
    them in the admin interface.
    """

    class Overlap(models.TextChoices):
        """What happens at a due time if an earlier run of the schedule has not ended."""

        SKIP = "skip"
        #: The start waits until the earlier runs have ended. At most one start waits.
        QUEUE = "queue"
        ALLOW = "allow"

    class CatchUp(models.TextChoices):
        """Which missed due times are started later."""

        NONE = "none"
        LAST = "last"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.CASCADE, related_name="schedules", db_index=False)
    name = models.CharField(max_length=63)
    periodic_task = models.OneToOneField(PeriodicTask, models.PROTECT, related_name="run_schedule")
    #: The name of the agent or of the flow; exactly one is set. These are no foreign keys: the schedule remains when
    #: its agent is deleted, and its starts fail until there is an agent of that name again.
    agent = models.CharField(max_length=63, blank=True)
    flow = models.CharField(max_length=63, blank=True)
    #: The prompt of an agent. Empty: use the prompt of the agent's recording.
    prompt = models.TextField(blank=True)
    #: The inputs of a flow.
    inputs = models.JSONField(default=dict)
    overlap = models.CharField(max_length=5, choices=Overlap.choices, default=Overlap.SKIP)
    catch_up = models.CharField(max_length=4, choices=CatchUp.choices, default=CatchUp.NONE)
    #: The time that intervals are counted from, so that due times only depend on the definition.
    anchor = models.DateTimeField()
    #: The timing to which `handled_until` applies (`state_of` in runs.actions.schedules.schedule_definition). If an
    #: admin changes it, or disables and enables the schedule, earlier due times are dropped.
    state = models.TextField()
    #: The time up to which due times are decided.
    handled_until = models.DateTimeField()
    #: The actor, in the form of the audit log.
    created_by = models.CharField(max_length=200)
    created_at = StampField(auto_now_add=True)
    updated_at = StampField(auto_now=True)

    class Meta:
        db_table = "schedules"
        constraints = [
            # Also lists the schedules of a project.
            models.UniqueConstraint(fields=["project", "name"], name="schedule_once"),
            models.CheckConstraint(
                condition=(Q(agent="") & ~Q(flow="")) | (~Q(agent="") & Q(flow="")), name="schedule_of_one"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def target(self) -> str:
        """The name of the agent or of the flow."""
        return self.agent or self.flow

    @property
    def is_enabled(self) -> bool:
        """Whether the schedule starts anything at due times."""
        return bool(self.periodic_task.enabled)


class ScheduleStart(models.Model):
    """The outcome of a due time, written in the transaction that starts its run."""

    class Outcome(models.TextChoices):
        """The decision."""

        STARTED = "started"
        #: It starts when the earlier runs of the schedule have ended.
        WAITING = "waiting"
        #: Not started because of the schedule's rule for overlaps.
        SKIPPED = "skipped"
        #: Not started because it was processed too late.
        MISSED = "missed"
        #: The run could not be created.
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="starts", db_index=False)
    #: Null if a person or a program started the run.
    due_at = models.DateTimeField(null=True)
    #: For missed due times, which share a row: the first one, and their number.
    first_due_at = models.DateTimeField(null=True)
    count = models.PositiveIntegerField(default=1)
    outcome = models.CharField(max_length=7, choices=Outcome.choices)
    #: Why it was not started: a code, and a sentence.
    reason = models.CharField(max_length=64, blank=True)
    detail = models.CharField(max_length=300, blank=True)
    #: The run or flow run. Not a foreign key, because retention may delete it before or after this row.
    run_id = models.UUIDField(null=True)
    flow_run_id = models.UUIDField(null=True)
    decided_at = models.DateTimeField()

    class Meta:
        db_table = "schedule_starts"
        indexes = [
            # The starts of a schedule, newest first: IDs are ordered by time.
            models.Index(fields=["schedule", "-id"], name="schedule_starts_newest"),
            # runs.upkeep.old_records: oldest first.
            models.Index(fields=["decided_at"], name="schedule_starts_oldest"),
        ]
        constraints = [
            # A due time starts one run.
            models.UniqueConstraint(fields=["schedule", "due_at"], name="schedule_start_once"),
            # At most one start waits. Also used to find it.
            models.UniqueConstraint(
                fields=["schedule"], condition=Q(outcome="waiting"), name="schedule_start_waits_once"
            ),
            models.CheckConstraint(
                condition=(Q(outcome="started") & (Q(run_id__isnull=False) | Q(flow_run_id__isnull=False)))
                | (~Q(outcome="started") & Q(run_id=None, flow_run_id=None)),
                name="schedule_start_has_run",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} {self.due_at}"

    @property
    def started_id(self) -> UUID | None:
        """The ID of the started run or flow run; None if none was started."""
        return self.run_id or self.flow_run_id
