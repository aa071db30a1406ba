"""Tool calls without a result: planned with the answer, and marked running before the tool runs.

Also queries for the calls that a person must settle: the call that asks a question, and calls of unknown outcome.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Case, OuterRef, QuerySet, When
from pydantic_ai.messages import ToolCallPart
from uuid_utils.compat import uuid7

from agentops.base import database_clock
from agentops.base.redaction.json_values import clean_all
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation import writes
from runs.conversation.transcript import SHORT_PREVIEW
from runs.conversation.writes import Commit
from runs.models import AgentRunMessage, AgentRunToolCall
from runs.providers import messages
from runs.statuses import ToolStatus
from runs.tools.base import Effect
from timeline.display import preview
from timeline.events.tool import ToolStart
from timeline.log import Entry


def planned_call(message: AgentRunMessage, part: ToolCallPart, *, effect: Effect | None) -> AgentRunToolCall:
    """Return the unsaved row of a call that an answer requests. `effect` is None if the tool does not exist."""
    pk = uuid7()
    [(arguments, _)] = clean_all([as_object(part.args)], REDACTOR.fixed())
    return AgentRunToolCall(
        id=pk,
        run_id=message.run_id,
        message_id=message.id,
        call_id=part.tool_call_id[:256],
        tool_name=part.tool_name[:256],
        input=arguments,
        effect=(effect or Effect.READ).value,
        idempotency_key=str(pk) if effect is Effect.IDEMPOTENT else None,
        step_number=message.step_number,
        created_at=message.created_at,
    )


def as_object(arguments: str | Mapping[str, Any] | None) -> Any:
    """Return the arguments as an object, or as their exact text if they are not a JSON object."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def start_call(call: AgentRunToolCall, *, attempt: int) -> Entry:
    """Mark `call` running in memory, and return the event to commit with its row. Attempts count from 0."""
    call.status = ToolStatus.RUNNING.value
    call.starts += 1
    call.started_at = database_clock.now()
    arguments, _ = preview(call.input if isinstance(call.input, str) else messages.canonical(call.input), SHORT_PREVIEW)
    payload = ToolStart(
        call_id=call.call_id, tool_name=call.tool_name, attempt=attempt or None, effect=call.effect, arguments=arguments
    )
    return Entry(payload, step=call.step_number, ref_id=call.id, clean=True)


def commit_start(call: AgentRunToolCall, entries: Sequence[Entry], epoch: int, *, expected_status: str) -> None:
    """Commit a call that `start_call` has marked running, with its changed arguments and these events.

    Raises `LeaseLost` if the run was taken over, and `MoveRefused` if the status of the row is not `expected_status`.
    """
    writes.write(start_of(call, entries, epoch, expected_status=expected_status))


def start_of(call: AgentRunToolCall, entries: Sequence[Entry], epoch: int, *, expected_status: str) -> Commit:
    """Return the commit of `commit_start`, which is still to be written."""
    return Commit(run_id=call.run_id, epoch=epoch, events=entries, started_call=call, expected_status=expected_status)


def asking_calls(run_id: UUID | OuterRef) -> QuerySet[AgentRunToolCall]:
    """Return the calls of a run that have not started. If the run waits for an answer, the first of them asks.

    It is the first because calls run one after the other. A remote run may ask before it executes other calls.
    """
    planned = AgentRunToolCall.objects.filter(run=run_id, status=ToolStatus.PLANNED, result_message=None)
    is_question = Case(When(remote_step__kind="question", then=0), default=1)
    return planned.order_by(is_question, "step_number", "id")


def unresolved_calls() -> QuerySet[AgentRunToolCall]:
    """Return the calls whose unknown outcome a person has to resolve. A call that is to run again is not included."""
    open_calls = AgentRunToolCall.objects.filter(status=ToolStatus.UNKNOWN, result_message=None)
    # A call that is to run again has no end.
    return open_calls.exclude(finished_at=None)
