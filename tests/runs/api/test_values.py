"""The same rows produce the same values on both databases: times, money, numbers and texts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.test import Client

from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError, TurnUsage
from tests.support.api import NOON, add_events
from tests.support.factories import make_agent, make_project
from tests.support.secret_samples import TOKENS
from timeline.models import Log

pytestmark = pytest.mark.breaks_invariants("rows that are made to be listed, without a log")

RUN = "/api/projects/alpha/agent-runs"
FIRST, SECOND = UUID("01a1f86c-1b1a-72f0-b808-000000000001"), UUID("01a1f86c-1b1a-72f0-b808-000000000002")
ODD = 'q"\\/\b\f\n\r\t\x01\x1f\x7f é 日本 🙂 \u2028 </script>'
NESTED = {"zz": 1.50, "é": 2, "list": [1, -0.0, 1e20, True, None, {}], "text": ODD, "number": 12345678901234567890}


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


@pytest.fixture
def golden(db: None) -> AgentRun:
    """Create one row of each kind, with fixed IDs and times."""
    project = make_project("alpha")
    agent = make_agent(project, slug="z-agent", provider="p", model="m", id=SECOND, tools=["t"], instructions=ODD)
    type(agent).objects.filter(pk=agent.pk).update(created_at=NOON, updated_at=NOON, settings=NESTED)
    Log.objects.create(id=FIRST, project=project)
    fields = {"status": "failed", "completed_at": NOON + timedelta(seconds=61, microseconds=50)}
    times = {"created_at": NOON.replace(microsecond=120), "queued_at": NOON, "started_at": NOON}
    run = AgentRun.objects.create(
        log_id=FIRST,
        project=project,
        root_run_id=FIRST,
        agent=agent,
        agent_config=NESTED,
        title=ODD,
        prompt=[ODD],
        cost_usd=Decimal("0.1"),
        labels=["é", ODD],
        structured_output=NESTED,
        **fields,
        **times,
    )
    message = AgentRunMessage.objects.create(
        id=FIRST,
        run=run,
        position=1,
        role="assistant",
        step_number=1,
        sha256=bytes(32),
        created_at=NOON,
        content={"parts": [{"content": NESTED}], "usage": {"input_tokens": 5}},
    )
    AgentRunToolCall.objects.create(
        id=SECOND,
        run=run,
        message=message,
        call_id="c",
        tool_name=ODD,
        input=NESTED,
        step_number=1,
        created_at=NOON,
        result_message=message,
        output=NESTED,
        duration_ms=7,
    )
    RunError.objects.create(run=run, step_number=1, context="llm", error_type="x", message=ODD, created_at=NOON)
    TurnUsage.objects.create(run=run, step_number=1, cost_usd=Decimal("1234567.12345678"), created_at=NOON)
    moment = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    add_events(run, 1, payload=NESTED, ts=moment, node_id="n", step=3)
    add_events(run, 1, payload={}, type="run.completed", event_id=ODD)
    Log.objects.filter(pk=FIRST).update(last_event_at=NOON)
    return run


def body(client: Client, url: str) -> Any:
    answer = client.get(url)
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_the_values_of_a_run_are_exact(golden: AgentRun, client: Client) -> None:
    row = {
        "id": str(FIRST),
        "agent_id": "z-agent",
        "title": ODD,
        "status": "failed",
        "status_reason": "",
        "waiting_for": None,
        "source": "native",
        "run_kind": "session",
        "labels": ["é", ODD],
        "parent_run_id": None,
        "root_run_id": str(FIRST),
        "resumed_from": None,
        "step_count": 0,
        "max_steps": 50,
        "duration": 61.000050,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_usd": "0.10000000",
        "unpriced_calls": 0,
        "last_seq": 2,
        "created_at": "2026-11-20T12:00:00.000120Z",
        "started_at": "2026-11-20T12:00:00.000000Z",
        "completed_at": "2026-11-20T12:01:01.000050Z",
        "last_event_at": "2026-11-20T12:00:00.000000Z",
    }
    detail = row | {
        "project_id": str(golden.project_id),
        "queue": "default",
        "priority": 5,
        "external_id": None,
        "silent_since": None,
        "session_id": "",
        "summary": "",
        "prompt": [ODD],
        "result": "",
        "structured_output": NESTED,
        "error_type": "",
        "error_message": "",
        "agent_config": NESTED,
        "code_version": None,
        "flow_run_id": None,
        "schedule_id": None,
        "step_base": 0,
        "resumed_as": None,
        "starts_fresh": False,
        "forked_from": None,
        "forked_at_step": None,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "cache_write_1h_tokens": 0,
        "reasoning_tokens": 0,
        "cost_source": "unknown",
        "waited": 0,
        "queued_at": "2026-11-20T12:00:00.000120Z",
        "requeued_at": None,
        "not_before": None,
        "message_count": 1,
        "tool_call_count": 1,
        "error_count": 1,
        "child_count": 0,
        "attempt_count": 0,
        "total_runs": 1,
        "total_input_tokens": 0,
        "total_output_tokens": 0,
        "total_cost_usd": "0.10000000",
        "total_unpriced_runs": 0,
        "total_unpriced_calls": 0,
    }
    assert body(client, RUN) == {"next": None, "previous": None, "results": [row]}
    assert body(client, f"{RUN}/{FIRST}") == detail


def test_the_values_of_messages_calls_and_events_are_exact(golden: AgentRun, client: Client) -> None:
    message = {
        "id": str(FIRST),
        "position": 1,
        "role": "assistant",
        "step_number": 1,
        "model": "",
        "finish_reason": None,
        "usage": {"input_tokens": 5},
        "rolled_back_at": None,
        "is_copied": False,
        "created_at": "2026-11-20T12:00:00.000000Z",
        "content": {"parts": [{"content": NESTED}], "usage": {"input_tokens": 5}},
    }
    assert body(client, f"{RUN}/{FIRST}/messages/{FIRST}") == message
    call = body(client, f"{RUN}/{FIRST}/tool-calls/{SECOND}")
    known = {"id": str(SECOND), "call_id": "c", "tool_name": ODD, "status": "planned", "step_number": 1}
    known |= {"finished_at": None, "resolved_by": None, "resolved_at": None, "input": NESTED, "output": NESTED}
    assert call == call | known
    shared = {"runId": str(FIRST), "runKind": "session", "phase": "running", "source": "ingest"}
    first = {
        "seq": 1,
        "event_id": "~1",
        "type": "x.note",
        "ts": "1969-12-31T23:59:59.999999Z",
        "step": 3,
        "nodeId": "n",
        "payload": {**NESTED, "message": "Custom event x.note"},
    }
    second = {
        "seq": 2,
        "event_id": ODD,
        "type": "run.completed",
        "ts": "2026-11-20T12:00:00.000000Z",
        "step": None,
        "nodeId": None,
        "payload": {"message": "Run completed"},
    }
    events = body(client, f"{RUN}/{FIRST}/events")
    assert events == {"results": [first | shared, second | shared], "last_seq": 2, "next": None}


def test_the_values_of_usage_and_agents_are_exact(golden: AgentRun, client: Client) -> None:
    usage = body(client, f"{RUN}/{FIRST}/usage")
    assert (usage["totals"]["model_calls"], usage["totals"]["input_tokens"]) == (1, 0)
    [call] = usage["results"]
    assert (call["cost_usd"], call["duration_ms"]) == ("1234567.12345678", None)
    agent = body(client, "/api/projects/alpha/agents/z-agent")
    assert (agent["instructions"], agent["settings"], agent["policies"]) == (ODD, NESTED, {})
    assert agent["created_at"] == agent["updated_at"] == "2026-11-20T12:00:00.000000Z"


@pytest.mark.parametrize("before", ["", "é", "\x1b", "\n", "日本"])
def test_a_secret_is_masked_after_any_character(before: str, golden: AgentRun, client: Client) -> None:
    """An escape sequence may end in a letter or digit, which must not hide the start of the secret."""
    secret = TOKENS["github"]()
    add_events(golden, 1, payload={"text": before + secret})
    AgentRun.objects.filter(pk=golden.pk).update(labels=[before + secret], title=before + secret)

    for url in (RUN, f"{RUN}/{FIRST}", f"{RUN}/{FIRST}/events"):
        answer = client.get(url)
        assert secret not in json.dumps(answer.json(), ensure_ascii=False), url
        assert "REDACTED" in answer.content.decode(), url
