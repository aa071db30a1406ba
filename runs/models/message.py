"""The model of messages: the conversation of a run."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from runs.models.run import AgentRun


class AgentRunMessage(models.Model):
    """A message of a conversation: a ModelResponse, or a ModelRequest with one part, as pydantic-ai serialises it.

    Positions are 1..n within the run, including rolled-back messages. Messages are never changed or deleted.
    """

    class Role(models.TextChoices):
        """The roles of messages."""

        SYSTEM = "system"
        USER = "user"
        ASSISTANT = "assistant"
        TOOL_RESULT = "tool_result"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="messages", db_index=False)
    position = models.PositiveIntegerField()
    role = models.CharField(max_length=11, choices=Role.choices)
    #: The step whose model call first receives or produces the message. For tool results, the step of the call.
    step_number = models.PositiveIntegerField()
    #: The epoch of the worker that wrote the message. Null if no worker did.
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
            # Invariant M2: one model response per step.
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
