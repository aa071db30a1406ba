"""Clean rows of many kinds, and statements that corrupt them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.utils import timezone
from uuid_utils.compat import uuid7

from runs.actions.fork import fork
from runs.actions.resume import resume
from runs.external.ingest import Sender, record
from runs.flows import runner
from runs.lifecycle import inbox, transitions
from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, FlowRun, RunCommand
from runs.upkeep.invariants import check
from tests.support.factories import drive, make_agent, make_awaiting_approval, make_project, make_run
from tests.support.flows.flow_runs import make_ended_flow_run, make_flow_run
from timeline.models import Event
from timeline.tombstones import allow_changes


def red(run_id: UUID | None = None) -> set[str]:
    return {violation.invariant for violation in check(run_id)}


def recovered(run: AgentRun) -> AgentRun:
    """Return the run, completed by a second worker after the first died right after its claim."""
    transitions.claim(run.pk, "dead")
    AgentRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    return drive(run)


@dataclass
class World:
    """Clean rows of many kinds, and the IDs that the statements below use."""

    ids: dict[str, Any] = field(default_factory=dict)

    def spoil(self, *statements: str) -> None:
        with allow_changes("a test spoils the log"), connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement, self.ids)


def reported_run() -> AgentRun:
    """Create a completed external run with a call, usage and cost."""
    call = {"id": "c", "name": "look", "arguments": {}}
    sent = [
        ("run.started", {"agent": "coder", "prompt": "Look"}),
        (
            "llm.turn.end",
            {"text": "I look", "toolCalls": [call], "inputTokens": 7, "outputTokens": 3, "costUsd": "0.01"},
        ),
        ("tool.end", {"callId": "c", "output": "seen"}),
        ("llm.turn.end", {"text": "Done", "inputTokens": 9, "outputTokens": 2}),
        ("run.completed", {}),
    ]
    documents = [{"runId": "outside", "type": type_, "payload": payload} for type_, payload in sent]
    results = record(Sender(make_project("outside"), "key:test"), documents)
    assert [result.error for result in results if result.error] == []
    return AgentRun.objects.get(external_id="outside")


def open_flow_run() -> FlowRun:
    """Create a flow run with an open question."""
    flow_run = make_flow_run({"nodes": [{"id": "ask", "type": "human", "question": "Go on?"}]})
    runner.advance(flow_run.pk)
    return flow_run


def make_world() -> World:
    run = drive(make_run())
    old = drive(make_run(make_agent(max_steps=2)))
    out_of_steps = drive(make_run(make_agent(max_steps=1)))
    new = drive(resume(old.pk, by="test").run)
    running = make_run()
    transitions.claim(running.pk, "test")
    inbox.pause(running.pk, by="test")
    elsewhere, paused = make_run(), make_run()
    inbox.pause(paused.pk, by="test")
    call = AgentRunToolCall.objects.filter(run=run).order_by("id")[2]
    messages = AgentRunMessage.objects.filter(run=run).order_by("position")
    outside = reported_run()
    uuids = {
        "outside": outside.pk,
        "outside_call": AgentRunToolCall.objects.get(run=outside).pk,
        "run": run.pk,
        "old": old.pk,
        "new": new.pk,
        "running": running.pk,
        "recovered": recovered(make_run()).pk,
        "elsewhere": elsewhere.pk,
        "child": make_run(elsewhere.agent, parent_id=elsewhere.pk).pk,
        "paused": paused.pk,
        "asking": make_awaiting_approval().pk,
        "out_of_steps": out_of_steps.pk,
        "forked": fork(run.pk, by="test", step=1).pk,
        "flow": make_ended_flow_run(make_project()).pk,
        "open_flow": open_flow_run().pk,
        "other_project": elsewhere.project_id,
        "call": call.pk,
        "asked_by": call.message_id,
        "result": call.result_message_id,
        "user": messages.filter(role="user")[0].pk,
        "last_message": messages.reverse()[0].pk,
        "fresh": uuid7(),
    }
    field_ = AgentRunMessage._meta.pk
    ids: dict[str, Any] = {name: field_.get_db_prep_value(value, connection) for name, value in uuids.items()}
    ids["last"] = Event.objects.filter(log=run.pk).count()
    ids["last_recovered"] = Event.objects.filter(log=uuids["recovered"], source="worker").latest("seq").seq
    # Some invariants have a grace period of 30 seconds, too short for a slow machine to corrupt all rows.
    later = timezone.now() + timedelta(hours=1)
    AgentRun.objects.filter(pk=running.pk).update(lease_expires_at=later)
    RunCommand.objects.filter(run=running).update(received_at=later)
    ids["long_ago"] = connection.ops.adapt_datetimefield_value(timezone.now() - timedelta(hours=1))
    assert check() == []
    return World(ids)


#: Statements for flow runs: a completed one, and a waiting one with an open question.
FLOW_EVENT = "UPDATE agent_run_events SET type = '{}' WHERE log_id = %(flow)s AND type = '{}'"
VISIT = "UPDATE flow_visits SET {} WHERE flow_run_id = {}"
EVENT = "UPDATE agent_run_events SET {} WHERE log_id = %(run)s AND seq = %(last)s"
STARTED = "UPDATE agent_run_events SET {} WHERE log_id = %(run)s AND type = 'run.started'"
OF_CALL = "UPDATE agent_run_events SET type = 'error' WHERE log_id = %(run)s AND ref_id = %(call)s AND type = '{}'"
CALL = "UPDATE agent_run_tool_calls SET {} WHERE id = %(call)s"
#: Replaces another event, whose turn then has no end.
CHOSEN = (
    "UPDATE agent_run_events SET type = 'approval.resolved', ref_id = %(call)s, payload = '{{\"decision\": \"{}\"}}'"
    " WHERE log_id = %(run)s AND type = 'llm.turn.end' AND step = 2"
)
#: Statements for an external run.
OUTSIDE = "UPDATE agent_runs SET {} WHERE id = %(outside)s"
OF_OUTSIDE_CALL = OF_CALL.replace("%(run)s", "%(outside)s").replace("%(call)s", "%(outside_call)s")
OUTSIDE_CALL = CALL.replace("%(call)s", "%(outside_call)s")
OUTSIDE_USAGE = "UPDATE agent_run_turn_usages SET {} WHERE run_id = %(outside)s AND step_number = 2"
RUN = "UPDATE agent_runs SET {} WHERE id = %(run)s"
NEW = "UPDATE agent_runs SET {} WHERE id = %(new)s"
FORKED = "UPDATE agent_runs SET {} WHERE id = %(forked)s"
RUNNING = "UPDATE agent_runs SET {} WHERE id = %(running)s"
MESSAGE = "UPDATE agent_run_messages SET {} WHERE id = {}"
LAST_CHECKPOINT = (
    "FROM agent_run_checkpoints WHERE run_id = %(run)s AND step_number = "
    "(SELECT MAX(step_number) FROM agent_run_checkpoints WHERE run_id = %(run)s)"
)
ONE_MORE_EVENT = (
    "INSERT INTO agent_run_events (log_id, seq, event_id, run_kind, phase, type, ts, node_id, payload, source, late,"
    " sanitized, created_at) SELECT log_id, seq + 1, 'more', run_kind, phase, 'error', ts, node_id, payload, 'web',"
    " late, sanitized, created_at FROM agent_run_events WHERE log_id = %(run)s AND seq = %(last)s",
    "UPDATE timeline_log SET last_seq = last_seq + 1 WHERE id = %(run)s",
)
