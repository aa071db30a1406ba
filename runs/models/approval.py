"""The model of approvals."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from agentops.accounts.models import Project
from runs.models.run import AgentRun
from runs.models.tool_call import AgentRunToolCall


class Approval(models.Model):
    """A tool call that a person approves or denies. It is pending as long as its run waits for it."""

    class State(models.TextChoices):
        """The states of an approval. All except `pending` are final."""

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
