"""The start of a tool call: planned together with the answer, and marked running before the tool runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from pydantic_ai.messages import ToolCallPart
from uuid_utils.compat import uuid7

from agentops.base import database_clock
from agentops.base.redaction.batch import clean_all
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from runs.conversation.message_text import SHORT_PREVIEW
from runs.errors import MoveRefused
from runs.models import AgentRunMessage, AgentRunToolCall
from runs.providers import messages
from runs.statuses import ToolStatus
from runs.tools.base import Effect
from timeline import log
from timeline.events.tool import ToolStart
from timeline.log import Entry
from timeline.models import Source
from timeline.preview import preview


def planned_call(message: AgentRunMessage, part: ToolCallPart, *, effect: Effect | None) -> AgentRunToolCall:
    """Return the unsaved row of a requested call. `effect` is None if the tool does not exist."""
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
    """Commit `running` (see `start_call`) before the tool runs, with the changed arguments if there are any.

    Raises `LeaseLost` if the run was taken over, and `MoveRefused` if the status of the row is not `expected_status`.
    """
    with transaction.atomic():
        # The append comes first, so that a worker that lost its lease gets LeaseLost and not MoveRefused.
        log.append(call.run_id, entries, source=Source.WORKER, epoch=epoch)
        rows = AgentRunToolCall.objects.filter(pk=call.pk, status=expected_status)
        columns = {"status": call.status, "starts": call.starts, "started_at": call.started_at}
        if call.changed_arguments is not None:
            columns["changed_arguments"] = call.changed_arguments
        if not rows.update(**columns):
            raise MoveRefused(f"call {call.pk} is not {expected_status} any more")
