"""The models of a run's conversation: its messages, its tool calls with their approvals, and its inbox of commands."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from agentops.base.database.joined_json import JoinedJSONField
from runs.models.run import AgentRun, choices
from runs.statuses import Effect, ToolStatus


class AgentRunMessage(models.Model):
    """A message of a conversation: a ModelResponse, or a ModelRequest with one part, as pydantic-ai serialises it.

    Messages of a run have the positions 1 to n, including rolled-back messages. They are only deleted together with
    their run, and never changed, except for the last answer of an external run: some programs write its calls later.
    """

    class Role(models.TextChoices):
        """The role of a message."""

        SYSTEM = "system"
        USER = "user"
        ASSISTANT = "assistant"
        TOOL_RESULT = "tool_result"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="messages", db_index=False)
    position = models.PositiveIntegerField()
    role = models.CharField(max_length=11, choices=Role.choices)
    #: The step whose model call produced the message, or got it first. For tool results: the step of the tool call.
    step_number = models.PositiveIntegerField()
    #: The fencing token of the worker that wrote the message; null if no worker did.
    epoch = models.IntegerField(null=True)
    model = models.CharField(max_length=200, blank=True, default="")
    #: The digest of the canonical JSON of `content`.
    sha256 = models.BinaryField(max_length=32)
    rolled_back_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    # Last, because it may be large: SQLite reads a value to reach the columns after it.
    content = models.JSONField()

    class Meta:
        db_table = "agent_run_messages"
        constraints = [
            # Also serves transcript.load and the messages list.
            models.UniqueConstraint(fields=["run", "position"], name="message_position_once"),
            # One model response per step: invariant M2 of runs.upkeep.step_invariants.
            models.UniqueConstraint(
                fields=["run", "step_number"],
                condition=Q(role="assistant", rolled_back_at__isnull=True),
                name="message_one_answer_per_step",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.position} {self.role}"

    @property
    def usage(self) -> dict[str, Any]:
        """The token counts of an assistant message, as reported by the provider."""
        return dict(self.content.get("usage") or {})

    @property
    def finish_reason(self) -> str:
        """Why the model ended an answer, by the names of runs.providers.finish_reasons; empty if it is not known."""
        return str(self.content.get("finish_reason") or "")


_WHOLE_OUTPUT = {
    "postgresql": """COALESCE({row}.output, (SELECT m.content #> ARRAY['parts', '0', 'content']
        FROM agent_run_messages m WHERE m.id = {row}.result_message_id))""",
    "sqlite": """COALESCE({row}.output, (SELECT m.content -> '$.parts[0].content'
        FROM agent_run_messages m WHERE m.id = {row}.result_message_id))""",
}


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
    #: Passed to an idempotent tool at every attempt, so that the service that it calls recognises repeats.
    idempotency_key = models.CharField(max_length=128, null=True)
    #: How often workers have started the call. `attempts` also counts the retries within a start.
    starts = models.PositiveSmallIntegerField(default=0)
    attempts = models.PositiveSmallIntegerField(default=0)
    #: How long the tool ran, without any waiting before.
    duration_ms = models.PositiveIntegerField(null=True)
    step_number = models.PositiveIntegerField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    #: Null until the call ends. Null again if a person chose to repeat a call of unknown outcome.
    finished_at = models.DateTimeField(null=True)
    #: Who resolved an unknown outcome, and when. The status is then what that person reported.
    resolved_by = models.CharField(max_length=200, null=True)
    resolved_at = models.DateTimeField(null=True)
    # Without an index, and so not unique: otherwise finishing a call would not be a HOT update. Without a foreign key
    # constraint: otherwise the deletion of a message would search all calls of the site. Invariants check that the
    # message exists (M4), and that it is the result of one call only (M5).
    result_message = models.ForeignKey(
        AgentRunMessage, models.DO_NOTHING, null=True, related_name="+", db_index=False, db_constraint=False
    )
    child_run = models.ForeignKey(AgentRun, models.PROTECT, null=True, related_name="spawned_by", db_index=False)
    #: The size and the digest of an output above 256 KiB, see runs.conversation.long_outputs; null for shorter ones.
    output_bytes = models.PositiveBigIntegerField(null=True)
    output_sha256 = models.CharField(max_length=64, null=True)
    # Last, because they may be large: SQLite reads a value to reach the columns after it.
    #: The arguments: an object, or the text if it is not a JSON object.
    input = models.JSONField(null=True)
    #: The exact arguments for the tool if a hook or an approver changed those in the message. They may contain secrets.
    #: Null: unchanged.
    changed_arguments = models.JSONField(null=True)
    #: The complete output or the error. Null until the call ends. If the model got the same, the result message alone
    #: stores it, and queries read it from there.
    output = JoinedJSONField(null=True, sql=_WHOLE_OUTPUT)

    class Meta:
        db_table = "agent_run_tool_calls"
        indexes = [
            # The tool calls of a run in the order of their steps: the API's list and transcript.load.
            models.Index(fields=["run", "step_number"], name="tool_call_list"),
            # The call with an ID that an external runner reports.
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


class Approval(models.Model):
    """A request to a person to approve or deny a tool call. It is pending as long as its run waits for it."""

    class State(models.TextChoices):
        """The state of an approval. All except `pending` are final."""

        PENDING = "pending"
        APPROVED = "approved"
        DENIED = "denied"
        #: No decision was made in time.
        EXPIRED = "expired"
        #: The run was paused or stopped before a decision.
        CANCELLED = "cancelled"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    project = models.ForeignKey(Project, models.PROTECT, related_name="approvals", db_index=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="approvals", db_index=False)
    call = models.OneToOneField(AgentRunToolCall, models.PROTECT, related_name="approval")
    tool_name = models.CharField(max_length=256)
    #: The arguments that the call runs with, redacted: an object, or the text if it is not a JSON object.
    arguments = models.JSONField(null=True)
    #: The approver's changes, redacted: name → {"from": …, "to": …}. Null: unchanged.
    changes = models.JSONField(null=True)
    #: Why an approval is required, and by which rule or hook.
    reason = models.TextField(blank=True)
    requested_by = models.CharField(max_length=200)
    state = models.CharField(max_length=9, choices=State.choices, default=State.PENDING)
    #: Whether the approval applies to all later calls of the tool in this run; in a session, also to its sub-agents'
    #: calls.
    always = models.BooleanField(default=False)
    #: Whether the run pauses when the approval expires. Otherwise the call is denied.
    pauses_on_expiry = models.BooleanField(default=False)
    #: The approver's message to the model, for a denial.
    message = models.TextField(blank=True)
    decided_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True)
    #: The notification about the pending decision. It may be deleted before the run.
    notification_id = models.UUIDField(null=True)

    class Meta:
        db_table = "agent_run_approvals"
        indexes = [
            # The inbox, and the counter in the top bar.
            models.Index(fields=["project", "id"], name="approvals_pending", condition=Q(state="pending")),
            # The approvals of a run, and whether a tool is approved for the whole run.
            models.Index(fields=["run", "id"], name="approvals_of_run"),
            # The link of an e-mail.
            models.Index(
                fields=["notification_id"], name="approval_of_mail", condition=Q(notification_id__isnull=False)
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run"], condition=Q(state="pending"), name="approval_pending_once"),
            models.CheckConstraint(
                condition=Q(state="pending", decided_at=None) | (~Q(state="pending") & Q(decided_at__isnull=False)),
                name="approval_decided_with_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} of {self.run_id}: {self.state}"


class RunCommand(models.Model):
    """A command to a run. After it is stored, the worker that executes the run applies it once."""

    class Type(models.TextChoices):
        """The effect that a command demands."""

        PAUSE = "pause"
        STOP = "stop"
        SEND = "send"
        REPLY = "reply"
        #: A value that a durable function waits for.
        SIGNAL = "signal"

    class Outcome(models.TextChoices):
        """What became of a command."""

        #: The command took effect: the run was paused or stopped, or the message was added to its conversation.
        APPLIED = "applied"
        #: Another command, or the end of the run, came first.
        SUPERSEDED = "superseded"
        #: The run ended before the message was added to its conversation.
        REFUSED = "refused"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="commands", db_index=False)
    #: The idempotency key: a command with the same key is stored once.
    key = models.CharField(max_length=128, null=True)
    type = models.CharField(max_length=8, choices=Type.choices)
    payload = models.JSONField(default=dict)
    created_by = models.CharField(max_length=200)
    received_at = models.DateTimeField()
    #: The time of the outcome. Null while the command is pending.
    applied_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, null=True)

    class Meta:
        db_table = "agent_run_commands"
        indexes = [
            # inbox.pending, which a worker queries before each turn.
            models.Index(fields=["run", "id"], name="command_pending", condition=Q(applied_at__isnull=True)),
            # The deletion of a run, which also has to find commands that are not pending.
            models.Index(fields=["run"], name="command_of_run"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "key"], condition=Q(key__isnull=False), name="command_key_once"),
            models.CheckConstraint(
                condition=Q(applied_at__isnull=True, outcome__isnull=True)
                | Q(applied_at__isnull=False, outcome__isnull=False),
                name="command_ended_with_outcome",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} for {self.run_id}"
