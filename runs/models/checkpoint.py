"""What a step leaves behind beside messages: checkpoints, attempts of workers, usage, errors."""

from __future__ import annotations

from django.db import models
from uuid_utils.compat import uuid7

from runs.models.run import AgentRun


class Checkpoint(models.Model):
    """The point after a finished step from which a run goes on, is rewound or forked."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="checkpoints", db_index=False)
    step_number = models.PositiveIntegerField()
    last_message_position = models.PositiveIntegerField()
    epoch = models.IntegerField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_checkpoints"
        constraints = [
            # Also serves the list of checkpoints of a run.
            models.UniqueConstraint(fields=["run", "step_number"], name="checkpoint_once_per_step"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} after step {self.step_number}"


class Attempt(models.Model):
    """One worker's hold of a run: from its claim to its release or death. Its number is the epoch."""

    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="attempts", db_index=False)
    epoch = models.IntegerField()
    owner = models.CharField(max_length=128)
    #: The step the run stood at when claimed, or in which the worker died: three deaths in one step are poison.
    step_number = models.PositiveIntegerField()
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    end_reason = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        db_table = "agent_run_attempts"
        constraints = [models.UniqueConstraint(fields=["run", "epoch"], name="attempt_once_per_epoch")]

    def __str__(self) -> str:
        return f"{self.run_id} epoch {self.epoch}"


class TurnUsage(models.Model):
    """What one model call used. A call that came to no answer has a row too, unless the provider refused it."""

    class Outcome(models.TextChoices):
        """What became of the call: the provider bills it in any case."""

        ANSWERED = "answered"
        #: The answer was taken back after a crash, and the model asked again.
        ROLLED_BACK = "rolled_back"
        #: The attempt failed, was stopped or handed back before its answer was complete.
        ABANDONED = "abandoned"
        #: Its worker was lost before an answer was stored, and the model asked again.
        LOST = "lost"

    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="turn_usages", db_index=False)
    step_number = models.PositiveIntegerField()
    attempt = models.PositiveSmallIntegerField(default=0)
    model = models.CharField(max_length=200, blank=True, default="")
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    #: Null where neither the provider nor a price list tells.
    cost_usd = models.DecimalField(max_digits=16, decimal_places=8, null=True)
    #: What the call would have cost without the provider's prompt cache, minus `cost_usd`.
    cache_saved_usd = models.DecimalField(max_digits=16, decimal_places=8, null=True)
    outcome = models.CharField(
        max_length=11, choices=Outcome.choices, default=Outcome.ANSWERED, db_default=Outcome.ANSWERED
    )
    #: False where the provider did not report all that it counted: the tokens are those known, none or some.
    usage_complete = models.BooleanField(default=True, db_default=True)
    duration_ms = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_turn_usages"
        indexes = [models.Index(fields=["run", "step_number"], name="turn_usage_list")]

    def __str__(self) -> str:
        return f"{self.run_id} step {self.step_number} attempt {self.attempt}"


class RunError(models.Model):
    """One failed attempt of a model call, a tool or a step; `attempt` counts from 0."""

    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="errors", db_index=False)
    step_number = models.PositiveIntegerField()
    #: "llm", "tool:<call id>" or "step".
    context = models.CharField(max_length=300)
    error_type = models.CharField(max_length=64)
    #: For people: what is wrong and what to do.
    message = models.TextField()
    #: What the vendor or its library said.
    details = models.TextField(blank=True, default="")
    attempt = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_errors"
        indexes = [models.Index(fields=["run", "step_number"], name="run_error_list")]

    def __str__(self) -> str:
        return f"{self.run_id} {self.context} {self.error_type}"
