"""The journal of remote runs: what their processes stored of each step."""

from __future__ import annotations

from django.db import models
from uuid_utils.compat import uuid7

from runs.models.conversation import AgentRunToolCall
from runs.models.run import AgentRun


class RemoteStep(models.Model):
    """A step of a remote run. The process that claims the run next reads the outcomes, and executes the other steps.

    Except for model calls and messages, a step has a tool call, which is what people see of it. Its status decides
    about the step while there is no outcome.
    """

    class Kind(models.TextChoices):
        """What the step does."""

        STEP = "step"
        MODEL = "model"
        TOOL = "tool"
        APPROVAL = "approval"
        QUESTION = "question"
        SLEEP = "sleep"
        SIGNAL = "signal"
        CHILD = "child"
        MESSAGES = "messages"

    class State(models.TextChoices):
        """Whether the step has an outcome: `done` has a value, `failed` an error."""

        STARTED = "started"
        DONE = "done"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="remote_steps", db_index=False)
    #: The order in which the steps of the run were first started, from 1.
    position = models.PositiveIntegerField()
    #: The step's identity in the lineage, chosen by the process.
    key = models.CharField(max_length=200)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=7, choices=State.choices, default=State.STARTED)
    #: The step number of its message, for forks. 0 until a model call has its answer.
    step_number = models.PositiveIntegerField(default=0)
    #: The fencing token under which the step was last started.
    epoch = models.IntegerField()
    #: How often the step was started under earlier epochs.
    attempt = models.PositiveSmallIntegerField(default=0)
    call = models.OneToOneField(AgentRunToolCall, models.PROTECT, null=True, related_name="remote_step")
    #: The codec that only the process can decode the value with. Empty: the value is JSON.
    codec = models.CharField(max_length=63, blank=True, default="")
    #: The number of pieces that hold the value, if it is larger than `value` may be.
    pieces = models.PositiveSmallIntegerField(default=0)
    #: The error of a failed step: its `type` and `message`.
    error = models.JSONField(null=True)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    # Last, because it may be large: SQLite reads a value to reach the columns after it.
    #: The JSON text of the value; of a sealed one, the encoded text.
    value = models.TextField(null=True)

    class Meta:
        db_table = "agent_run_remote_steps"
        constraints = [
            # Also serves the journal of a run.
            models.UniqueConstraint(fields=["run", "position"], name="remote_step_position_once"),
            models.UniqueConstraint(fields=["run", "key"], name="remote_step_key_once"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.position} {self.name}"

    @property
    def is_final(self) -> bool:
        """Whether the step has its outcome."""
        return self.state != RemoteStep.State.STARTED


class RemoteStepPiece(models.Model):
    """A part of a value that is too large for one request."""

    step = models.ForeignKey(RemoteStep, models.PROTECT, related_name="value_pieces", db_index=False)
    #: The run of the step. Deletions and exports read the rows of a run.
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="+")
    index = models.PositiveSmallIntegerField()
    text = models.TextField()

    class Meta:
        db_table = "agent_run_remote_step_pieces"
        constraints = [models.UniqueConstraint(fields=["step", "index"], name="remote_step_piece_once")]

    def __str__(self) -> str:
        return f"piece {self.index} of {self.step_id}"
