"""Use AG-UI's npm client to drive a durable run of a worker, and to verify the events of all kinds of runs."""

from __future__ import annotations

import json
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import Event
from django.test import Client
from pydantic import TypeAdapter

from runs.models import AgentRun
from runs.queries.ag_ui_dialect import ag_ui_texts
from runs.statuses import RunStatus
from tests.support.factories import (
    drive,
    make_agent,
    make_awaiting_approval,
    make_project,
    make_run,
    make_waiting,
    with_key,
)
from tests.support.recordings import import_path, recording
from tests.support.stage import Stage
from tests.support.suite_fixtures import CLIENTS, MakeWeb
from timeline import log

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)
pytestmark = pytest.mark.slow


def test_the_npm_client_drives_an_agent(stage: Stage, web_process: MakeWeb, node_modules: Path) -> None:
    first = stage.run([["ledger_read"], ["ask_user"], ["paint"]], chunks=2)
    stage.worker()
    web = web_process(settings_module="tests.support.process_settings")
    stage.reaches(first, RunStatus.FAILED, RunStatus.COMPLETED, RunStatus.WAITING)
    agent = first.agent
    assert agent is not None
    agent.tools = [*agent.tools, "ask_user"]
    agent.policies = {"approvals": [{"tools": "ledger_read", "action": "ask"}]}
    agent.save()

    url = f"{web.url}/api/projects/{agent.project.slug}/agents/{agent.slug}/ag-ui"
    key = with_key(agent.project, "read", "write")["Authorization"]
    command = ["node", CLIENTS / "run_ag_ui_agent.mjs", node_modules, url, key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    proposed, asked, answered, painted, again, anew = (json.loads(line) for line in done.stdout.splitlines())

    [approval] = proposed["interrupts"]
    assert approval["message"] == "Approve the call of ledger_read?"
    assert proposed["messages"][-1]["calls"] == [{"name": "ledger_read", "arguments": '{"n":10}'}]
    assert asked["types"][0] == "RUN_STARTED"
    assert "TOOL_CALL_START" not in asked["types"]
    assert asked["types"][-1] == "RUN_FINISHED"
    assert [message["role"] for message in asked["messages"]] == ["user", "assistant", "assistant", "tool", "assistant"]
    assert asked["messages"][2]["calls"] == [{"name": "ledger_read", "arguments": '{"n":10}'}]
    assert [each["message"] for each in asked["interrupts"]] == ["Which one?"]

    assert answered["interrupts"] == []
    assert [message["content"] for message in answered["messages"] if message["role"] == "tool"][-1] == "the red one"
    assert [call["name"] for call in answered["messages"][-1]["calls"]] == ["paint"]
    assert painted["messages"][-2] == {"role": "tool", "content": "painted"}
    assert painted["messages"][-1]["content"].startswith("All done. ")
    assert [message["content"] for message in again["messages"] if message["role"] == "user"] == ["Go.", "And now?"]
    assert again["state"]["status"] == "completed"
    assert "MESSAGES_SNAPSHOT" not in again["types"]
    # A newly loaded page gets the whole conversation in order, like the earlier page.
    assert anew["types"][:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert anew["messages"][: len(again["messages"])] == again["messages"]
    assert [message["role"] for message in anew["messages"][len(again["messages"]) :]] == ["user", "assistant"]
    run, fork, _ = AgentRun.objects.exclude(pk=first.pk).order_by("pk")
    assert (run.status, fork.forked_from_id) == (RunStatus.COMPLETED, run.pk)


#: Events that a runner may send: no model calls, texts in any order, calls without a start, a question.
LOOSE: list[tuple[str, dict[str, Any]]] = [
    ("run.started", {"agent": "loose", "prompt": "Go."}),
    ("llm.text.delta", {"text": "One "}),
    ("llm.thinking.delta", {"text": "Hm."}),
    ("llm.text.delta", {"text": "two."}),
    ("llm.text", {"text": "Three."}),
    ("llm.turn.end", {"text": "Four.", "toolCalls": [{"id": "a", "name": "look"}, {"id": "b", "name": "look"}]}),
    ("tool.end", {"callId": "a", "output": {"found": [1]}}),
    ("tool.start", {"callId": "b", "toolName": "look", "arguments": {"at": 1}}),
    ("child_run.started", {"run_id": "c-1", "agent": "helper", "call_id": "b", "prompt": "Look."}),
    ("x.mine", {"any": "thing"}),
    ("child_run.completed", {"run_id": "c-1", "agent": "helper", "call_id": "b", "summary": "Seen.", "steps": 2}),
    ("child_run.completed", {"run_id": "c-1", "agent": "helper", "call_id": "b"}),
    ("child_run.started", {"run_id": "c-2"}),
    ("tool.end", {"callId": "b", "error": "gone"}),
    ("message.added", {"role": "user", "content": "And?"}),
    ("llm.text.delta", {"text": "Hm."}),
    ("approval.requested", {"callId": "c", "toolName": "look"}),
    ("run.waiting", {"reason": "approval"}),
    ("child_run.started", {"run_id": "c-3", "agent": "unseen"}),
    ("approval.resolved", {"callId": "c", "decision": "approved"}),
    ("run.waiting", {"reason": "input", "question": "Which?"}),
    ("message.added", {"role": "user", "content": "That."}),
    ("llm.turn.start", {"model": "m"}),
    ("llm.text.delta", {"text": "Half an ans", "index": 0}),
    ("llm.turn.abandoned", {"reason": "cut"}),
    ("child_run.completed", {"run_id": "c-3", "agent": "unseen", "status": "completed"}),
    ("child_run.completed", {"run_id": "c-2", "status": "failed", "error": "It is gone."}),
    ("child_run.started", {"run_id": "c-4", "agent": "late"}),
    ("error", {"errorType": "network_error", "error": "cut"}),
    ("llm.text.delta", {"text": "The answer.", "index": 0}),
    ("run.completed", {"result": {"all": "done"}}),
    ("tool.output", {"callId": "b", "text": "late"}),
]


def loose_run() -> AgentRun:
    """Create a run from these events."""
    project = make_project()
    client = Client(headers=with_key(project, "ingest"))
    events = [
        {"runId": "theirs", "type": type_, "ts": 1_700_000_000_000 + n, "payload": payload}
        for n, (type_, payload) in enumerate(LOOSE)
    ]
    answer = client.post("/api/internal/agent-events", {"events": events}, content_type="application/json")
    assert answer.status_code == 200, answer.content
    return AgentRun.objects.get(project=project)


@pytest.mark.django_db(transaction=True)
def test_the_npm_verifier_accepts_every_log(node_modules: Path) -> None:
    runs = [
        loose_run(),
        make_waiting(),
        make_awaiting_approval(),
        drive(make_run(make_agent(fixture="claude-code-7e"))),
    ]
    import_path(make_project(), recording("claude-code-growing/768de5d6.3.jsonl"))
    runs += AgentRun.objects.filter(source="import")
    logs = [list(log.events_of(run.pk)) for run in runs]
    streams = [[text for texts in ag_ui_texts(events[0].log_id, events) for text in texts] for events in logs]

    for text in chain(*streams):
        EVENTS.validate_json(text)
    command = ["node", CLIENTS / "verify_ag_ui_events.mjs", node_modules]
    told = "".join(f"[{','.join(stream)}]\n" for stream in streams)
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["ok"] * len(runs)

    events = logs[0]
    whole = ag_ui_texts(events[0].log_id, events)
    for begin in range(1, len(events)):
        assert ag_ui_texts(events[0].log_id, events[begin:]) == whole[begin:]
    loose = [json.loads(text) for text in streams[0]]
    call_id = next(each["toolCallId"] for each in reversed(loose) if each["type"] == "TOOL_CALL_START")
    children = [
        {name: value for name, value in each.items() if name not in ("timestamp", "type", "metadata")}
        for each in loose
        if each["type"].startswith("SUBAGENT_")
    ]
    suspended = {"outcome": {"type": "suspended"}}
    assert children == [
        {"subagentRunId": "c-1", "name": "helper", "description": "Look.", "parentToolCallId": call_id},
        {"subagentRunId": "c-1", "outcome": {"type": "success"}, "result": "Seen."},
        {"subagentRunId": "c-2", "name": "agent"},
        {"subagentRunId": "c-2", **suspended},
        {"subagentRunId": "c-3", "name": "unseen"},
        {"subagentRunId": "c-3", "outcome": {"type": "success"}},
        {"subagentRunId": "c-2", "name": "agent"},
        {"subagentRunId": "c-2", "message": "It is gone.", "code": "failed"},
        {"subagentRunId": "c-4", "name": "late"},
        {"subagentRunId": "c-4", **suspended},
    ]
    said = [each["delta"] for each in loose if each["type"] == "TEXT_MESSAGE_CONTENT"]
    assert said == ["Go.", "One ", "two.", "Three.", "And?", "Hm.", "That.", "Half an ans", "The answer."]
    assert [each["type"] for each in loose].count("RUN_STARTED") == 3
