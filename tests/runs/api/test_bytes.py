"""The same rows give the same bytes on both databases: times, money, numbers, texts, and the order of members."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.test import Client

from runs.models import AgentRun, AgentRunMessage, AgentRunToolCall, RunError, TurnUsage
from tests.support.api.many_rows import NOON, add_events
from tests.support.factories import make_agent, make_project
from timeline.models import Log

pytestmark = pytest.mark.breaks_invariants("rows that are made to be listed, without a log")

RUN = "/api/projects/alpha/agent-runs"
FIRST, SECOND = UUID("01a1f86c-1b1a-72f0-b808-000000000001"), UUID("01a1f86c-1b1a-72f0-b808-000000000002")
ODD = 'q"\\/\b\f\n\r\t\x01\x1f\x7f é 日本 🙂 \u2028 </script>'
# In the order in which Postgres keeps it.
NESTED = {"zz": 1.50, "é": 2, "list": [1, -0.0, 1e20, True, None, {}], "text": ODD, "number": 12345678901234567890}
STORED = (
    '{"zz": 1.5, "é": 2, "list": [1, 0.0, 100000000000000000000, true, null, {}], '
    f'"text": {json.dumps(ODD, ensure_ascii=False)}, "number": 12345678901234567890}}'
)


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


@pytest.fixture
def golden(db: None) -> AgentRun:
    """One of everything, with fixed ids and times."""
    project = make_project("alpha")
    agent = make_agent(project, slug="z-agent", provider="p", model="m", id=SECOND, tools=["t"], instructions=ODD)
    type(agent).objects.filter(pk=agent.pk).update(created_at=NOON, updated_at=NOON, settings=NESTED)
    Log.objects.create(id=FIRST, project=project)
    fields = {"status": "failed", "completed_at": NOON + timedelta(seconds=61, microseconds=50)}
    times = {"created_at": NOON.replace(microsecond=120), "queued_at": NOON, "started_at": NOON}
    run = AgentRun.objects.create(
        log_id=FIRST, project=project, root_run_id=FIRST, agent=agent, agent_config=NESTED, title=ODD, prompt=[ODD],
        cost_usd=Decimal("0.1"), labels=["é", ODD], structured_output=NESTED, **fields, **times,
    )  # fmt: skip
    message = AgentRunMessage.objects.create(
        id=FIRST, run=run, position=1, role="assistant", step_number=1, sha256=bytes(32), created_at=NOON,
        content={"parts": [{"content": NESTED}], "usage": {"input_tokens": 5}},
    )  # fmt: skip
    AgentRunToolCall.objects.create(
        id=SECOND, run=run, message=message, call_id="c", tool_name=ODD, input=NESTED, step_number=1,
        created_at=NOON, result_message=message, output=NESTED, duration_ms=7,
    )  # fmt: skip
    RunError.objects.create(run=run, step_number=1, context="llm", error_type="x", message=ODD, created_at=NOON)
    TurnUsage.objects.create(run=run, step_number=1, cost_usd=Decimal("12345678.12345678"), created_at=NOON)
    moment = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    add_events(run, 1, payload=NESTED, ts=moment, node_id="n", step=3)
    add_events(run, 1, payload={}, type="run.completed", event_id=ODD)
    Log.objects.filter(pk=FIRST).update(last_event_at=NOON)
    return run


def body(client: Client, url: str) -> str:
    return client.get(url).content.decode()


def test_the_bytes_of_a_run(golden: AgentRun, client: Client) -> None:
    odd = json.dumps(ODD, ensure_ascii=False)
    row = (
        f'{{"id":"{FIRST}","agent_id":"z-agent","title":{odd},"status":"failed","status_reason":"","source":"native",'
        f'"run_kind":"session","labels":["é", {odd}],"parent_run_id":null,"root_run_id":"{FIRST}","resumed_from":null,'
        '"step_count":0,"max_steps":50,"duration":61.000050,"input_tokens":0,"output_tokens":0,'
        '"cost_usd":"0.10000000","last_seq":2,"created_at":"2026-11-20T12:00:00.000120Z",'
        '"started_at":"2026-11-20T12:00:00.000000Z","completed_at":"2026-11-20T12:01:01.000050Z",'
        '"last_event_at":"2026-11-20T12:00:00.000000Z"'
    )
    detail = (
        f'{row},"project_id":"{golden.project_id}","external_id":null,"session_id":"","summary":"","prompt":[{odd}],'
        f'"result":"","structured_output":{STORED},"error_type":"","error_message":"","agent_config":{STORED},'
        '"step_base":0,"resumed_as":null,"starts_fresh":false,"forked_from":null,"forked_at_step":null,'
        '"cache_read_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0,"cost_source":"unknown",'
        '"waited":0.000000,"queued_at":"2026-11-20T12:00:00.000120Z","requeued_at":null,"not_before":null,"message_count":1,"tool_call_count":1,'
        '"error_count":1,"child_count":0,"attempt_count":0}'
    )
    assert body(client, RUN) == f'{{"next":null,"previous":null,"results":[{row}}}]}}'
    assert body(client, f"{RUN}/{FIRST}") == detail


def test_the_bytes_of_what_it_holds(golden: AgentRun, client: Client) -> None:
    odd = json.dumps(ODD, ensure_ascii=False)
    assert body(client, f"{RUN}/{FIRST}/messages/{FIRST}") == (
        f'{{"id":"{FIRST}","position":1,"role":"assistant","step_number":1,"model":"","usage":{{"input_tokens": 5}},'
        '"rolled_back_at":null,"created_at":"2026-11-20T12:00:00.000000Z",'
        f'"content":{{"parts": [{{"content": {STORED}}}], "usage": {{"input_tokens": 5}}}}}}'
    )
    call = body(client, f"{RUN}/{FIRST}/tool-calls/{SECOND}")
    assert call.startswith(f'{{"id":"{SECOND}","call_id":"c","tool_name":{odd},"status":"planned","step_number":1,')
    assert call.endswith(
        f'"finished_at":null,"resolved_by":null,"resolved_at":null,"input":{STORED},"output":{STORED}}}'
    )
    head = f'"runId":"{FIRST}","runKind":"session","phase":"running"'
    custom = f'{{{STORED[1:-1]}, "message": "Custom event x.note"}}'
    assert body(client, f"{RUN}/{FIRST}/events") == (
        f'{{"results":[{{"seq":1,"event_id":"~1",{head},"type":"x.note","ts":"1969-12-31T23:59:59.999999Z","step":3,'
        f'"nodeId":"n","payload":{custom},"source":"ingest"}},'
        f'{{"seq":2,"event_id":{odd},{head},"type":"run.completed","ts":"2026-11-20T12:00:00.000000Z","step":null,'
        '"nodeId":null,"payload":{"message": "Run completed"},"source":"ingest"}],"last_seq":2,"next":null}'
    )
    usage = body(client, f"{RUN}/{FIRST}/usage")
    assert usage.startswith('{"totals":{"model_calls":1,"input_tokens":0,')
    assert '"cost_usd":"12345678.12345678","duration_ms":null' in usage
    agent = body(client, "/api/projects/alpha/agents/z-agent")
    assert agent.endswith(f'"instructions":{odd},"settings":{STORED},"policies":{{}}}}')
