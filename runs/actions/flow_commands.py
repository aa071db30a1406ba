"""Commands to flow runs: send, reply and resume. Each is recorded, and reaches only the run that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from pydantic import JsonValue

from agentops.accounts.audit import Actor, name_of
from agentops.accounts.names import UUID_PATTERN
from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.refusals import Invalid
from runs.actions import flow_run_actions
from runs.actions.flow_run_actions import locked, refuse_ended
from runs.errors import MessageEmpty
from runs.flows.definition.definition_problems import pointer_of
from runs.flows.kernel.flow_decisions import Decisions
from runs.flows.kernel.sizes import is_larger
from runs.lifecycle import flow_transitions, inbox
from runs.models import AgentRun, FlowRun
from runs.statuses import RunStatus
from timeline.events.command import CommandReceived
from timeline.log import Entry
from timeline.models import Source
from timeline.preview import PREVIEW_BYTES

MESSAGES = ("send", "reply")
TYPES = (*MESSAGES, "resume")
FIELDS = ("type", "runId", "message")


@dataclass(frozen=True)
class _Message:
    """A valid `send` or `reply`."""

    type: str
    run: AgentRun
    run_id: str
    text: str


def command(actor: Actor, flow_run: FlowRun, body: Mapping[str, Any]) -> FlowRun:
    """Carry out a command, `{"type", "runId", "message"}`, and record it if it is invalid. Not for use in a
    transaction.
    """
    with recording_refusals(actor, flow_run, body):
        return carry_out(actor, flow_run, body)


@contextmanager
def recording_refusals(actor: Actor, flow_run: FlowRun, body: Mapping[str, Any]) -> Iterator[None]:
    """Record an invalid command as `command.received` of the flow run, with its payload; then raise its error.

    Wraps the transaction of the command. The command is recorded after the rollback.
    """
    try:
        yield
    except Invalid as error:
        _record_refused(flow_run, body, by=name_of(actor), code=error.code)
        raise


def carry_out(actor: Actor, flow_run: FlowRun, body: Mapping[str, Any]) -> FlowRun:
    """Carry out a command. `resume` needs no runId. A message to a paused flow run waits in the snapshot.

    Raises `Invalid`, and `run_terminal` if the flow run has ended; nothing is written then.
    """
    with transaction.atomic():
        fresh = locked(flow_run.pk)
        refuse_ended(fresh)
        message = _checked(fresh, body)
        if message is None:
            return flow_run_actions.resume(actor, flow_run, message=body.get("message"))
        _post(fresh, message, by=name_of(actor))
    return fresh


def _checked(flow_run: FlowRun, body: Mapping[str, Any]) -> _Message | None:
    """Return the message of a command; None for a resume. Raises `Invalid`."""
    kind, text = body.get("type"), body.get("message")
    if kind not in TYPES:
        raise Invalid(f"type must be one of: {', '.join(TYPES)}", pointer="/type")
    unknown = sorted(body.keys() - set(FIELDS))
    if unknown:
        text = f"there is no field {unknown[0][:64]!r} here; known are {', '.join(FIELDS)}"
        raise Invalid(text, code="unknown_field", pointer=pointer_of(unknown[0][:64]))
    if text is not None and not isinstance(text, str):
        raise Invalid("message must be a text", pointer="/message")
    if kind == "resume":
        if body.get("runId") not in (None, str(flow_run.pk)):
            raise Invalid(
                "a resume is for the whole flow run: leave out runId", code="run_not_in_flow", pointer="/runId"
            )
        return None
    run_id = body.get("runId")
    if run_id in (None, ""):
        raise Invalid("runId must name the run that the message is for", code="run_id_required", pointer="/runId")
    run = _open_run(flow_run, run_id)
    if not (text or "").strip():
        raise MessageEmpty("the message must not be empty", pointer="/message")
    if len(str(text)) > inbox.MAX_MESSAGE:
        raise Invalid(f"a message must have at most {inbox.MAX_MESSAGE} characters", pointer="/message")
    return _Message(str(kind), run, str(run_id), MODEL_INPUT.clean_text(str(text))[0])


def _open_run(flow_run: FlowRun, run_id: JsonValue) -> AgentRun:
    """Return the current run of the named conversation, if it belongs to an open node of this flow run."""
    if isinstance(run_id, str) and re.fullmatch(UUID_PATTERN, run_id):
        named = AgentRun.objects.filter(pk=UUID(run_id), flow_run=flow_run).first()
        current = AgentRun.objects.filter(root_run=named.root_run_id) if named is not None else None
        run = current.exclude(status=RunStatus.RESUMED).first() if current is not None else None
        if run is not None and not run.state.terminal:
            return run
    raise Invalid("runId is not an open run of this flow run", code="run_not_in_flow", pointer="/runId")


def _post(flow_run: FlowRun, message: _Message, *, by: str) -> None:
    """Record a message, and deliver it to its run, or keep it until the resume if the flow run is paused."""
    graph = flow_transitions.graph_of_run(flow_run)
    snapshot = flow_transitions.snapshot_of(flow_run, graph)
    payload: JsonValue = {"runId": message.run_id, "message": message.text}
    received = Entry(CommandReceived(type=message.type, by=by or None, payload=payload), ref_id=message.run.pk)
    if flow_run.state is RunStatus.PAUSED:
        # Masked as in the log, which lists waiting messages.
        text = flow_transitions.clean_with(flow_run)(message.text)
        waiting = {"type": message.type, "message": text, "by": by}
        queued = [*snapshot["inbox"].get(message.run_id, []), waiting]
        snapshot = {**snapshot, "inbox": {**snapshot["inbox"], message.run_id: queued}}
    else:
        act = inbox.reply if message.type == "reply" else inbox.send
        act(message.run.pk, message.text, by=by)
    flow_transitions.keep(
        flow_run, Decisions(snapshot), source=Source.WEB, by=by, before=[received], is_due=flow_run.is_due
    )


def _record_refused(flow_run: FlowRun, body: Mapping[str, Any], *, by: str, code: str) -> None:
    """Record an invalid command in the flow run's log. A payload that is too large is left out."""
    payload: JsonValue = dict(body)
    if is_larger(payload, PREVIEW_BYTES):
        payload = {"truncated": True, "fields": [name[:64] for name in sorted(body)[:20]]}
    kind = body.get("type")
    refused = CommandReceived(
        type=kind[:64] if isinstance(kind, str) and kind else "unknown", by=by or None, payload=payload, refused=code
    )
    with transaction.atomic():
        fresh = locked(flow_run.pk)
        if fresh.state.terminal:
            return
        graph = flow_transitions.graph_of_run(fresh)
        decisions = Decisions(flow_transitions.snapshot_of(fresh, graph))
        flow_transitions.keep(fresh, decisions, source=Source.WEB, by=by, before=[Entry(refused)], is_due=fresh.is_due)
