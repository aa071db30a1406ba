"""The models of checkpoints, attempts, usage and errors."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from uuid_utils.compat import uuid7

from runs.models.run import AgentRun, CostSource
from runs.providers.price_tiers import MAX_TIER
from runs.statuses import DEATHS

#: Maximum characters of `TurnUsage.cost_note`.
MAX_COST_NOTE = 200


class Checkpoint(models.Model):
    """The state after a completed step, from which a run continues or is forked."""

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
    """The period in which one worker holds the lease of a run, identified by its epoch."""

    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="attempts", db_index=False)
    epoch = models.IntegerField()
    owner = models.CharField(max_length=128)
    #: The step when the worker claimed the run or, if it died, the step in which it died. Three deaths in one step
    #: pause the run.
    step_number = models.PositiveIntegerField()
    claimed_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    end_reason = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        db_table = "agent_run_attempts"
        constraints = [models.UniqueConstraint(fields=["run", "epoch"], name="attempt_once_per_epoch")]
        # For runs.lifecycle.suspects.waiting. Few attempts end with a death.
        indexes = [models.Index(fields=["run"], name="attempt_deaths", condition=Q(end_reason__in=DEATHS))]

    def __str__(self) -> str:
        return f"{self.run_id} epoch {self.epoch}"


class TurnUsage(models.Model):
    """The usage of one model call. Calls without a response are included, unless the provider rejected them."""

    class Outcome(models.TextChoices):
        """The outcome of the call. The provider bills all of them."""

        ANSWERED = "answered"
        #: The response was rolled back after a crash, and the call was repeated.
        ROLLED_BACK = "rolled_back"
        #: The attempt failed, was stopped or was released before the response was complete.
        ABANDONED = "abandoned"
        #: The worker was lost before the response was stored, and the call was repeated.
        LOST = "lost"
        #: Usage of a model that a program reported at the end of a turn, in addition to the calls known to the run.
        PROGRAM = "program"

    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="turn_usages", db_index=False)
    step_number = models.PositiveIntegerField()
    attempt = models.PositiveSmallIntegerField(default=0)
    model = models.CharField(max_length=200, blank=True, default="")
    #: The tier that changes the price: fast mode, batch, a service tier (runs.providers.price_tiers). Empty: standard.
    tier = models.CharField(max_length=MAX_TIER, blank=True, default="", db_default="")
    input_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    cache_read_tokens = models.BigIntegerField(default=0)
    cache_write_tokens = models.BigIntegerField(default=0)
    #: The part of `cache_write_tokens` that was written for one hour.
    cache_write_1h_tokens = models.BigIntegerField(default=0, db_default=0)
    reasoning_tokens = models.BigIntegerField(default=0)
    #: Null if unknown: the provider reported no cost, and the model has no price.
    cost_usd = models.DecimalField(max_digits=16, decimal_places=8, null=True)
    cost_source = models.CharField(
        max_length=8, choices=CostSource.choices, default=CostSource.UNKNOWN, db_default=CostSource.UNKNOWN
    )
    #: Why the cost is unknown; or where its price comes from, if not from the vendor that answered.
    cost_note = models.CharField(max_length=MAX_COST_NOTE, blank=True, default="", db_default="")
    #: The saving by the prompt cache: the cost without it, minus `cost_usd`.
    cache_saved_usd = models.DecimalField(max_digits=16, decimal_places=8, null=True)
    outcome = models.CharField(
        max_length=11, choices=Outcome.choices, default=Outcome.ANSWERED, db_default=Outcome.ANSWERED
    )
    #: False if the provider did not report all tokens. The counts are then lower bounds.
    usage_complete = models.BooleanField(default=True, db_default=True)
    duration_ms = models.PositiveIntegerField(null=True)
    #: The identity of an imported call in its project: see `ReportedCall`.
    call = models.UUIDField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_turn_usages"
        indexes = [
            models.Index(fields=["run", "step_number"], name="turn_usage_list"),
            models.Index(fields=["call"], name="turn_usage_call", condition=models.Q(call__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} step {self.step_number} attempt {self.attempt}"


class RunError(models.Model):
    """A failed attempt of a model call, a tool call or a step, an unusable answer, or a reached step limit."""

    run = models.ForeignKey(AgentRun, models.PROTECT, related_name="errors", db_index=False)
    step_number = models.PositiveIntegerField()
    #: The name of the tool, or a value of runs.lifecycle.causes. Other programs may send any text.
    context = models.CharField(max_length=300)
    #: The model's ID of the tool call; empty for other errors.
    call_id = models.CharField(max_length=300, blank=True, default="", db_default="")
    error_type = models.CharField(max_length=64)
    #: The problem and the remedy.
    message = models.TextField()
    #: The message of the vendor or its library.
    details = models.TextField(blank=True, default="")
    #: Counts from 0.
    attempt = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()

    class Meta:
        db_table = "agent_run_errors"
        indexes = [models.Index(fields=["run", "step_number"], name="run_error_list")]

    def __str__(self) -> str:
        return f"{self.run_id} {self.context} {self.error_type}"
