"""Tool calls: what the model asked for, whether it ran, and what came of it."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from runs.models.message import AgentRunMessage
from runs.models.run import AgentRun, choices
from runs.statuses import Effect, ToolStatus


class AgentRunToolCall(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="tool_calls", db_index=False)
    #: The assistant message that asked for it.
    message = models.ForeignKey(AgentRunMessage, models.PROTECT, related_name="tool_calls", db_index=False)
    call_id = models.CharField(max_length=256)
    tool_name = models.CharField(max_length=256)
    #: The arguments: an object, or the exact text where it is none.
    input = models.JSONField(null=True)
    #: What the tool returned, whole, or the error; null only while the call has not ended.
    output = models.JSONField(null=True)
    status = models.CharField(max_length=9, choices=choices(ToolStatus), default=ToolStatus.PLANNED.value)
    effect = models.CharField(max_length=12, choices=choices(Effect), default=Effect.AT_MOST_ONCE.value)
    #: Given to an idempotent tool on every attempt, so that the other side can tell a repeat.
    idempotency_key = models.CharField(max_length=128, null=True)
    #: How often `running` was committed, over all workers; `attempts` counts retries within one start too.
    starts = models.PositiveSmallIntegerField(default=0)
    attempts = models.PositiveSmallIntegerField(default=0)
    #: Wall clock of the tool alone, without the model and without waiting.
    duration_ms = models.PositiveIntegerField(null=True)
    step_number = models.PositiveIntegerField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    #: An unknown call that has no such time is one that somebody wants run again.
    finished_at = models.DateTimeField(null=True)
    #: Who declared what came of a call of unknown outcome, and when: its status was reported then, not observed.
    resolved_by = models.CharField(max_length=200, null=True)
    resolved_at = models.DateTimeField(null=True)
    # No index, and so no unique one: with one, finishing a call would write every index of the row again.
    # That it is the result of one call alone is INV-M5.
    result_message = models.ForeignKey(AgentRunMessage, models.PROTECT, null=True, related_name="+", db_index=False)
    child_run = models.ForeignKey(AgentRun, models.PROTECT, null=True, related_name="spawned_by", db_index=False)

    class Meta:
        db_table = "agent_run_tool_calls"
        indexes = [
            # The tool calls of a run in the order of their steps: the API's list and transcript.load.
            models.Index(fields=["run", "step_number"], name="tool_call_list"),
            # The call that spawned a run: the link from the child's page to its parent's.
            models.Index(fields=["child_run"], name="tool_call_of_child", condition=Q(child_run__isnull=False)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["message", "call_id"], name="tool_call_once"),
            # INV-T2, for the few that have a key.
            models.UniqueConstraint(
                fields=["idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="tool_call_idempotency_key_once",
            ),
            models.CheckConstraint(
                condition=Q(status__in=[s.value for s in ToolStatus]), name="tool_call_status_known"
            ),
            # INV-T3: an effect that may happen once is started once.
            models.CheckConstraint(
                condition=~Q(status="planned", starts__gt=0) & ~Q(status__in=["running", "completed"], starts=0),
                name="tool_call_started_before_running",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.call_id}"
