"""The events of runners, as rows: every page, API and export reads an external run like a native one."""

from __future__ import annotations

from typing import Any

import pytest

from agentops.projects.models import Project
from runs.external.ingest import EventResult, Sender, record
from runs.models import AgentRun
from runs.upkeep import invariants, replay_check

pytestmark = pytest.mark.django_db


@pytest.fixture
def sender() -> Sender:
    return Sender(Project.objects.create(slug="outside", name="Outside"), "key:test")


def event(type_: str, payload: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"runId": "r1", "type": type_, "payload": payload or {}, **fields}


def send(sender: Sender, *documents: object) -> list[EventResult]:
    return record(sender, list(documents))


def the_run() -> AgentRun:
    return AgentRun.objects.get(external_id="r1")


def check(run: AgentRun) -> None:
    """The rows and the log of an external run keep all invariants, and tell the same."""
    assert [one for one in invariants.check(run.pk) if not one.warning_only] == []
    assert replay_check.differences(run.pk) == []


STARTED = event("run.started", {"agent": "coder", "model": "claude-sonnet-4-5", "prompt": "Add two numbers"})


def test_a_turn_with_a_tool_becomes_rows(sender: Sender) -> None:
    results = send(
        sender,
        STARTED,
        event("llm.turn.start", {"model": "claude-sonnet-4-5"}),
        event("llm.text.delta", {"text": "I look"}),
        event(
            "llm.turn.end",
            {
                "text": "I look",
                "thinking": "hm",
                "toolCalls": [{"id": "c1", "name": "read", "arguments": {"path": "a"}}],
                "usage": {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 90},
            },
        ),
        event("tool.start", {"callId": "c1", "toolName": "read"}),
        event("tool.end", {"callId": "c1", "output": "three", "durationMs": 12}),
        event("llm.turn.end", {"text": "Done: 3", "usage": {"inputTokens": 20, "outputTokens": 2}}),
        event("run.completed", {"result": "3"}),
    )

    assert [result.error for result in results] == [None] * 8
    run = the_run()
    check(run)
    assert (run.status, run.result, run.summary, run.step_count) == ("completed", "3", "Done: 3", 2)
    assert (run.input_tokens, run.output_tokens, run.cache_read_tokens) == (120, 7, 90)
    assert run.cost_usd is not None
    assert list(run.messages.order_by("position").values_list("role", "step_number")) == [
        ("user", 1), ("assistant", 1), ("tool_result", 1), ("assistant", 2),
    ]  # fmt: skip
    [call] = run.tool_calls.all()
    assert (call.status, call.output, call.input, call.duration_ms) == ("completed", "three", {"path": "a"}, 12)
