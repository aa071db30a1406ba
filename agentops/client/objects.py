"""The objects that the client returns. Fields that a newer site adds are kept as attributes."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

#: Statuses of runs that no longer change. The run `resumed_as` continues a `resumed` run.
ENDED = frozenset({"resumed", "completed", "failed", "stopped"})


class _Object(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)


class Run(_Object):
    """A run in a list."""

    id: UUID
    agent_id: str | None = None
    title: str = ""
    #: queued, running, waiting, paused, resumed, completed, failed or stopped.
    status: str
    #: Why the run waits, paused, failed or was stopped.
    status_reason: str = ""
    #: agent or project, if the run is queued because the limit of running runs of its agent or project is reached.
    waiting_for: str | None = None
    #: native, remote, external, import or otlp.
    source: str = "native"
    labels: list[str] = []
    parent_run_id: UUID | None = None
    root_run_id: UUID | None = None
    resumed_from: UUID | None = None
    step_count: int = 0
    max_steps: int | None = None
    #: Seconds.
    duration: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    #: US dollars; None if unknown.
    cost_usd: Decimal | None = None
    #: Number of model calls with unknown cost; above 0, `cost_usd` is a lower bound.
    unpriced_calls: int = 0
    #: Number of events in the run's log.
    last_seq: int = 0
    created_at: datetime
    started_at: datetime | None = None
    completed_at: datetime | None = None
    last_event_at: datetime | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether the run no longer changes."""
        return self.status in ENDED


class RunDetail(Run):
    """A run with all its details."""

    #: The version of the code that a remote run needs; None for other runs.
    code_version: int | None = None
    external_id: str | None = None
    summary: str = ""
    #: The first message of the user: a text, or a list of texts and media.
    prompt: Any = None
    result: str = ""
    structured_output: Any = None
    error_type: str = ""
    error_message: str = ""
    agent_config: dict[str, Any] = {}
    #: The run that continues this one.
    resumed_as: UUID | None = None
    #: When a waiting run continues automatically.
    not_before: datetime | None = None
    message_count: int = 0
    tool_call_count: int = 0
    error_count: int = 0
    child_count: int = 0
    #: Totals of this run and all its descendants: number of runs, tokens, and known cost in US dollars; None if no cost
    #: is known.
    total_runs: int = 1
    total_input_tokens: int = 0
    total_output_tokens: int = 0
    total_cost_usd: Decimal | None = None
    #: Number of these runs with unknown cost.
    total_unpriced_runs: int = 0
    #: Number of their model calls with unknown cost; above 0, the known cost is a lower bound.
    total_unpriced_calls: int = 0
    #: In the response to `resume`: whether the run had already been resumed.
    already_resumed: bool = False


class Message(_Object):
    """A message of the conversation of a run."""

    id: UUID
    #: From 1.
    position: int
    #: system, user, assistant or tool_result.
    role: str
    step_number: int
    model: str = ""
    usage: Any = None
    #: Of an answer: stop, tool_call, length (cut off), content_filter (refused) or error; None if it is not known.
    finish_reason: str | None = None
    rolled_back_at: datetime | None = None
    created_at: datetime
    #: The message as serialised by pydantic-ai. None in lists.
    content: dict[str, Any] | None = None


class ToolCall(_Object):
    """A tool call of a run."""

    id: UUID
    #: The model's ID of the call.
    call_id: str
    tool_name: str
    #: planned, running, completed, error, denied or unknown.
    status: str
    step_number: int
    child_run_id: UUID | None = None
    attempts: int = 0
    duration_ms: int | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    #: Of an output above 256 KiB: its size in UTF-8 bytes, and their SHA-256. Otherwise None.
    output_bytes: int | None = None
    output_sha256: str | None = None
    #: None in lists, as is `output`.
    input: Any = None
    output: Any = None


class Approval(_Object):
    """A request to a person or a program: approve a tool call, answer a question, or resolve an unknown outcome.

    The run waits until the request is decided, expires or is cancelled.
    """

    #: approval, question or unknown_outcome. The methods that decide it: `approve` and `deny`, `reply`, `resolve_call`.
    kind: str = "approval"
    #: The ID of the approval, or of the tool call.
    id: UUID
    run_id: UUID
    #: The `id` of the tool call.
    call_id: UUID
    tool_name: str
    #: The arguments of the call: an object, or the text if it is not a JSON object. Of a question: `question`,
    #: `choices`.
    arguments: Any = None
    #: pending, approved, denied, expired or cancelled.
    state: str
    #: Why the decision is needed, and the rule, tool or hook that requires it.
    reason: str = ""
    requested_by: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    decided_by: str = ""
    decided_at: datetime | None = None
    #: The approver's changes: argument → `from` and `to`.
    changes: dict[str, Any] | None = None
    #: Whether the approval also holds for all later calls of the tool in this run.
    always: bool = False
    #: The message to the model about a denial.
    message: str = ""


class Event(_Object):
    """An event of the log of a run. `seq` counts from 1 without a gap."""

    seq: int
    event_id: str | None = None
    run_id: UUID = Field(alias="runId")
    run_kind: str = Field("session", alias="runKind")
    #: queued, running, completed, failed or stopped.
    phase: str
    type: str
    ts: datetime
    step: int | None = None
    node_id: str | None = Field(None, alias="nodeId")
    payload: dict[str, Any] = {}
    source: str = ""


class SentCommand(_Object):
    """A message or another command that was recorded for a run."""

    id: UUID | None = None
    run_id: UUID
    run_status: str
    type: str
    #: applied, superseded or refused; None while it is pending.
    outcome: str | None = None
    received_at: datetime | None = None
    applied_at: datetime | None = None
