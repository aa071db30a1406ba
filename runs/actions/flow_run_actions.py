"""The actions on flow runs for users and programs: create, pause, resume, stop.

Actions that begin or end a flow run are recorded in the audit log, in the same transaction. The caller has checked the
permission.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import transaction

from agentops.accounts.audit import Actor, name_of, record
from agentops.base.redaction.redact import MODEL_INPUT
from agentops.base.refusals import Conflict, Refusal
from runs import chaos
from runs.actions.resume import check_message
from runs.errors import FlowRunNotFound
from runs.flows.kernel import advance as kernel
from runs.flows.kernel.flow_decisions import Decisions, NewEvent
from runs.flows.kernel.snapshot import FlowStatus
from runs.lifecycle import flow_transitions, inbox, node_runs
from runs.lifecycle.wake import wake_flows
from runs.models import AgentRun, Flow, FlowRun, FlowVisit
from runs.statuses import RunStatus
from timeline.events.flow import NodeStarted
from timeline.events.notice import CommandReceived
from timeline.log import Entry
from timeline.models import Source


class FlowRunAuditAction(enum.StrEnum):
    FLOW_RUN_CREATED = "flow_run.created"
    FLOW_RUN_RESUMED = "flow_run.resumed"
    FLOW_RUN_STOPPED = "flow_run.stopped"
    FLOW_RUN_DISMISSED = "flow_run.dismissed"


def create(actor: Actor, flow: Flow, inputs: Mapping[str, Any]) -> FlowRun:
    """Create a queued run of a flow. Raises `InvalidFlowInputs`. Not for use in a transaction: see `check_inputs`."""
    return create_checked(actor, flow_transitions.check_inputs(flow, inputs))


def create_checked(
    actor: Actor, checked: flow_transitions.CheckedInputs, *, schedule_id: UUID | None = None
) -> FlowRun:
    """Create a queued run of a flow with checked inputs."""
    flow = checked.flow
    with transaction.atomic():
        flow_run = flow_transitions.create(checked, by=name_of(actor), schedule_id=schedule_id)
        after = {"status": flow_run.status, "flow_id": flow.slug, "version": flow.version}
        record(actor, FlowRunAuditAction.FLOW_RUN_CREATED, project=flow.project, obj=flow_run, after=after)
    return flow_run


def pause(actor: Actor, flow_run: FlowRun) -> FlowRun:
    """Pause a flow run now, and the runs of its nodes after their current steps. Does nothing if it is already paused.

    Runs that wait for a person keep waiting. Raises `Conflict` with the code `run_terminal` if the flow run has ended.
    """
    with transaction.atomic():
        fresh = locked(flow_run.pk)
        if fresh.state is RunStatus.PAUSED:
            return fresh
        refuse_ended(fresh)
        snapshot = flow_transitions.snapshot_of(fresh, flow_transitions.graph_of_run(fresh))
        snapshot = {**snapshot, "status": FlowStatus.PAUSED.value}
        flow_transitions.keep(fresh, Decisions(snapshot), source=Source.WEB, by=name_of(actor))
        node_runs.pause_all(fresh)
        chaos.point("command.in_transaction")
    return fresh


def resume(actor: Actor, flow_run: FlowRun, *, message: str | None = None) -> FlowRun:
    """Continue a paused flow run, and the paused runs of its nodes, with `message` or "continue".

    Of concurrent calls only one succeeds. Raises `Conflict` with the code `flow_run_not_paused`, and `MessageEmpty` or
    `Invalid` for the message.
    """
    check_message(message)
    by = name_of(actor)
    with transaction.atomic():
        fresh = locked(flow_run.pk)
        if fresh.state is not RunStatus.PAUSED:
            text = f"only paused flow runs can be resumed; this one is {fresh.status}"
            raise Conflict(text, code="flow_run_not_paused", run_status=fresh.status)
        graph = flow_transitions.graph_of_run(fresh)
        snapshot = flow_transitions.snapshot_of(fresh, graph)
        decisions, _ = kernel.resume(graph, snapshot, by=by or None)
        runs = _open_runs_by_key(fresh)
        decisions.events = [_with_run(event, runs) for event in decisions.events]
        before = [_received(message, by)] if message is not None else []
        flow_transitions.keep(fresh, decisions, source=Source.WEB, by=by, before=before, is_due=True)
        _deliver(snapshot["inbox"], runs)
        _mark_reentries(fresh, runs, message)
        record(
            actor,
            FlowRunAuditAction.FLOW_RUN_RESUMED,
            project=fresh.project,
            obj=fresh,
            before={"status": RunStatus.PAUSED.value},
            after={"status": fresh.status},
        )
        wake_flows()
        chaos.point("command.in_transaction")
    return fresh


def stop(actor: Actor, flow_run: FlowRun) -> FlowRun:
    """Stop a flow run and the runs of its nodes. Does nothing if it is already stopped.

    Raises `Conflict` with the code `run_terminal` if the flow run has ended otherwise.
    """
    with transaction.atomic():
        fresh = locked(flow_run.pk)
        if fresh.state is RunStatus.STOPPED:
            return fresh
        refuse_ended(fresh)
        before = {"status": fresh.status}
        graph = flow_transitions.graph_of_run(fresh)
        affected = node_runs.open_runs(fresh)
        decisions = kernel.stop(graph, flow_transitions.snapshot_of(fresh, graph))
        flow_transitions.keep(fresh, decisions, source=Source.WEB, by=name_of(actor))
        node_runs.stop_all(fresh)
        record(
            actor,
            FlowRunAuditAction.FLOW_RUN_STOPPED,
            project=fresh.project,
            obj=fresh,
            before=before,
            after={"status": fresh.status, "stopped_runs": len(affected)},
        )
        chaos.point("command.in_transaction")
    return fresh


def affected_runs(flow_run: FlowRun) -> list[AgentRun]:
    """Return the runs that a stop of the flow run would stop now."""
    return node_runs.open_runs(flow_run)


def locked(flow_run_id: UUID) -> FlowRun:
    """Lock and return a flow run, so that a concurrent change is finished and visible. Raises `FlowRunNotFound`."""
    rows = FlowRun.objects.select_for_update(no_key=True, of=("self",))
    flow_run = rows.filter(pk=flow_run_id).first()
    if flow_run is None:
        raise FlowRunNotFound(f"no flow run {flow_run_id}")
    return flow_run


def refuse_ended(flow_run: FlowRun) -> None:
    """Raise `Conflict` with the code `run_terminal` if the flow run has ended."""
    if flow_run.state.terminal:
        raise Conflict(
            f"a {flow_run.status} flow run accepts no commands", code="run_terminal", run_status=flow_run.status
        )


def _open_runs_by_key(flow_run: FlowRun) -> dict[str, AgentRun]:
    """Return the newest run of each open visit, by the key of the visit."""
    visits = FlowVisit.objects.open().filter(flow_run=flow_run, session__isnull=False)
    sessions = {visit.session_id: visit.key for visit in visits}
    runs = node_runs.current_runs([session for session in sessions if session is not None])
    return {sessions[session]: run for session, run in runs.items()}


def _with_run(event: NewEvent, runs: Mapping[str, AgentRun]) -> NewEvent:
    """Return a `node.started` event with the run of its visit; other events unchanged."""
    run = runs.get(event.visit.key) if event.visit is not None else None
    if run is None or not isinstance(event.payload, NodeStarted):
        return event
    return replace(event, payload=event.payload.model_copy(update={"run_id": str(run.pk)}))


def _received(message: str, by: str) -> Entry:
    text = MODEL_INPUT.clean_text(message)[0]
    return Entry(CommandReceived(type="resume", by=by or None, payload={"message": text}))


def _deliver(messages: Mapping[str, list[dict[str, Any]]], runs: Mapping[str, AgentRun]) -> None:
    """Deliver the messages that waited for the resume, each to the newest run of the lineage that it names."""
    by_lineage = {run.root_run_id: run for run in runs.values()}
    for run_id, waiting in messages.items():
        addressed = AgentRun.objects.filter(pk=UUID(run_id)).first()
        run = by_lineage.get(addressed.root_run_id) if addressed is not None else None
        if run is None:
            continue
        for message in waiting:
            post = inbox.reply if message["type"] == "reply" else inbox.send
            try:
                post(run.pk, message["message"], by=message["by"])
            except Refusal:
                break  # the run has ended in the meantime, and reads no more messages


def _mark_reentries(flow_run: FlowRun, runs: Mapping[str, AgentRun], message: str | None) -> None:
    """Mark visits, so that their runs are resumed with the message once the pause of the flow has paused these runs."""
    keys = [key for key, run in runs.items() if not run.state.terminal and not node_runs.waits_for_person(run)]
    # Cleaned like a run's message, because no column can store a NUL or an unpaired surrogate.
    reentry = MODEL_INPUT.clean_text(message or "")[0]
    FlowVisit.objects.filter(flow_run=flow_run, key__in=keys).update(reentry=reentry)
