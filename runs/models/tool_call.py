"""The model of tool calls."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from runs.models.message import AgentRunMessage
from runs.models.run import AgentRun, choices
from runs.statuses import Effect, ToolStatus


class AgentRunToolCall(models.Model):
    """A tool call of a model response, with its status and output."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="tool_calls", db_index=False)
    #: The assistant message that contains the call.
    message = models.ForeignKey(AgentRunMessage, models.PROTECT, related_name="tool_calls", db_index=False)
    call_id = models.CharField(max_length=256)
    tool_name = models.CharField(max_length=256)
    status = models.CharField(max_length=9, choices=choices(ToolStatus), default=ToolStatus.PLANNED.value)
    effect = models.CharField(max_length=12, choices=choices(Effect), default=Effect.AT_MOST_ONCE.value)
    #: Passed to an idempotent tool on every attempt, so that the called service recognises repeats.
    idempotency_key = models.CharField(max_length=128, null=True)
    #: The number of starts, over all workers. `attempts` also counts the retries within a start.
    starts = models.PositiveSmallIntegerField(default=0)
    attempts = models.PositiveSmallIntegerField(default=0)
    #: The duration of the tool, without the model and without waiting.
    duration_ms = models.PositiveIntegerField(null=True)
    step_number = models.PositiveIntegerField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    #: For a call of unknown outcome, null means that a person chose to run it again.
    finished_at = models.DateTimeField(null=True)
    #: The person who resolved an unknown outcome, and the time. The status was then reported, not observed.
    resolved_by = models.CharField(max_length=200, null=True)
    resolved_at = models.DateTimeField(null=True)
    # No index, and therefore not unique: with an index, finishing a call would not be a HOT update. No constraint
    # either: each message that retention deletes would be looked for among all calls of the site.
    # Invariants check that the message exists (M4), and that it is the result of one call only (M5).
    result_message = models.ForeignKey(
        AgentRunMessage, models.DO_NOTHING, null=True, related_name="+", db_index=False, db_constraint=False
    )
    child_run = models.ForeignKey(AgentRun, models.PROTECT, null=True, related_name="spawned_by", db_index=False)
    #: The bytes of an output above 256 KiB: see runs.conversation.long_outputs. Null for others.
    output_bytes = models.PositiveBigIntegerField(null=True)
    output_sha256 = models.CharField(max_length=64, null=True)
    # Last, because they may be large: SQLite reads a value to reach the columns after it.
    #: The arguments: an object, or the text if it is not a JSON object.
    input = models.JSONField(null=True)
    #: The exact arguments for the tool if a hook or an approver changed those in the message. They may contain secrets.
    #: Null: unchanged.
    changed_arguments = models.JSONField(null=True)
    #: The complete output or the error. Null until the call ends.
    output = models.JSONField(null=True)

    class Meta:
        db_table = "agent_run_tool_calls"
        indexes = [
            # The tool calls of a run in the order of their steps: the API's list and transcript.load.
            models.Index(fields=["run", "step_number"], name="tool_call_list"),
            # The call that an external runner names by its ID.
            models.Index(fields=["run", "call_id"], name="tool_call_by_call_id"),
            # The call that started a child run, for the link from the child's page to its parent.
            models.Index(fields=["child_run"], name="tool_call_of_child", condition=Q(child_run__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["message", "call_id"], name="tool_call_once"),
            # Invariant T2a. Most calls have no idempotency key.
            models.UniqueConstraint(
                fields=["idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="tool_call_idempotency_key_once",
            ),
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in ToolStatus]), name="tool_call_status_known"
            ),
            # Invariant T4: the starts are consistent with the status.
            models.CheckConstraint(
                condition=~Q(status="planned", starts__gt=0) & ~Q(status__in=["running", "completed"], starts=0),
                name="tool_call_started_before_running",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.call_id}"
