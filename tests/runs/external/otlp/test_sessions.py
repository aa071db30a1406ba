"""The log events of coding agents become one run for each session.

The attributes are documented by the programs: Claude Code under "Monitoring", Codex CLI in its `otel` crate, Gemini
CLI under "Observability".
"""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from runs.models import AgentRun
from tests.support.factories import make_project
from tests.support.otlp import JSON, PROTOBUF, Exporter, as_json, logs, summary

pytestmark = pytest.mark.django_db


@pytest.fixture
def exporter() -> Exporter:
    return Exporter(make_project("coding"))


def claude(name: str, number: int, **attributes: Any) -> dict[str, Any]:
    fields = {key.replace("__", "."): value for key, value in attributes.items()}
    common = {"session.id": "s-1", "event.name": name, "event.sequence": number, "prompt.id": "p-1"}
    return {"body": f"claude_code.{name}", **common, **fields}


CLAUDE = [
    claude("user_prompt", 1, prompt="Why is the build red?", prompt_length="21"),
    claude(
        "api_request",
        2,
        model="claude-sonnet-4-5",
        input_tokens="12",
        output_tokens="40",
        cache_read_tokens="1000",
        cache_creation_tokens="50",
        cost_usd="0.01",
        duration_ms="1500",
        request_id="req_1",
    ),
    claude("assistant_response", 3, response="I look.", request_id="req_1", model="claude-sonnet-4-5"),
    claude("tool_decision", 4, tool_name="Bash", tool_use_id="toolu_1", decision="accept", source="config"),
    claude(
        "tool_result",
        5,
        tool_name="Bash",
        tool_use_id="toolu_1",
        success="true",
        duration_ms="30",
        tool_input='{"command": "make"}',
    ),
    claude("tool_decision", 6, tool_name="Write", tool_use_id="toolu_2", decision="reject", source="user_reject"),
    claude("api_error", 7, model="claude-sonnet-4-5", error="overloaded", status_code=529, attempt=1),
    claude("api_request", 8, model="claude-sonnet-4-5", input_tokens=3, output_tokens=9, cost_usd=0.02),
    claude("tool_result", 9, tool_name="Read", success="false", error="no such file", duration_ms=1),
]


def codex(name: str, **attributes: Any) -> dict[str, Any]:
    fields = {key.replace("__", "."): value for key, value in attributes.items()}
    common = {"conversation.id": "c-1", "event.timestamp": "2026-11-20T10:00:00.000Z", "model": "gpt-5-codex"}
    return {"event.name": f"codex.{name}", **common, **fields}


CODEX = [
    codex("conversation_starts", provider_name="openai"),
    codex("user_prompt", prompt="[REDACTED]", prompt_length="9", event__timestamp="2026-11-20T10:00:01.000Z"),
    codex("sse_event", event__kind="response.created", duration_ms="5", event__timestamp="2026-11-20T10:00:02.000Z"),
    codex(
        "sse_event",
        event__kind="response.completed",
        input_token_count="500",
        output_token_count="60",
        cached_token_count=100,
        reasoning_token_count=20,
        event__timestamp="2026-11-20T10:00:03.000Z",
    ),
    codex(
        "tool_decision",
        tool_name="shell",
        call_id="call_1",
        decision="approved",
        source="Config",
        event__timestamp="2026-11-20T10:00:04.000Z",
    ),
    codex(
        "tool_result",
        tool_name="shell",
        call_id="call_1",
        arguments='{"command": ["ls"]}',
        success="true",
        output="a.py",
        duration_ms="12",
        event__timestamp="2026-11-20T10:00:05.000Z",
    ),
    codex(
        "api_request",
        error__message="stream disconnected",
        http__response__status_code=502,
        event__timestamp="2026-11-20T10:00:06.000Z",
    ),
]


def gemini(name: str, **attributes: Any) -> dict[str, Any]:
    return {"event.name": f"gemini_cli.{name}", "session.id": "g-1", "body": "an event", **attributes}


GEMINI = [
    gemini("config", model="gemini-3-pro"),
    gemini("user_prompt", prompt="Sum it up", prompt_length=9),
    gemini("api_request", model="gemini-3-pro", prompt_id="1"),
    gemini(
        "api_response",
        model="gemini-3-pro",
        input_token_count=200,
        output_token_count=10,
        duration_ms=700,
        cached_content_token_count=50,
        thoughts_token_count=30,
        response_text="I read it first.",
    ),
    gemini(
        "tool_call",
        function_name="read_file",
        function_args='{"path": "a"}',
        success=True,
        duration_ms=4,
        decision="auto_accept",
    ),
    gemini("api_error", model="gemini-3-pro", error="quota", error_type="RESOURCE_EXHAUSTED", status_code=429),
]

Expected = dict[str, Any]
SESSIONS: dict[str, tuple[list[dict[str, Any]], Expected]] = {
    "claude-code": (
        CLAUDE,
        {
            "tokens": (1065, 49),
            "cached": (1000, 50),
            "cost": "0.03000000",
            "steps": 2,
            "error": ("http_529", "overloaded"),
            "calls": [("Bash", "toolu_1", "completed"), ("Write", "toolu_2", "error"), ("Read", None, "error")],
            "messages": [
                ("user", ["Why is the build red?"]),
                ("assistant", ["I look.", "Bash", "Write"]),
                ("tool_result", [""]),
                ("tool_result", ["The call was not allowed."]),
                ("assistant", ["Read"]),
                ("tool_result", ["no such file"]),
            ],
        },
    ),
    "codex": (
        CODEX,
        {
            "tokens": (500, 60),
            "cached": (100, 0),
            "cost": None,
            "steps": 1,
            "error": ("http_502", "stream disconnected"),
            "calls": [("shell", "call_1", "completed")],
            "messages": [
                ("user", ["(The text of the prompt was not sent.)"]),
                ("assistant", ["shell"]),
                ("tool_result", ["a.py"]),
            ],
        },
    ),
    "gemini-cli": (
        GEMINI,
        {
            "tokens": (200, 40),
            "cached": (50, 0),
            "cost": None,
            "steps": 1,
            "error": ("RESOURCE_EXHAUSTED", "quota"),
            "calls": [("read_file", None, "completed")],
            "messages": [
                ("user", ["Sum it up"]),
                ("assistant", ["I read it first.", "read_file"]),
                ("tool_result", [""]),
            ],
        },
    ),
}


@pytest.mark.parametrize("size", [1, 4, pytest.param(99, marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", SESSIONS)
def test_a_session_becomes_a_run(exporter: Exporter, program: str, size: int) -> None:
    """In batches of any size, in either encoding, each sent twice."""
    events, expected = SESSIONS[program]
    request = logs(events, program)
    records = list(request.resource_logs[0].scope_logs[0].log_records)
    for first in range(0, len(records), size):
        batch = logs([], program)
        batch.resource_logs[0].scope_logs[0].log_records.extend(records[first : first + size])
        for body, content_type in ((batch.SerializeToString(), PROTOBUF), (as_json(batch), JSON)):
            answer = exporter.post(body, "/v1/logs", content_type)
            assert (answer.status_code, answer.content) in ((200, b""), (200, b"{}"))
    exporter.settle()

    [run] = exporter.runs()
    told = summary(run)
    assert (run.source, run.status, told["agent"]) == (AgentRun.Source.OTLP, "running", program)
    assert run.session_id in {"s-1", "c-1", "g-1"}
    assert told["tokens"] == expected["tokens"]
    assert (run.cache_read_tokens, run.cache_write_tokens) == expected["cached"]
    assert run.step_count == expected["steps"]
    assert [(tool, status) for tool, _, status in told["calls"]] == [(t, s) for t, _, s in expected["calls"]]
    assert all(
        want in (None, call_id) for (_, want, _), (_, call_id, _) in zip(expected["calls"], told["calls"], strict=True)
    )
    assert told["messages"] == expected["messages"]
    assert [(one.error_type, one.message) for one in run.errors.all()] == [expected["error"]]
    if expected["cost"]:
        assert (str(run.cost_usd), run.cost_source) == (expected["cost"], "reported")


def test_a_silent_session_waits_and_continues_later(exporter: Exporter) -> None:
    exporter.post(logs(CLAUDE[:5], "claude-code").SerializeToString(), "/v1/logs")
    exporter.settle(700)
    [run] = exporter.runs()
    assert (run.status, run.status_reason, run.step_count) == ("waiting", "input", 1)

    exporter.post(logs(CLAUDE, "claude-code").SerializeToString(), "/v1/logs")
    exporter.settle()
    [run] = exporter.runs()
    # The refused call arrived too late for the answer that requested it.
    assert (run.status, run.step_count, run.input_tokens) == ("running", 3, 1065)


def test_other_log_records_are_rejected_and_named(exporter: Exporter) -> None:
    records = [*CLAUDE[:1], {"body": "GET / 200"}, {"event.name": "codex.user_prompt", "prompt": "no session"}]
    answer = exporter.post(as_json(logs(records, "claude-code")), "/v1/logs", JSON).json()

    assert answer == {
        "partialSuccess": {
            "rejectedLogRecords": "2",
            "errorMessage": "2 rejected: not an event of a known coding agent with a session ID",
        }
    }
    exporter.settle()
    assert len(exporter.runs()) == 1


def test_a_session_without_prompts_and_calls_creates_no_run(exporter: Exporter) -> None:
    exporter.post(logs(GEMINI[:1], "gemini-cli").SerializeToString(), "/v1/logs")
    exporter.settle(700)

    assert exporter.runs() == []


def test_a_time_far_in_the_future_is_ignored(exporter: Exporter) -> None:
    """Runs are listed by time: a run of the year 9999 would always be first."""
    prompt = codex("user_prompt", prompt="x", event__timestamp="9999-12-31T23:00:00Z")
    exporter.post(logs([prompt], "codex").SerializeToString(), "/v1/logs")
    exporter.settle()

    [run] = exporter.runs()
    assert run.created_at < timezone.now()
    assert run.messages.get(role="user").created_at < timezone.now()
