"""The releases that a process asks for: completed, failed, paused, stopped, or back to the queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from pydantic_ai.messages import ModelResponse

from agentops.accounts.models import Project
from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict, Invalid
from runs.agents.output_schema import InvalidOutput, parse_output, schema_of
from runs.agents.policies import Trigger, kind_of
from runs.conversation import transcript
from runs.engine import ending, policy_occasions
from runs.engine.policy_acts import Occasion
from runs.engine.releases import DecideAgain
from runs.lifecycle import causes, inbox
from runs.models import AgentRunMessage
from runs.providers import messages
from runs.remote import holds
from runs.remote.bodies import ReleaseBody
from runs.remote.holds import RemoteHold

Type = inbox.Type
WORKER_ENDING = "worker_ending"


def release(project: Project, run_id: UUID, body: ReleaseBody, *, is_packaged: bool = False) -> Mapping[str, str]:
    """Release a run, and return its status and the reason. A pending stop or pause comes first.

    Raises `LeaseLost`, `RunNotFound`, and `Conflict` with the codes `messages_pending` and `no_such_command`.
    `is_packaged`: see `holds.lock`.
    """
    with transaction.atomic():
        hold = holds.lock(project, run_id, body.epoch, is_packaged=is_packaged)
        if not holds.follow_commands(hold):
            _release(hold, body)
        return holds.facts_of_release(hold.run)


def _release(hold: RemoteHold, body: ReleaseBody) -> None:
    match body.to:
        case "completed":
            _complete(hold, body)
        case "failed":
            _fail(hold, body)
        case "queued":
            ending.hand_back(hold, body.reason or WORKER_ENDING)
        case "paused" if body.error is not None:
            error = body.error
            ending.pause_error(hold, error.type, error.message, details=error.details, context=causes.STEP)
        case _:
            raise Conflict(f"no command demands that the run is {body.to}", code="no_such_command")


def _complete(hold: RemoteHold, body: ReleaseBody) -> None:
    """Complete the run, or pause it if its result does not match the agent's output schema."""
    result, _ = REDACTOR.clean_text(_text(body.result))
    options: dict[str, Any] = {}
    schema = schema_of(hold.config.get("settings") or {})
    if schema is not None:
        try:
            value = parse_output(result if body.structured_output is None else body.structured_output, schema)
        except InvalidOutput as error:
            text = f"The result does not match the agent's output schema: {error}."
            ending.pause_error(hold, error.code, text, context=causes.LLM_COMPLETE)
            return
        options["structured_output"] = REDACTOR.clean(value)[0]
    elif body.structured_output is not None:
        options["structured_output"] = REDACTOR.clean(body.structured_output)[0]
    unless = ending.STOP_OR_PAUSE if body.ignores_messages else ending.STOP_OR_MESSAGE
    summary, _ = REDACTOR.clean_text(body.summary)
    complete = partial(ending.complete_with, hold, result, summary, unless=unless, **options)
    occasion = None if hold.pending & unless else _occasion_of_result(hold, result)
    try:
        if occasion is None:
            complete()
        elif not holds.apply_policy(hold, occasion, complete=complete):
            policy_occasions.pause_after_answer(hold, occasion)
    except DecideAgain:
        raise Conflict("messages arrived: receive them, and go on", code="messages_pending") from None


def _occasion_of_result(hold: RemoteHold, result: str) -> Occasion | None:
    """Return the occasion of a result that is the text of an answer which was cut off or refused; else None.

    Other results are left to the program. So are answers of an earlier run: to resume that run was to accept them.
    """
    last = AgentRunMessage.objects.filter(run=hold.run).order_by("position").last()
    if last is None or last.step_number != hold.run.step_count or hold.run.step_count == hold.run.step_base:
        return None
    if last.role != AgentRunMessage.Role.ASSISTANT or transcript.text_of(last.content).strip() != result.strip():
        return None
    answer = messages.load(last.content)
    assert isinstance(answer, ModelResponse)
    return policy_occasions.of_answer(answer)


def _text(result: Any) -> str:
    """Return a result as text: JSON for other values than text."""
    if result is None or isinstance(result, str):
        return result or ""
    return json.dumps(result, ensure_ascii=False, indent=2)


def _fail(hold: RemoteHold, body: ReleaseBody) -> None:
    """Apply the agent's rule for errors. Without one, the run pauses, so that a person can resume it."""
    error = body.error
    if error is None:
        raise Invalid("a failed run needs an error", code="error_missing", pointer="/error")
    occasion = Occasion(Trigger.ON_ERROR, error.type, error.message, error.message, kind_of(error.type))
    if not holds.apply_policy(hold, occasion):
        ending.pause_error(hold, error.type, error.message, details=error.details, context=causes.STEP)
