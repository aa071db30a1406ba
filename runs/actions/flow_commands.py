"""Commands to flow runs: send, reply and resume. Each is recorded in the log of the flow run.

A message reaches only the node's run that the command names.
"""

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
from runs.flows.definition import pointer_of
from runs.flows.kernel.flow_decisions import Decisions
from runs.flows.kernel.json_values import is_larger
from runs.lifecycle import flow_transitions, inbox
from runs.models import AgentRun, FlowRun
from runs.statuses import RunStatus
from timeline.display import PREVIEW_BYTES
from timeline.events.notice import CommandReceived
from timeline.log import Entry
from timeline.models import Source

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
    """Carry out a command, `{"type", "runId", "message"}`, or record it as refused if it is invalid.

    Not for use in a transaction. Raises the errors of `carry_out`.
    """
    with recording_refusals(actor, flow_run, body):
        return carry_out(actor, flow_run, body)


@contextmanager
def recording_refusals(actor: Actor, flow_run: FlowRun, body: Mapping[str, Any]) -> Iterator[None]:
    """If a command in the `with` block raises `Invalid`, record it as a refused `command.received` of the flow run.

    Wraps the transaction of the command, which is rolled back first. The error is raised again.
    """
    try:
        yield
    except Invalid as error:
        _record_refused(flow_run, body, by=name_of(actor), code=error.code)
        raise


def carry_out(actor: Actor, flow_run: FlowRun, body: Mapping[str, Any]) -> FlowRun:
    """Carry out a command. `resume` needs no runId. A message to a paused flow run is kept until the resume.

    Writes nothing and raises `Invalid`, or `Conflict` with the code `run_terminal` if the flow run has ended.
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
    """Return the newest run of the named run's lineage. Raises `Invalid` unless it is an open run of this flow run."""
    if isinstance(run_id, str) and re.fullmatch(UUID_PATTERN, run_id):
        named = AgentRun.objects.filter(pk=UUID(run_id), flow_run=flow_run).values("root_run")[:1]
        run = AgentRun.objects.filter(root_run__in=named).exclude(status=RunStatus.RESUMED).first()
        if run is not None and not run.state.terminal:
            return run
    raise Invalid("runId is not an open run of this flow run", code="run_not_in_flow", pointer="/runId")


def _post(flow_run: FlowRun, message: _Message, *, by: str) -> None:
    """Record a message, and deliver it to its run. If the flow run is paused, keep it in the snapshot instead."""
    graph = flow_transitions.graph_of_run(flow_run)
    snapshot = flow_transitions.snapshot_of(flow_run, graph)
    payload: JsonValue = {"runId": message.run_id, "message": message.text}
    received = Entry(CommandReceived(type=message.type, by=by or None, payload=payload), ref_id=message.run.pk)
    if flow_run.state is RunStatus.PAUSED:
        # Masked like in the log, because pages list waiting messages.
        text = flow_transitions.clean_with(flow_run)(message.text)
        waiting = [*snapshot["inbox"].get(message.run_id, []), {"type": message.type, "message": text, "by": by}]
        snapshot = {**snapshot, "inbox": {**snapshot["inbox"], message.run_id: waiting}}
    else:
        post = inbox.reply if message.type == "reply" else inbox.send
        post(message.run.pk, message.text, by=by)
    flow_transitions.keep(
        flow_run, Decisions(snapshot), source=Source.WEB, by=by, before=[received], is_due=flow_run.is_due
    )


def _record_refused(flow_run: FlowRun, body: Mapping[str, Any], *, by: str, code: str) -> None:
    """Record an invalid command in the flow run's log, unless it has ended. Of a large payload, only field names."""
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
