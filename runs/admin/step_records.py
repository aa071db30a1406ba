"""Administration of checkpoints, attempts, usage, errors and commands, read-only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Substr

from agentops.admin_base import cells
from agentops.admin_base.filters import choice_filter, yes_filter
from agentops.base import database_clock
from runs.admin.of_run import OF_RUN, RowsOfRunsAdmin, run_cell
from runs.conversation.writes import TOKENS
from runs.models import AgentRun, Attempt, Checkpoint, CliSession, RunCommand, RunError, TurnUsage
from runs.statuses import LOST
from timeline.reasons import reason_label

#: Maximum clock difference between machines: an ID holds the time of the machine that made it.
SKEW = timedelta(hours=2)
#: Maximum characters of an error message in a list.
HEAD = 400


@admin.register(Checkpoint)
class CheckpointAdmin(RowsOfRunsAdmin):
    """Checkpoints."""

    key = ("run_id", "step_number")
    id_fields = ("run_id", "id")
    search_help_text = "Search by run ID or checkpoint ID, or a prefix of it."
    list_display = (
        cells.computed("checkpoint", "checkpoint", lambda row: f"after step {row.step_number}"),
        run_cell(),
        cells.plain("last_message_position", "up to message"),
        cells.plain("epoch"),
        cells.moment("created_at", "created"),
    )
    list_filter = OF_RUN
    facts = ((None, (*list_display, cells.plain("id", "ID"))),)

    def name_of(self, obj: Checkpoint) -> str:
        return f"Checkpoint after step {obj.step_number} of run {obj.run_id}"


@admin.register(Attempt)
class AttemptAdmin(RowsOfRunsAdmin):
    """Attempts: the epochs in which workers held a run."""

    key = ("run_id", "epoch")
    id_fields = ("run_id",)
    text_fields = ("owner",)
    search_help_text = "Search by run ID or prefix of it, or by part of the worker name."
    list_display = (
        cells.computed("attempt", "attempt", lambda row: f"epoch {row.epoch}"),
        run_cell(),
        cells.words("owner", "worker", limit=80),
        cells.plain("step_number", "step"),
        cells.reason("end_reason", "end reason"),
        cells.moment("claimed_at", "claimed"),
        cells.moment("ended_at", "ended"),
    )
    list_filter = (
        *OF_RUN,
        yes_filter("ended", "ended_at"),
        choice_filter("end", LOST, field="end_reason", label=reason_label),
    )
    facts = ((None, list_display),)

    def name_of(self, obj: Attempt) -> str:
        return f"Epoch {obj.epoch} of run {obj.run_id}"


@admin.register(CliSession)
class CliSessionAdmin(RowsOfRunsAdmin):
    """Sessions of programs."""

    names = ("program session", "program sessions")
    key = ("run_id", "created_at", "id")
    id_fields = ("id", "run_id")
    search_help_text = "Search by session ID or run ID, or by a prefix of it."
    list_display = (
        cells.plain("id", "session"),
        run_cell(),
        cells.plain("resumed_id", "continues"),
        cells.plain("epoch", "epoch"),
        cells.moment("created_at", "begun"),
    )
    list_filter = OF_RUN
    facts = ((None, list_display),)

    def name_of(self, obj: CliSession) -> str:
        return f"Session {obj.pk} of run {obj.run_id}"


@admin.register(TurnUsage)
class TurnUsageAdmin(RowsOfRunsAdmin):
    """Tokens and cost of model calls."""

    names = ("model call usage", "model call usage")
    key = ("run_id", "step_number", "id")
    id_fields = ("run_id",)
    text_fields = ("model",)
    search_help_text = "Search by run ID or prefix of it, or by part of the model name."
    list_display = (
        cells.computed("usage", "call", lambda row: f"step {row.step_number}, attempt {row.attempt + 1}"),
        run_cell(),
        cells.words("model", limit=60),
        *(cells.plain(name, name.removesuffix("_tokens").replace("_", " ")) for name in TOKENS),
        cells.words("tier", limit=40),
        cells.cost(),
        cells.words("cost_note", "cost note", limit=200),
        cells.plain("outcome", "outcome"),
        cells.plain("duration_ms", "duration (ms)"),
        cells.moment("created_at", "time"),
    )
    list_filter = (
        *OF_RUN,
        yes_filter("priced", "cost_usd"),
        choice_filter("outcome", TurnUsage.Outcome.values, field="outcome"),
    )
    facts = ((None, list_display),)

    def name_of(self, obj: TurnUsage) -> str:
        return f"Step {obj.step_number}, attempt {obj.attempt + 1} of run {obj.run_id}"


@admin.register(RunError)
class RunErrorAdmin(RowsOfRunsAdmin):
    """Errors of runs."""

    names = ("error", "errors")
    key = ("run_id", "step_number", "id")
    id_fields = ("run_id",)
    text_fields = ("error_type", "context")
    loaded = ("run_id", "step_number", "context", "error_type", "attempt", "created_at")
    search_help_text = (
        "Search by run ID or prefix of it, or by part of the error type or context (a tool, llm_stream, max_turns)."
    )
    list_display = (
        cells.reason("error_type", "error"),
        run_cell(),
        cells.words("context", limit=60),
        cells.plain("step_number", "step"),
        cells.plain("attempt"),
        cells.words("head", "message"),
        cells.moment("created_at", "time"),
    )
    list_filter = OF_RUN
    facts = (
        (
            "Facts",
            (
                *list_display[:5],
                cells.words("context", "full context", limit=300),
                cells.words("call_id", "call", limit=300),
                list_display[6],
            ),
        ),
        ("Message", (cells.payload("message"), cells.payload("details"))),
    )

    def for_list(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Add the beginning of the message, which may be long."""
        listed: QuerySet[Any] = super().for_list(rows).annotate(head=Substr(F("message"), 1, HEAD))
        return listed

    def name_of(self, obj: RunError) -> str:
        return cells.line(f"{reason_label(obj.error_type).capitalize()} in step {obj.step_number} of run {obj.run_id}")


@admin.register(RunCommand)
class RunCommandAdmin(RowsOfRunsAdmin):
    """Commands. Applied commands have no index by run, so the run's lifetime bounds the range of IDs."""

    names = ("command", "commands")
    key = ("id",)
    id_fields = ("id", "run_id")
    text_fields = ("created_by",)
    loaded = ("run_id", "key", "type", "created_by", "received_at", "applied_at", "outcome")
    search_help_text = "Search by run ID or command ID or a prefix of it, or by part of the sender."
    list_display = (
        cells.plain("type", "command"),
        run_cell(),
        cells.words("created_by", "sent by"),
        cells.moment("received_at", "received"),
        cells.moment("applied_at", "applied"),
        cells.plain("outcome", "outcome"),
        cells.words("key", limit=60),
    )
    list_filter = (
        *OF_RUN,
        choice_filter("type", RunCommand.Type.values),
        choice_filter("outcome", RunCommand.Outcome.values),
    )
    facts = (("Facts", (*list_display, cells.plain("id", "ID"))), ("Payload", (cells.payload("payload"),)))

    def name_of(self, obj: RunCommand) -> str:
        return cells.line(f"{obj.type} for run {obj.run_id}")

    def of_runs(self, rows: QuerySet[Any], run_ids: list[UUID]) -> QuerySet[Any]:
        condition = Q()
        for run_id, created_at, completed_at in AgentRun.objects.filter(pk__in=run_ids).values_list(
            "pk", "created_at", "completed_at"
        ):
            first, end = _id_at(created_at, -SKEW), _id_at(completed_at or database_clock.now(), SKEW)
            condition |= Q(run=run_id, pk__gte=first, pk__lt=end)
        return rows.filter(condition) if condition else rows.none()


def _id_at(moment: datetime, shift: timedelta) -> UUID:
    """Return the lowest UUIDv7 of the millisecond of a shifted time. The time may be outside of the calendar."""
    return UUID(int=max(int((moment.timestamp() + shift.total_seconds()) * 1000), 0) << 80)
