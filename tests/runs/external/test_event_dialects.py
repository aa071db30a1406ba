"""Events in the agent dialect are recorded like events of the log."""

from __future__ import annotations

from typing import Any

import pytest

from agentops.accounts.models import Project
from runs.external.ingest import EventResult, Sender, record
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check
from timeline import log

pytestmark = pytest.mark.django_db

TOOL = {
    "type": "agent:tool",
    "toolName": "Read",
    "toolInput": {"path": "tasks.md"},
    "toolOutput": "- [ ] a",
    "durationMs": 4,
    "event_id": "e-tool",
}


@pytest.fixture
def sender() -> Sender:
    return Sender(Project.objects.create(slug="outside", name="Outside"), "key:test")


def send(sender: Sender, *documents: dict[str, Any]) -> list[EventResult]:
    return record(sender, [{"runId": "r1", **document} for document in documents])


def the_run() -> AgentRun:
    return AgentRun.objects.get(external_id="r1")


def types_of(run: AgentRun) -> list[str]:
    return [event.type for event in log.events_of(run.pk)]


def test_a_run_in_the_agent_dialect_becomes_rows(sender: Sender) -> None:
    results = send(
        sender,
        {"type": "agent:start", "sessionId": "s1", "prompt": "Verify", "nodeId": "verifier", "runKind": "job"},
        {"type": "agent:thinking:delta", "content": "hm"},
        {"type": "agent:text:delta", "content": "Two tasks ", "tokenCount": 2},
        {"type": "agent:text:delta", "content": "lack an owner.", "timestamp": 1_763_800_000_000},
        TOOL,
        {"type": "agent:tool", "toolName": "Edit", "toolInput": {}, "error": "no such file"},
        {"type": "agent:text", "content": "Done."},
        {"type": "agent:error", "errorType": "network_error", "message": "reset"},
        {
            "type": "agent:complete",
            "result": "Done.",
            "structuredOutput": {"ok": True},
            "totalCostUsd": 0.25,
            "usage": {"inputTokens": 10, "outputTokens": 3, "cacheReadInputTokens": 5},
            "numTurns": 3,
        },
    )

    assert [result.error for result in results] == [None] * 9
    run = the_run()
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []
    assert (run.status, run.result, run.structured_output, run.run_kind) == ("completed", "Done.", {"ok": True}, "job")
    assert (run.session_id, run.prompt, run.agent_config["agent_id"]) == ("s1", "Verify", "verifier")
    assert (run.input_tokens, run.output_tokens, str(run.cost_usd)) == (15, 3, "0.25000000")
    calls = list(run.tool_calls.order_by("id").values_list("tool_name", "status", "output", "duration_ms"))
    assert calls == [("Read", "completed", "- [ ] a", 4), ("Edit", "error", "no such file", None)]
    assert run.tool_calls.get(tool_name="Read").input == {"path": "tasks.md"}
    assert [error.error_type for error in run.errors.all()] == ["no_internet"]
    answers = run.messages.filter(role="assistant").order_by("position")
    assert [part["content"] for part in answers[0].content["parts"][:2]] == ["hm", "Two tasks lack an owner."]


def test_a_repeat_adds_nothing(sender: Sender) -> None:
    [_, first] = send(sender, {"type": "agent:start"}, TOOL)
    types = types_of(the_run())
    [repeat] = send(sender, TOOL)
    [other] = send(sender, {**TOOL, "toolOutput": "other"})

    assert (repeat.duplicate, repeat.seq) == (True, first.seq)
    assert other.error is not None
    assert (other.error.code, other.error.status) == ("event_id_conflict", 409)
    assert types_of(the_run()) == types
    assert log.events_of(the_run().pk).get(seq=first.seq).type == "tool.start"


def test_a_late_tool_event_is_stored_completely(sender: Sender) -> None:
    send(sender, {"type": "agent:start"}, {"type": "agent:complete", "result": "r"})
    [result] = send(sender, TOOL)

    assert result.late
    assert types_of(the_run())[-2:] == ["tool.start", "tool.end"]
    assert not the_run().tool_calls.exists()


@pytest.mark.parametrize(
    ("document", "code", "pointer"),
    [
        ({"type": "agent:none"}, "unknown_event_type", "/type"),
        ({"type": "agent:text:delta"}, "required", "/content"),
        ({"type": "agent:text", "content": 7}, "invalid_value", "/content"),
        ({"type": "agent:text", "payload": [1]}, "invalid_payload", "/payload"),
        ({"type": "agent:text", "content": "a", "timestamp": "noon"}, "invalid_timestamp", "/timestamp"),
        ({"type": "agent:text", "content": "a", "ts": 2, "timestamp": 1}, "duplicate_field", "/timestamp"),
        ({"type": "agent:text", "content": "a", "payload": {"content": "b"}}, "duplicate_field", "/payload/content"),
        ({"type": "agent:tool", "toolInput": {}}, "required", "/toolName"),
        ({"type": "agent:tool", "toolName": "Read", "durationMs": "long"}, "invalid_value", "/durationMs"),
        ({"type": "agent:complete", "numTurns": -1}, "invalid_value", "/numTurns"),
    ],
)
def test_a_bad_field_is_refused_with_its_location(
    sender: Sender, document: dict[str, Any], code: str, pointer: str
) -> None:
    [_, result] = send(sender, {"type": "agent:start"}, document)

    assert result.error is not None
    assert (result.error.code, result.error.pointer) == (code, pointer)
    assert types_of(the_run()) == ["run.created", "run.started"]


def test_only_a_start_event_creates_an_unknown_run(sender: Sender) -> None:
    [result] = send(sender, {"type": "agent:text", "content": "a"})

    assert result.error is not None
    assert result.error.code == "run_not_found"


def test_flow_and_child_events_are_stored_in_the_log(sender: Sender) -> None:
    send(
        sender,
        {"type": "agent:start"},
        {"type": "flow:started", "flow": "f"},
        {"type": "node:failed", "nodeId": "n", "error": "boom"},
        {"type": "edge:fired", "from": "a", "to": "b"},
        {"type": "command:received", "command": "send", "payload": 7},
        {"type": "child_job.started", "childRunId": "c"},
    )

    stored = [(event.type, event.node_id, event.payload) for event in log.events_of(the_run().pk)][2:]
    assert stored == [
        ("flow.started", "", {"flow": "f"}),
        ("node.failed", "n", {"node": "n", "error": "boom"}),
        ("edge.fired", "", {"source": "a", "target": "b"}),
        ("command.received", "", {"type": "send", "payload": 7}),
        ("child_run.started", "", {"run_id": "c"}),
    ]
