"""Conversion of agent-dialect events to events of the log.
May import: timeline.ag_ui_state, timeline.events; no database.
"""

from __future__ import annotations

from typing import Any

import pytest

from timeline import events
from timeline.agent_dialect_input import AmbiguousEvent, is_agent_event, pointer_into, to_canonical


def one(document: dict[str, Any]) -> dict[str, Any]:
    [event] = to_canonical({"runId": "r", **document})
    events.validate(event["type"], event["payload"])
    return event


@pytest.mark.parametrize(
    ("sent", "type_", "payload"),
    [
        (
            {"type": "agent:start", "sessionId": "s", "model": "m", "prompt": "p"},
            "run.started",
            {"sessionId": "s", "model": "m", "prompt": "p"},
        ),
        ({"type": "agent:text", "content": "a", "tokenCount": 2}, "llm.text", {"text": "a", "tokenCount": 2}),
        ({"type": "agent:text:delta", "payload": {"content": "a"}}, "llm.text.delta", {"text": "a"}),
        ({"type": "agent:thinking", "content": "a", "tokenCount": 2}, "llm.thinking", {"text": "a", "tokenCount": 2}),
        ({"type": "agent:thinking:delta", "content": "a"}, "llm.thinking.delta", {"text": "a"}),
        (
            {"type": "agent:error", "errorType": "rate_limit", "message": "slow", "details": {"a": 1}},
            "error",
            {"errorType": "rate_limited", "error": "slow", "details": {"a": 1}},
        ),
        ({"type": "agent:error", "errorType": "Mine", "message": "m"}, "error", {"errorType": "Mine", "error": "m"}),
        (
            {"type": "agent:complete", "result": "r", "totalCostUsd": 0.5, "numTurns": 3, "usage": {"inputTokens": 1}},
            "run.completed",
            {"result": "r", "costUsd": 0.5, "steps": 3, "usage": {"inputTokens": 1}},
        ),
        ({"type": "flow:start", "flow": "f"}, "flow.started", {"flow": "f"}),
        ({"type": "node:complete", "output": 1, "nodeId": "n"}, "node.completed", {"output": 1, "node": "n"}),
        (
            {"type": "edge:fired", "edgeId": "e", "source": "a", "to": "b"},
            "edge.fired",
            {"edge": "e", "source": "a", "target": "b"},
        ),
        ({"type": "edge:iterated", "iteration": 2}, "loop.iterated", {"iteration": 2}),
        ({"type": "loop:iterate", "edgeId": "t->t"}, "loop.iterated", {"edge": "t->t"}),
        ({"type": "loop:iterated", "payload": {"node": "t"}}, "loop.iterated", {"node": "t"}),
        ({"type": "node:error", "nodeId": "n", "message": "m"}, "node.failed", {"node": "n", "error": "m"}),
        (
            {"type": "node:error", "node": "n", "errorType": "t", "error": "e", "message": "m"},
            "node.failed",
            {"node": "n", "errorType": "t", "error": "e", "message": "m"},
        ),
        (
            {"type": "command:received", "command": "send", "payload": {"message": "m"}},
            "command.received",
            {"type": "send", "payload": {"message": "m"}},
        ),
        ({"type": "command:received", "payload": {"type": "send"}}, "command.received", {"type": "send"}),
        (
            {"type": "child_job.started", "childRunId": "c", "prompt": "p"},
            "child_run.started",
            {"runId": "c", "prompt": "p"},
        ),
        ({"type": "child_job.completed", "payload": {"jobId": "c"}}, "child_run.completed", {"runId": "c"}),
        ({"type": "child_job.cancelled", "jobId": "c"}, "child_run.completed", {"runId": "c", "status": "stopped"}),
        ({"type": "child_job.progress", "child_run_id": "c"}, "child_run.phase", {"runId": "c", "phase": "progress"}),
    ],
)
def test_each_type_has_its_event(sent: dict[str, Any], type_: str, payload: dict[str, Any]) -> None:
    event = one(sent)

    assert (event["type"], event["payload"]) == (type_, payload)


def test_a_tool_event_becomes_a_start_and_an_end() -> None:
    sent = {
        "runId": "r",
        "type": "agent:tool",
        "event_id": "e1",
        "timestamp": 5000,
        "nodeId": "n",
        "toolName": "Read",
        "toolInput": {"a": 1},
        "toolOutput": "text",
        "durationMs": 40,
        "error": None,
    }
    start, end = to_canonical(sent)

    assert start["payload"] == {"toolName": "Read", "arguments": {"a": 1}}
    assert end["payload"] == {"toolName": "Read", "output": "text", "durationMs": 40}
    assert (start["ts"], end["ts"]) == (4960, 5000)
    assert (start["event_id"], "event_id" in end) == ("e1", False)


def test_unknown_fields_are_kept_with_the_end_of_a_call() -> None:
    start, end = to_canonical({"type": "agent:tool", "tool": "Read", "args": {"a": 1}, "result": "text", "cost": 2})

    assert start["payload"] == {"tool": "Read", "arguments": {"a": 1}}
    assert end["payload"] == {"tool": "Read", "output": "text", "cost": 2}


def test_two_links_to_a_child_are_both_kept() -> None:
    [event] = to_canonical({"type": "child_job.failed", "payload": {"childRunId": "r", "childJobId": "j"}})

    assert event["payload"] == {"runId": "r", "childJobId": "j", "status": "failed"}


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "agent:text", "content": "a", "payload": {"content": "b"}},
        {"type": "agent:text", "content": "a", "text": "b"},
        {"type": "agent:text", "text": "a", "content": "b"},
    ],
)
def test_a_field_under_two_names_is_refused(sent: dict[str, Any]) -> None:
    with pytest.raises(AmbiguousEvent, match="two names"):
        to_canonical(sent)


@pytest.mark.parametrize(
    "type_",
    [
        "agent:none",
        "agent:started",
        "flow:error",
        "edge:error",
        "loop:start",
        "llm.text",
        "x.agent",
        7,
        None,
        "flow:",
        ["agent:text"],
    ],
)
def test_other_types_are_not_agent_events(type_: object) -> None:
    assert not is_agent_event({"type": type_})


@pytest.mark.parametrize(
    ("sent", "pointer", "expected"),
    [
        ({"type": "agent:text:delta"}, "/payload/text", "/content"),
        ({"type": "agent:text", "content": 1}, "/payload/text", "/content"),
        ({"type": "agent:text", "payload": {"content": 1}}, "/payload/text", "/payload/content"),
        ({"type": "agent:tool", "toolName": 1}, "/payload/toolName", "/toolName"),
        ({"type": "agent:tool"}, "/payload/tool_name", "/toolName"),
        ({"type": "agent:text", "timestamp": "x"}, "/ts", "/timestamp"),
        ({"type": "agent:text"}, "/runId", "/runId"),
        ({"type": "node:error", "message": 7}, "/payload/error", "/message"),
        ({"type": "node:error", "payload": {"message": 7}}, "/payload/error", "/payload/message"),
        ({"type": "node:error", "error": 7}, "/payload/error", "/error"),
    ],
)
def test_errors_point_into_the_event_as_sent(sent: dict[str, Any], pointer: str, expected: str) -> None:
    assert pointer_into(sent, pointer) == expected
